//go:build linux

package lab

import (
	"crypto/rand"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// testServer returns the address of a server for tests. A missing one skips the
// test, except in CI.
func testServer(t *testing.T, variable, want string) string {
	t.Helper()
	address := strings.TrimSuffix(os.Getenv(variable), "/")
	switch {
	case address != "":
	case os.Getenv("CI") == "true":
		t.Fatalf("%s is not set; in CI the laboratory needs the server; want %s", variable, want)
	default:
		t.Skipf("%s is not set; want %s", variable, want)
	}
	return address
}

func TestRedisPostgres(t *testing.T) {
	admin := testServer(t, "PITON_E2E_POSTGRES", "postgres://postgres@127.0.0.1:PORT")
	onServers(t, "pgx", admin+"/postgres?sslmode=disable", func(database string) string {
		return admin + "/" + database + "?sslmode=disable"
	})
}

func TestRedisMariaDB(t *testing.T) {
	admin := testServer(t, "PITON_E2E_MARIADB", "root@tcp(127.0.0.1:PORT)")
	user, host, ok := strings.Cut(strings.TrimSuffix(admin, ")"), "@tcp(")
	if !ok {
		t.Fatalf("PITON_E2E_MARIADB is %q; want root@tcp(127.0.0.1:PORT)", admin)
	}
	name, password, hasPassword := strings.Cut(user, ":")
	account := url.User(name)
	if hasPassword {
		account = url.UserPassword(name, password)
	}
	onServers(t, "mysql", admin+"/", func(database string) string {
		return (&url.URL{Scheme: "mysql", User: account, Host: host, Path: database}).String()
	})
}

// onServers proves on Redis and a new database, and sees that nothing is left.
func onServers(t *testing.T, driver, admin string, storage func(database string) string) {
	c := config(t)
	c.Coordinator = testServer(t, "PITON_E2E_REDIS", "redis://127.0.0.1:PORT")
	database := "prove_" + strings.ToLower(rand.Text())
	db, err := sql.Open(driver, admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.ExecContext(t.Context(), "CREATE DATABASE "+database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := db.Exec("DROP DATABASE " + database); err != nil {
			t.Error(err)
		}
	})
	c.Storage = storage(database)
	expectProof(t, prove(t, c))
	expectNothing(t, c.Storage)
	expectNoKeys(t, c.Coordinator)
}

func expectNoKeys(t *testing.T, raw string) {
	t.Helper()
	opts, err := redis.ParseURL(raw)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(opts)
	defer client.Close()
	keys, _, err := client.Scan(t.Context(), 0, "*piton_lab_*", 1_000_000).Result()
	if err != nil || len(keys) > 0 {
		t.Errorf("left in Redis: %v %v", keys, err)
	}
}
