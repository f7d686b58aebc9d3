//go:build linux

package lab

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pitonlock/piton/internal/servertest"
)

func TestRedisPostgres(t *testing.T) {
	onServers(t, servertest.SharedPostgres(t).NewDatabase(t))
}

func TestRedisMariaDB(t *testing.T) {
	onServers(t, servertest.SharedMariaDB(t).NewDatabase(t))
}

// onServers proves on Redis and a new database, and sees that nothing is left.
func onServers(t *testing.T, database *servertest.Database) {
	c := config(t)
	c.Coordinator = servertest.SharedRedis(t).URL()
	c.Storage = database.URL()
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
