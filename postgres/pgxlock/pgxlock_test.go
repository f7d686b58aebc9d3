package pgxlock_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/locktest"
	"github.com/pitonlock/piton/postgres/pgxlock"
	"github.com/pitonlock/piton/sqllock"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

// client is a coordinator with a pool of its own, as a process has it.
type client struct {
	*pgxlock.Coordinator
	pool *pgxpool.Pool
}

func (c client) Close() error {
	err := c.Coordinator.Close()
	c.pool.Close()
	return err
}

func open(dsn string) (client, error) {
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		return client{}, err
	}
	c, err := pgxlock.New(pool)
	return client{c, pool}, err
}

func fresh(t *testing.T) (c client, dsn string) {
	t.Helper()
	dsn = servertest.SharedPostgres(t).NewDatabase(t).DSN()
	c, err := open(dsn)
	if err == nil {
		err = c.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, dsn
}

func wantHint(t *testing.T, hints <-chan struct{}) {
	t.Helper()
	select {
	case <-hints:
	case <-time.After(10 * time.Second):
		t.Error("no hint came")
	}
}

func grant(t *testing.T, c piton.Coordinator, lock, holder string) piton.Grant {
	t.Helper()
	g, err := c.Acquire(t.Context(), piton.Request{Lock: lock, Holder: holder, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestLaws(t *testing.T) {
	admin, dsn := fresh(t)
	locktest.Run(t, locktest.Harness{
		New: func(context.Context) (piton.Coordinator, error) { return open(dsn) },
		Forget: func(ctx context.Context) error {
			_, err := admin.pool.Exec(ctx, "DELETE FROM piton_locks; UPDATE piton_floor SET token = 0")
			return err
		},
		Left: func(context.Context, string) (int, error) { return 0, nil }, // see sqllock
	})
}

// One connection listens while anybody waits, and none afterwards.
func TestWatchersShareOneConnection(t *testing.T) {
	c, _ := fresh(t)
	listening := func() (n int) {
		err := c.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN "+sqllock.Channel+"' AND datname = current_database()").Scan(&n)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	before := runtime.NumGoroutine()
	var stops []func()
	for _, lock := range []string{"a", "a", "b", "c 🧗'"} {
		hints, stop, err := c.Watch(t.Context(), lock)
		if err != nil {
			t.Fatal(err)
		}
		stops = append(stops, stop)
		if err := c.Release(t.Context(), grant(t, c, lock, "h")); err != nil {
			t.Fatal(err)
		}
		wantHint(t, hints)
	}
	if n := listening(); n != 1 {
		t.Errorf("%d connections listen", n)
	}
	for _, stop := range stops {
		stop()
		stop()
	}
	servertest.Eventually(t, 10*time.Second, func() bool { return listening() == 0 }, "end of the listening connection")
	servertest.Eventually(t, 10*time.Second, func() bool { return runtime.NumGoroutine() <= before+2 }, "end of the goroutines") // the pool's may come
}

func TestALostConnectionIsMadeAnew(t *testing.T) {
	c, _ := fresh(t)
	hints, stop, err := c.Watch(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	wantHint(t, hints) // of the beginning
	g := grant(t, c, "a", "h")
	_, err = c.pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN "+sqllock.Channel+"' AND datname = current_database()")
	if err != nil {
		t.Fatal(err)
	}
	wantHint(t, hints) // look, something may have been missed
	if ok, err := c.Break(t.Context(), "a", g.Token); !ok || err != nil {
		t.Fatal(ok, err)
	}
	wantHint(t, hints)
}

func TestWatchEnds(t *testing.T) {
	server := servertest.StartPostgres(t)
	c, err := open(server.NewDatabase(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	server.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, _, err := c.Watch(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 2*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, _, err := c.Watch(context.Background(), "b")
		waiting <- err
	}()
	start = time.Now()
	if err := c.Close(); err != nil || time.Since(start) > 3*time.Second {
		t.Errorf("Close on a server that hangs: %v after %v", err, time.Since(start))
	}
	if err := <-waiting; !errors.Is(err, piton.ErrClosed) {
		t.Errorf("a pending Watch ends with %v", err)
	}
	if _, _, err := c.Watch(t.Context(), "a"); !errors.Is(err, piton.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	server.Resume(t)
	c.pool.Close()
}

// Waiting through piton is by push: the next holder is woken up at once.
func TestWaitersAreWokenUp(t *testing.T) {
	c, dsn := fresh(t)
	other, err := open(dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	holder, err := piton.New(c)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 100)
	waiter, err := piton.New(other, piton.WithObserver(func(e piton.Event) {
		if e.Kind == piton.EventWaiting {
			asked <- struct{}{}
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		lease, err := holder.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan time.Time, 1)
		go func() {
			err := waiter.Do(context.Background(), "a", func(context.Context, *piton.Lease) error {
				got <- time.Now()
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}()
		<-asked
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		released := time.Now()
		if took := (<-got).Sub(released); took > 2*time.Second {
			t.Errorf("woken up after %v", took)
		}
	}
	if err := errors.Join(holder.Close(t.Context()), waiter.Close(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	if _, err := pgxlock.New(nil); err == nil || !strings.Contains(err.Error(), "nil pool") {
		t.Errorf("got %v", err)
	}
}
