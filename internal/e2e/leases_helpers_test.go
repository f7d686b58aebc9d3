package e2e

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/faultproxy"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/memlock"
	"github.com/pitonlock/piton/redis/redislock"
	"github.com/pitonlock/piton/sqlite/sqlitelock"
	"github.com/redis/go-redis/v9"
)

// coordinator is what every coordinator of this repository is.
type coordinator interface {
	piton.Coordinator
	piton.Inspector
	piton.Breaker
}

// eachCoordinator runs a test on every coordinator. client opens another client
// of the same coordinator, as another process would.
func eachCoordinator(t *testing.T, test func(t *testing.T, client func() coordinator)) {
	eachExact(t, test)
	t.Run("etcdlock", func(t *testing.T) {
		endpoint := servertest.StartEtcd(t).Endpoint()
		test(t, func() coordinator { return onEtcd(t, endpoint) })
	})
}

// eachExact runs a test on every coordinator that grants any TTL to the
// millisecond; etcd has whole seconds.
func eachExact(t *testing.T, test func(t *testing.T, client func() coordinator)) {
	t.Run("memlock", func(t *testing.T) {
		c := memlock.New()
		test(t, func() coordinator { return c })
	})
	t.Run("sqlitelock", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "locks.db")
		test(t, func() coordinator { return openFile(t, path) })
	})
	t.Run("redislock", func(t *testing.T) {
		addr := servertest.StartRedis(t).Addr()
		test(t, func() coordinator { return onRedis(t, addr) })
	})
	for _, b := range sqlLocks() {
		t.Run("sqllock on "+b.name, func(t *testing.T) {
			_, dsn := b.locks(t)
			test(t, func() coordinator {
				c, err := b.client(dsn)
				must(t, err)
				t.Cleanup(func() { must(t, c.Close()) })
				return c
			})
		})
	}
}

func openFile(tb testing.TB, path string) *sqlitelock.Coordinator {
	tb.Helper()
	c, err := sqlitelock.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { must(tb, c.Close()) })
	return c
}

func onRedis(tb testing.TB, addr string) *redislock.Coordinator {
	tb.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, PoolSize: 100})
	c, err := redislock.New(client)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		must(tb, c.Close(), client.Close())
	})
	return c
}

// proxied is a coordinator on Redis behind a proxy that a test can break.
func proxied(tb testing.TB, addr string) (*redislock.Coordinator, *faultproxy.Proxy) {
	tb.Helper()
	proxy := faultproxy.Start(tb, addr)
	return onRedis(tb, proxy.Addr()), proxy
}

func newLocker(tb testing.TB, c piton.Coordinator, opts ...piton.Option) *piton.Locker {
	tb.Helper()
	l, err := piton.New(c, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		must(tb, l.Close(ctx))
	})
	return l
}

func acquire(tb testing.TB, l *piton.Locker, lock string) *piton.Lease {
	tb.Helper()
	lease, err := l.Acquire(tb.Context(), lock)
	if err != nil {
		tb.Fatal(err)
	}
	return lease
}

func release(tb testing.TB, lease *piton.Lease) {
	tb.Helper()
	must(tb, lease.Release(context.Background()))
}

// after waits for a time that the test itself is about, not for something to be ready.
func after(tb testing.TB, d time.Duration) {
	tb.Helper()
	select {
	case <-time.After(d):
	case <-tb.Context().Done():
	}
}

func wantLost(tb testing.TB, err error, reasons ...piton.Reason) *piton.LostError {
	tb.Helper()
	var lost *piton.LostError
	if !errors.As(err, &lost) {
		tb.Fatalf("got %v; want a *LostError", err)
	}
	for _, r := range reasons {
		if lost.Reason == r {
			return lost
		}
	}
	tb.Fatalf("lost because %q; want one of %q", lost.Reason, reasons)
	return nil
}

func openSQLite(tb testing.TB, path string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate")
	must(tb, err)
	tb.Cleanup(func() { must(tb, db.Close()) })
	return db
}
