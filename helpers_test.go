package piton_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/memlock"
)

// tap sits between a Locker and a coordinator. A nil hook passes the call on; a
// hook gets the number of the call, from 1, and the call itself.
type tap struct {
	*memlock.Coordinator
	onAcquire func(ctx context.Context, n int, r piton.Request, call acquireCall) (piton.Grant, error)
	onRenew   func(ctx context.Context, n int, g piton.Grant, call renewCall) (piton.Grant, error)
	onRelease func(ctx context.Context, n int, g piton.Grant, call releaseCall) error

	mu                          sync.Mutex
	acquires, renewals, release int
}

type (
	acquireCall func(context.Context) (piton.Grant, error)
	renewCall   func(context.Context) (piton.Grant, error)
	releaseCall func(context.Context) error
)

func (t *tap) next(counter *int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	*counter++
	return *counter
}

func (t *tap) count(counter *int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return *counter
}

func (t *tap) Acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	n := t.next(&t.acquires)
	call := func(ctx context.Context) (piton.Grant, error) { return t.Coordinator.Acquire(ctx, r) }
	if t.onAcquire == nil {
		return call(ctx)
	}
	return t.onAcquire(ctx, n, r, call)
}

func (t *tap) Renew(ctx context.Context, g piton.Grant) (piton.Grant, error) {
	n := t.next(&t.renewals)
	call := func(ctx context.Context) (piton.Grant, error) { return t.Coordinator.Renew(ctx, g) }
	if t.onRenew == nil {
		return call(ctx)
	}
	return t.onRenew(ctx, n, g, call)
}

func (t *tap) Release(ctx context.Context, g piton.Grant) error {
	n := t.next(&t.release)
	call := func(ctx context.Context) error { return t.Coordinator.Release(ctx, g) }
	if t.onRelease == nil {
		return call(ctx)
	}
	return t.onRelease(ctx, n, g, call)
}

var errNetwork = errors.New("connection reset by peer")

// hang ignores its context, as a stalled socket does.
func hang(d time.Duration) { time.Sleep(d) }

// pass lets the bubble's time go on.
func pass(d time.Duration) { time.Sleep(d) }

// bubble runs a test in synctest time, where every sleep is exact. At the end it
// lets all that hangs return; what is left then is a leak, which fails the test.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { hang(3 * time.Hour) })
		f(t)
	})
}

func newTap() *tap { return &tap{Coordinator: memlock.New()} }

// newLocker closes the Locker when the test ends and fails it if that leaves
// anything in use.
func newLocker(t *testing.T, c piton.Coordinator, opts ...piton.Option) *piton.Locker {
	t.Helper()
	l, err := piton.New(c, append([]piton.Option{piton.WithBootClock(nil)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

func acquire(t *testing.T, l *piton.Locker, lock string) *piton.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), lock)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func release(t *testing.T, lease *piton.Lease) {
	t.Helper()
	if err := lease.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func remaining(t *testing.T, c piton.Inspector, lock string) time.Duration {
	t.Helper()
	held, _, err := c.Get(context.Background(), lock)
	if err != nil {
		t.Fatal(err)
	}
	return held.Remaining
}

// lostAfter waits for the end of the lease and returns how long that took.
func lostAfter(t *testing.T, lease *piton.Lease) (time.Duration, *piton.LostError) {
	t.Helper()
	start := time.Now()
	<-lease.Done()
	took := time.Since(start)
	var lost *piton.LostError
	if err := lease.Err(); !errors.As(err, &lost) {
		t.Fatalf("the lease ended with %v; want a *LostError", err)
	}
	if cause := context.Cause(lease.Context()); cause != error(lost) {
		t.Fatalf("the context's cause is %v; want %v", cause, lost)
	}
	return took, lost
}
