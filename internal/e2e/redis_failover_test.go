package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/redis/redislock"
	"github.com/pitonlock/piton/sqlguard"
	"github.com/redis/go-redis/v9"
)

func TestSentinelFailoverLosesAGrant(t *testing.T) {
	s := servertest.StartRedisSentinel(t)
	failover(t, "a", "b", func() redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: s.Name, SentinelAddrs: s.Addrs(), ContextTimeoutEnabled: true, DialTimeout: time.Second})
	}, func(write func()) { s.LoseWrites(t, write) })
}

func TestClusterFailoverLosesAGrant(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	primary := func(lock string) int { return c.PrimaryOf(t, "{"+lock+"}") }
	other := "b"
	for n := 0; primary(other) != primary("a"); n++ { // both locks live where the fault is
		other = fmt.Sprint("b", n)
	}
	failover(t, "a", other, func() redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), ContextTimeoutEnabled: true, DialTimeout: time.Second, ReadTimeout: time.Second})
	}, func(write func()) { c.LoseWrites(t, primary("a"), write) })
}

// failover: a grant of lock is acknowledged and then lost with the primary. The
// storage still tells the holders apart, although both have a number from the same
// counter. Who holds another lock keeps it, and who waits for that one gets it.
func failover(t *testing.T, lock, other string, open func() redis.UniversalClient, lose func(write func())) {
	const ttl = 15 * time.Second
	guard, write := guardedFile(t)
	client := func() *redislock.Coordinator {
		r := open()
		c, err := redislock.New(r)
		must(t, err)
		t.Cleanup(func() { must(t, c.Close(), r.Close()) })
		return c
	}
	holder := func() *piton.Locker { return newLocker(t, client(), piton.WithTTL(ttl), piton.WithGuards(guard)) }
	// Tokens above any clock come from the counter alone, which the failover sets back.
	must(t, guard.Seal(t.Context(), piton.Fence{Lock: lock, Token: 1 << 50, Holder: "a holder of the far future"}))
	release(t, acquire(t, holder(), lock))
	kept := acquire(t, holder(), other)
	waited := make(chan error, 1)
	waiter := holder()
	go func() {
		waited <- waiter.Do(context.Background(), other, func(_ context.Context, l *piton.Lease) error {
			if l.Token() <= kept.Token() {
				return fmt.Errorf("token %d after %d", l.Token(), kept.Token())
			}
			return nil
		})
	}()
	look := client()

	var forgotten *piton.Lease
	lose(func() {
		forgotten = acquire(t, holder(), lock)
		must(t, write(forgotten.Fence()))
	})
	failed := time.Now()
	if held, ok, err := look.Get(t.Context(), lock); err != nil || ok && held.Token == forgotten.Token() {
		t.Fatalf("the failover kept the grant: %+v, %v", held, err)
	}
	next := acquire(t, holder(), lock)
	if next.Token() <= forgotten.Token() {
		t.Errorf("token %d after %d", next.Token(), forgotten.Token())
	}
	var stale *piton.StaleError
	if err := write(forgotten.Fence()); !errors.As(err, &stale) || stale.Mark != next.Fence() {
		t.Errorf("the write of the holder that was forgotten: %v", err)
	}
	must(t, write(next.Fence()))
	select {
	case <-forgotten.Done():
	case <-time.After(ttl):
		t.Error("the lease that the coordinator forgot still stands")
	}
	wantLost(t, forgotten.Err(), piton.ReasonTaken)
	if err := kept.Err(); err != nil {
		t.Errorf("the holder of the other lock has lost it: %v", err)
	}
	must(t, write(kept.Fence()))
	release(t, kept)
	must(t, <-waited)
	if took := time.Since(failed); took > 2*ttl {
		t.Errorf("it took %v until all went on", took)
	}
	release(t, next)
}

// guardedFile is a guarded table in a SQLite file.
func guardedFile(t *testing.T) (*sqlguard.Guard, func(piton.Fence) error) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "store.db")+"?_pragma=busy_timeout(5000)")
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	guard, err := sqlguard.New(db, sqlguard.SQLite)
	must(t, err)
	must(t, guard.Migrate(t.Context()))
	_, err = db.ExecContext(t.Context(), "CREATE TABLE written (token INTEGER)")
	must(t, err)
	return guard, func(f piton.Fence) error {
		return guard.Tx(t.Context(), f, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO written VALUES (?)", int64(f.Token))
			return err
		})
	}
}
