//go:build linux

package lab

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pitonlock/piton/cmd/piton/internal/backend"
	"github.com/pitonlock/piton/internal/servertest"
)

func TestRedisPostgres(t *testing.T) {
	onServers(t, servertest.SharedRedis(t).URL(), servertest.SharedPostgres(t).NewDatabase(t).URL())
}

func TestRedisMariaDB(t *testing.T) {
	onServers(t, servertest.SharedRedis(t).URL(), servertest.SharedMariaDB(t).NewDatabase(t).URL())
}

func TestRedisSentinel(t *testing.T) {
	s := servertest.StartRedisSentinel(t)
	onServers(t, "redis+sentinel://"+strings.Join(s.Addrs(), ",")+"/"+s.Name, "")
}

func TestRedisCluster(t *testing.T) {
	onServers(t, "redis+cluster://"+strings.Join(servertest.StartRedisCluster(t).Addrs(), ","), "")
}

func TestEtcd(t *testing.T) {
	onServers(t, servertest.SharedEtcd(t).URL(), "")
}

// TestOneDatabaseForBoth keeps the locks beside the account.
func TestOneDatabaseForBoth(t *testing.T) {
	t.Run("PostgreSQL", func(t *testing.T) {
		url := servertest.SharedPostgres(t).NewDatabase(t).URL()
		onServers(t, url, url)
	})
	t.Run("MariaDB", func(t *testing.T) {
		url := servertest.SharedMariaDB(t).NewDatabase(t).URL()
		onServers(t, url, url)
	})
}

// onServers proves and sees that nothing is left.
func onServers(t *testing.T, coordinator, storage string) {
	t.Helper()
	c := config(t)
	c.Coordinator, c.Storage = coordinator, storage
	expectProof(t, prove(t, c))
	if storage != "" {
		expectNothing(t, storage)
	}
	for _, left := range traces(t, coordinator) {
		t.Errorf("left in the coordinator: %s", left)
	}
}

// traces are the keys and rows of laboratories in a coordinator.
func traces(t *testing.T, raw string) (found []string) {
	t.Helper()
	expect := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	switch scheme, _, _ := strings.Cut(raw, "://"); {
	case strings.HasPrefix(scheme, "redis"):
		client, err := backend.OpenRedis(raw)
		expect(err)
		defer client.Close()
		scan := func(ctx context.Context, node *redis.Client) error {
			keys, _, err := node.Scan(ctx, 0, "*piton_lab_*", 1_000_000).Result()
			found = append(found, keys...)
			return err
		}
		switch c := client.(type) {
		case *redis.Client:
			expect(scan(t.Context(), c))
		case *redis.ClusterClient:
			var turn sync.Mutex
			expect(c.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
				turn.Lock()
				defer turn.Unlock()
				return scan(ctx, node)
			}))
		}
	case scheme == "etcd":
		client, err := backend.OpenEtcd(raw)
		expect(err)
		defer client.Close()
		all, err := client.Get(t.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly())
		expect(err)
		for _, kv := range all.Kvs {
			if strings.Contains(string(kv.Key), "piton_lab_") {
				found = append(found, string(kv.Key))
			}
		}
	default: // Piton's own table; those of the usual locks are looked for elsewhere
		db, _, closeDB, err := backend.OpenStorage(t.Context(), raw)
		expect(err)
		defer closeDB()
		var rows int
		expect(db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM piton_locks").Scan(&rows))
		if rows > 0 {
			found = append(found, fmt.Sprint(rows, " rows"))
		}
	}
	return found
}
