package e2e

import (
	"database/sql"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The guard tests run on servers whose administrator's data source names are in
// these variables, on a loopback address with its port and without a database:
//
//	PITON_E2E_POSTGRES  postgres://postgres@127.0.0.1:PORT
//	PITON_E2E_MARIADB   root@tcp(127.0.0.1:PORT)
//
// Each test creates databases of its own in them and drops them again.

var databases atomic.Int64

// server returns the variable's value. A missing server skips the test, except in CI.
func server(tb testing.TB, variable string) string {
	tb.Helper()
	base := strings.TrimSuffix(os.Getenv(variable), "/")
	switch {
	case base != "":
	case os.Getenv("CI") == "true":
		tb.Fatalf("%s is not set; in CI the guard tests need the server", variable)
	default:
		tb.Skipf("%s is not set; want the administrator's address of a test server", variable)
	}
	return base
}

// newDatabase creates a database and returns its name.
func newDatabase(tb testing.TB, driver, admin string) string {
	tb.Helper()
	name := fmt.Sprintf("piton_e2e_%d_%d", time.Now().UnixNano(), databases.Add(1))
	run := func(statement string) {
		db, err := sql.Open(driver, admin)
		must(tb, err)
		_, err = db.Exec(statement + name)
		must(tb, err, db.Close())
	}
	run("CREATE DATABASE ")
	tb.Cleanup(func() {
		if driver == "pgx" {
			name += " WITH (FORCE)" // a killed helper's connection may live a moment longer
		}
		run("DROP DATABASE ")
	})
	return name
}

func postgresDSN(tb testing.TB) string {
	base := server(tb, "PITON_E2E_POSTGRES")
	return base + "/" + newDatabase(tb, "pgx", base+"/postgres?sslmode=disable") + "?sslmode=disable"
}

func mariadbDSN(tb testing.TB) string {
	base := server(tb, "PITON_E2E_MARIADB")
	return base + "/" + newDatabase(tb, "mysql", base+"/")
}

// withUser is dsn for another user, who has no password.
func withUser(tb testing.TB, dsn, user string) string {
	tb.Helper()
	before, after, ok := strings.Cut(dsn, "@")
	if !ok {
		tb.Fatal("the data source name has no user")
	}
	scheme, _, ok := strings.Cut(before, "://")
	if !ok {
		return user + "@" + after
	}
	return scheme + "://" + user + "@" + after
}
