package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/faultproxy"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/sqlguard"
	"github.com/redis/go-redis/v9"
)

// LostBeforeExpired: all packets of the holder vanish, without a reset.
func TestLossIsNotSignalledWhenCallsHang(t *testing.T) {
	const (
		rounds = 50
		ttl    = 3 * time.Second
	)
	addr := servertest.StartRedis(t).Addr()
	for wave := range rounds / 10 {
		var all sync.WaitGroup
		for n := range 10 {
			lock := fmt.Sprintf("black hole %d.%d", wave, n)
			c, proxy := proxied(t, addr)
			holder, contender := newLocker(t, c, piton.WithTTL(ttl)), newLocker(t, onRedis(t, addr), piton.WithTTL(ttl))
			all.Go(func() {
				start := time.Now()
				lease, err := holder.Acquire(t.Context(), lock)
				if err != nil {
					t.Error(err)
					return
				}
				granted := make(chan time.Time, 1)
				go func() {
					next, err := contender.Acquire(t.Context(), lock)
					granted <- time.Now()
					if err == nil {
						err = next.Release(context.Background())
					}
					if err != nil {
						t.Error(err)
					}
				}()
				<-time.After(100 * time.Millisecond)
				proxy.Cut()
				<-lease.Done()
				ended := time.Now()
				next := <-granted
				if took := ended.Sub(start); took >= ttl {
					t.Errorf("%s: the holder's context ended after %v; want before %v", lock, took, ttl)
				}
				if !next.After(ended) || next.Sub(start) < ttl-50*time.Millisecond {
					t.Errorf("%s: granted to the next %v after the start, the holder's end was at %v", lock, next.Sub(start), ended.Sub(start))
				}
				if !errors.Is(lease.Err(), piton.ErrLost) {
					t.Errorf("%s: %v", lock, lease.Err())
				}
			})
		}
		all.Wait()
	}
}

// Renewal goes on in the second life of a lock that was lost in an outage.
func TestRenewalStopsSilently(t *testing.T) {
	const ttl = 3 * time.Second
	addr := servertest.StartRedis(t).Addr()
	c, proxy := proxied(t, addr)
	direct := onRedis(t, addr)
	l := newLocker(t, c, piton.WithTTL(ttl))
	first := acquire(t, l, "a")
	cut := time.Now()
	proxy.Cut()
	<-first.Done()
	if took := time.Since(cut); took > ttl {
		t.Errorf("lost %v after the cut", took)
	}
	after(t, 5*time.Second-time.Since(cut))
	proxy.Heal()
	proxy.ResetAll()
	second := acquire(t, l, "a")
	if second.Token() <= first.Token() {
		t.Errorf("token %d after %d", second.Token(), first.Token())
	}
	poller := newLocker(t, direct, piton.WithTTL(ttl))
	for start := time.Now(); time.Since(start) < 12*time.Second; after(t, 100*time.Millisecond) {
		held, ok, err := direct.Get(t.Context(), "a")
		if err != nil || !ok || held.Token != second.Token() || held.Remaining < 1500*time.Millisecond {
			t.Fatalf("%v into the second hold: %+v, held %v, %v", time.Since(start), held, ok, err)
		}
		if _, err := poller.TryAcquire(t.Context(), "a"); !errors.Is(err, piton.ErrHeld) {
			t.Fatalf("%v into the second hold another one got %v", time.Since(start), err)
		}
	}
	release(t, second)
}

// One failed heartbeat is not a loss; when all fail, the loss comes in time.
func TestTransientErrorIsNotALoss(t *testing.T) {
	const ttl = 3 * time.Second
	t.Run("reset connection", func(t *testing.T) {
		c, proxy := proxied(t, servertest.StartRedis(t).Addr())
		lease := acquire(t, newLocker(t, c, piton.WithTTL(ttl)), "a")
		token := lease.Token()
		for range 8 {
			proxy.ResetAll()
			after(t, ttl/3)
		}
		if lease.Err() != nil || lease.Token() != token {
			t.Errorf("%v", lease.Err())
		}
		release(t, lease)
	})
	t.Run("server restarts", func(t *testing.T) {
		server := servertest.StartRedis(t)
		lease := acquire(t, newLocker(t, onRedis(t, server.Addr()), piton.WithTTL(3*ttl)), "a")
		server.Restart(t)
		after(t, 3*ttl)
		if lease.Err() != nil {
			t.Error(lease.Err())
		}
		release(t, lease)
	})
	t.Run("busy file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "locks.db")
		l := newLocker(t, openFile(t, path), piton.WithTTL(10*time.Second), piton.WithHeartbeat(2*time.Second))
		lease := acquire(t, l, "a")
		tx, err := openSQLite(t, path).Begin()
		must(t, err)
		after(t, 5*time.Second) // over a heartbeat and more
		must(t, tx.Rollback())
		after(t, 3*time.Second)
		if lease.Err() != nil {
			t.Error(lease.Err())
		}
		release(t, lease)
	})
	t.Run("every renewal", func(t *testing.T) {
		c, proxy := proxied(t, servertest.StartRedis(t).Addr())
		lease := acquire(t, newLocker(t, c, piton.WithTTL(ttl)), "a")
		start := time.Now()
		proxy.Set(faultproxy.ToServer, mode(t, "reset"))
		<-lease.Done()
		// The client makes several tries of each call, which may take all the time
		// that is left.
		wantLost(t, lease.Err(), piton.ReasonRenewal, piton.ReasonExpired)
		if took := time.Since(start); took >= ttl {
			t.Errorf("lost after %v; want before %v", took, ttl)
		}
	})
}

func mode(tb testing.TB, text string) faultproxy.Mode {
	tb.Helper()
	m, err := faultproxy.ParseMode(text)
	must(tb, err)
	return m
}

// UnknownIsNotNo: a cancelled Acquire leaves no orphan.
func TestOrphanLockFromCancelledAcquire(t *testing.T) {
	addr := servertest.StartRedis(t).Addr()
	c, proxy := proxied(t, addr)
	release(t, acquire(t, newLocker(t, c), "warm up: the connection and the scripts"))
	slow := mode(t, "delay 200ms")
	proxy.Set(faultproxy.ToServer, slow)
	proxy.Set(faultproxy.ToClient, slow)
	const rounds = 40
	l := newLocker(t, c, piton.WithTTL(5*time.Second))
	other := newLocker(t, onRedis(t, addr), piton.WithTTL(5*time.Second))
	var all sync.WaitGroup
	for n := range rounds {
		all.Go(func() {
			lock := fmt.Sprintf("orphan %d", n)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond+rand.N(250*time.Millisecond))
			defer cancel()
			deadline, _ := ctx.Deadline()
			_, err := l.Acquire(ctx, lock)
			if late := time.Since(deadline); late > 200*time.Millisecond { // 50 ms, and a busy machine
				t.Errorf("returned %v after its context ended", late)
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			// Much less than the TTL: it was given back, it did not just end.
			wait, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			lease, err := other.Acquire(wait, lock)
			if err != nil {
				t.Errorf("another one, 3s later: %v", err)
				return
			}
			if err := lease.Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	proxy.Heal()
}

// RenewOnlyOwn: a renewal that comes late, after another was granted.
func TestRenewalWithoutOwnershipCheck(t *testing.T) {
	const ttl = 3 * time.Second
	addr := servertest.StartRedis(t).Addr()
	c, proxy := proxied(t, addr)
	direct := onRedis(t, addr)
	a := acquire(t, newLocker(t, c, piton.WithTTL(ttl)), "a")
	proxy.Set(faultproxy.ToServer, mode(t, "hole")) // the renewals are kept, and delivered later
	b := acquire(t, newLocker(t, direct, piton.WithTTL(ttl), piton.WithHeartbeat(1400*time.Millisecond)), "a")
	if b.Token() <= a.Token() || a.Err() == nil {
		t.Fatalf("B has token %d after %d, A is %v", b.Token(), a.Token(), a.Err())
	}
	before, _, err := direct.Get(t.Context(), "a")
	must(t, err)
	proxy.Heal()
	after(t, 300*time.Millisecond)
	held, _, err := direct.Get(t.Context(), "a")
	must(t, err)
	if held.Token != b.Token() || held.Remaining > before.Remaining {
		t.Errorf("before the late renewal %+v, after it %+v", before, held)
	}
	err = a.Release(t.Context())
	if lost := wantLost(t, err, piton.ReasonTaken, piton.ReasonExpired); lost.Token != a.Token() {
		t.Errorf("released: %v", lost)
	}
	if b.Err() != nil {
		t.Error(b.Err())
	}
	release(t, b)
}

// TokenHeals: the coordinator forgets everything while a lease is held.
func TestMemoryLossIsRepairedByTheStorage(t *testing.T) {
	server := servertest.StartRedis(t)
	db, err := sql.Open("pgx", postgresDSN(t))
	must(t, err)
	defer func() { must(t, db.Close()) }()
	guard, err := sqlguard.New(db, sqlguard.Postgres)
	must(t, err)
	must(t, guard.Migrate(t.Context()))
	_, err = db.Exec("CREATE TABLE t (v int)")
	must(t, err)
	high := piton.Fence{Lock: "a", Token: 1 << 50, Holder: "a holder of the far future"}
	must(t, guard.Seal(t.Context(), high)) // above any clock of Redis

	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { must(t, client.Close()) }()
	old := acquire(t, newLocker(t, onRedis(t, server.Addr()), piton.WithGuards(guard)), "a")
	if old.Token() <= high.Token {
		t.Fatalf("token %d; want above the storage's %d", old.Token(), high.Token)
	}
	must(t, client.FlushAll(t.Context()).Err())
	next := acquire(t, newLocker(t, onRedis(t, server.Addr()), piton.WithGuards(guard)), "a")
	if next.Token() <= old.Token() {
		t.Errorf("token %d after %d", next.Token(), old.Token())
	}
	write := func(f piton.Fence) error {
		return guard.Tx(t.Context(), f, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO t VALUES (1)")
			return err
		})
	}
	var stale *piton.StaleError
	if err := write(old.Fence()); !errors.As(err, &stale) || stale.Fence != old.Fence() || stale.Mark != next.Fence() {
		t.Errorf("the old holder's write: %v", err)
	}
	must(t, write(next.Fence()))
	if lost := wantLost(t, old.Release(t.Context()), piton.ReasonTaken); lost.By != next.Token() {
		t.Errorf("the old holder's release: %v; want taken by %d", lost, next.Token())
	}
	release(t, next)
}

// A release whose connection is reset can be repeated.
func TestReleaseNotConfirmed(t *testing.T) {
	addr := servertest.StartRedis(t).Addr()
	c, proxy := proxied(t, addr)
	lease := acquire(t, newLocker(t, c, piton.WithTTL(20*time.Second)), "a")
	fence := lease.Fence()
	proxy.Set(faultproxy.ToServer, mode(t, "reset"))
	if err := lease.Release(t.Context()); !errors.Is(err, piton.ErrUnavailable) || errors.Is(err, piton.ErrLost) {
		t.Errorf("the first release: %v", err)
	}
	if _, held, err := onRedis(t, addr).Get(t.Context(), "a"); err != nil || !held || lease.Fence() != fence {
		t.Errorf("held %v, %v", held, err)
	}
	proxy.Heal()
	release(t, lease)
	if _, held, err := onRedis(t, addr).Get(t.Context(), "a"); err != nil || held {
		t.Errorf("after the second release held is %v, %v", held, err)
	}
}

// The TTL that the coordinator keeps is the TTL that was asked for.
func TestTTLUnitsAndRounding(t *testing.T) {
	eachExact(t, func(t *testing.T, client func() coordinator) {
		c := client()
		for _, ttl := range []time.Duration{999 * time.Millisecond, 1500 * time.Millisecond, 2 * time.Second, 30 * time.Second} {
			r := piton.Request{Lock: ttl.String(), Holder: "h", TTL: ttl}
			check := func(what string, g piton.Grant, err error) {
				t.Helper()
				must(t, err)
				held, ok, err := c.Get(t.Context(), r.Lock)
				must(t, err)
				if !ok || held.Remaining > ttl || held.Remaining < ttl-200*time.Millisecond || g.TTL > ttl || g.TTL < ttl-200*time.Millisecond {
					t.Errorf("%s for %v: %v left, granted %v", what, ttl, held.Remaining, g.TTL)
				}
			}
			g, err := c.Acquire(t.Context(), r)
			check("acquired", g, err)
			again, err := c.Renew(t.Context(), g)
			check("renewed", again, err)
			ttl += time.Second
			r.TTL, again.TTL = ttl, ttl
			g, err = c.Renew(t.Context(), again)
			check("renewed for longer", g, err)
		}
	})
}

// Many clients with the same owner label, never two holders.
func TestIdentityCollision(t *testing.T) {
	eachCoordinator(t, func(t *testing.T, client func() coordinator) {
		var inside, turns atomic.Int64
		var all sync.WaitGroup
		for range 3 {
			l := newLocker(t, client(), piton.WithOwner("host-1 pid 1"), piton.WithTTL(5*time.Second))
			all.Go(func() {
				for range 60 {
					err := l.Do(t.Context(), "a", func(_ context.Context, lease *piton.Lease) error {
						if inside.Add(1) > 1 {
							t.Error("two holders at once")
						}
						turns.Add(1)
						inside.Add(-1)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if turns.Load() != 180 {
			t.Errorf("%d of 180 turns", turns.Load())
		}
	})
}
