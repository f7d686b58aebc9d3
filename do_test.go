package piton_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pitonlock/piton"
)

var errWork = errors.New("work failed")

func isHeld(t *testing.T, c piton.Inspector, lock string) bool {
	t.Helper()
	_, ok, err := c.Get(context.Background(), lock)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestDoReturnsWhatTheWorkReturns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		l := newLocker(t, c)
		for _, want := range []error{nil, errWork} {
			err := l.Do(t.Context(), "a", func(ctx context.Context, lease *piton.Lease) error {
				if f, ok := piton.FenceFromContext(ctx); !ok || f != lease.Fence() {
					t.Errorf("the work's context has fence %v", f)
				}
				return want
			})
			if err != want || isHeld(t, c, "a") {
				t.Errorf("Do: %v; want %v and the lock free", err, want)
			}
		}
	})
}

func TestDoWithoutAWorkTakesNothing(t *testing.T) {
	c := newTap()
	if err := newLocker(t, c).Do(t.Context(), "a", nil); err == nil || c.count(&c.acquires) != 0 {
		t.Errorf("Do(nil): %v after %d requests; want an error and none", err, c.count(&c.acquires))
	}
}

// D11 and ReleaseAfterWork: the caller hangs up in mid-work.
func TestTheCallersEndStopsRenewalAndReleasesAfterTheWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		l := newLocker(t, c)
		errGone := errors.New("client hung up")
		for range 100 {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(15*time.Second, func() { cancel(errGone) })
			err := l.Do(ctx, "a", func(ctx context.Context, lease *piton.Lease) error {
				<-ctx.Done()
				if context.Cause(ctx) != errGone || lease.Err() != nil {
					t.Errorf("the work ends with %v, lease %v", context.Cause(ctx), lease.Err())
				}
				renewals := c.count(&c.renewals)
				pass(14 * time.Second) // rolling back
				if !isHeld(t, c, "a") || lease.Err() != nil {
					t.Error("the lock was given back while the work was rolling back")
				}
				if n := c.count(&c.renewals); n != renewals {
					t.Errorf("%d renewals after the end", n-renewals)
				}
				return ctx.Err()
			})
			if !errors.Is(err, context.Canceled) || isHeld(t, c, "a") {
				t.Fatalf("Do: %v, held %v; want the work's error and a free lock", err, isHeld(t, c, "a"))
			}
		}
	})
}

func TestTheCallersDeadlineIsTheWorks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := newLocker(t, newTap()).Do(ctx, "a", func(work context.Context, _ *piton.Lease) error {
			want, _ := ctx.Deadline()
			if got, ok := work.Deadline(); !ok || !got.Equal(want) {
				t.Errorf("the work's deadline is %v; want %v", got, want)
			}
			<-work.Done()
			return context.Cause(work)
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestAWorkThatNeverDrainsEndsWithItsLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		time.AfterFunc(5*time.Second, cancel)
		var lostAt time.Duration
		err := newLocker(t, c).Do(ctx, "a", func(ctx context.Context, lease *piton.Lease) error {
			<-lease.Done()
			lostAt = time.Since(start)
			pass(time.Minute)
			return nil
		})
		if lostAt >= ttl || lostAt < ttl-time.Second || !errors.Is(err, piton.ErrLost) {
			t.Errorf("lost after %v, Do: %v", lostAt, err)
		}
	})
}

func TestDoSaysThatTheLeaseWasLost(t *testing.T) {
	for _, workErr := range []error{nil, errWork} {
		t.Run(fmt.Sprint(workErr), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newTap()
				err := newLocker(t, c).Do(t.Context(), "a", func(ctx context.Context, lease *piton.Lease) error {
					if _, err := c.Break(ctx, "a", lease.Token()); err != nil {
						t.Error(err)
					}
					<-ctx.Done()
					if !errors.Is(context.Cause(ctx), piton.ErrLost) {
						t.Errorf("the work's cause is %v", context.Cause(ctx))
					}
					return workErr
				})
				if !errors.Is(err, piton.ErrLost) || workErr != nil && !errors.Is(err, workErr) {
					t.Errorf("Do: %v", err)
				}
			})
		})
	}
}

func TestAPanicReleasesAndGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		l := newLocker(t, c)
		defer func() {
			if p := recover(); p != "oh" || isHeld(t, c, "a") {
				t.Errorf("recovered %v, held %v", p, isHeld(t, c, "a"))
			}
		}()
		_ = l.Do(t.Context(), "a", func(context.Context, *piton.Lease) error { panic("oh") })
	})
}

// D12: a release that failed can be repeated; the heartbeat stays stopped.
func TestAFailedReleaseCanBeRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		var broken atomic.Bool
		broken.Store(true)
		c.onRelease = func(ctx context.Context, _ int, _ piton.Grant, call releaseCall) error {
			if broken.Load() {
				return errNetwork
			}
			return call(ctx)
		}
		lease := acquire(t, newLocker(t, c), "a")
		fence := lease.Fence()
		err := lease.Release(t.Context())
		if !errors.Is(err, piton.ErrUnavailable) || !errors.Is(err, errNetwork) || errors.Is(err, piton.ErrLost) {
			t.Errorf("first release: %v", err)
		}
		pass(15 * time.Second)
		if n := c.count(&c.renewals); n != 0 || lease.Fence() != fence || !isHeld(t, c, "a") {
			t.Errorf("%d renewals, fence %v, held %v", n, lease.Fence(), isHeld(t, c, "a"))
		}
		broken.Store(false)
		release(t, lease)
		if isHeld(t, c, "a") {
			t.Error("the second release did not free the lock")
		}
		release(t, lease)
	})
}

// D13: five states, five answers.
func TestReleaseTellsStatesApart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		var down atomic.Bool
		refuse := func() error {
			if down.Load() {
				return errNetwork
			}
			return nil
		}
		c.onRelease = func(ctx context.Context, _ int, _ piton.Grant, call releaseCall) error {
			return errors.Join(refuse(), call(ctx))
		}
		c.onRenew = func(context.Context, int, piton.Grant, renewCall) (piton.Grant, error) {
			return piton.Grant{}, errNetwork
		}
		l, other := newLocker(t, c), newLocker(t, c.Coordinator)

		mine := acquire(t, l, "mine")
		expired, taken, unreachable := acquire(t, l, "expired"), acquire(t, l, "taken"), acquire(t, l, "unreachable")
		release(t, mine)
		down.Store(true)
		if err := unreachable.Release(t.Context()); !errors.Is(err, piton.ErrUnavailable) || errors.Is(err, piton.ErrLost) {
			t.Errorf("coordinator down: %v", err)
		}
		down.Store(false)
		if _, err := c.Break(t.Context(), "taken", taken.Token()); err != nil {
			t.Fatal(err)
		}
		next := acquire(t, other, "taken")
		var lost *piton.LostError
		if err := taken.Release(t.Context()); !errors.As(err, &lost) || lost.Reason != piton.ReasonTaken || lost.By != next.Token() {
			t.Errorf("taken: %v", err)
		}
		<-expired.Done()
		pass(ttl)
		if err := expired.Release(t.Context()); !errors.As(err, &lost) || lost.Reason == piton.ReasonTaken {
			t.Errorf("expired: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		gone := acquire(t, l, "gone")
		c.onRelease = func(ctx context.Context, _ int, _ piton.Grant, call releaseCall) error {
			hang(time.Second)
			return call(ctx)
		}
		if err := gone.Release(ctx); !errors.Is(err, piton.ErrUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
		pass(2 * time.Second)
		if isHeld(t, c, "gone") {
			t.Error("the release was not sent")
		}
		release(t, next)
	})
}

// D14: a late release of one grant leaves the next one alone.
func TestALateReleaseLeavesTheNextGrantAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		c.onRenew = func(context.Context, int, piton.Grant, renewCall) (piton.Grant, error) {
			return piton.Grant{}, errNetwork
		}
		l := newLocker(t, c)
		first := acquire(t, l, "a")
		second := acquire(t, l, "a") // when the first has expired
		if err := first.Release(t.Context()); !errors.Is(err, piton.ErrLost) {
			t.Errorf("the first release: %v", err)
		}
		if held, ok, _ := c.Get(t.Context(), "a"); !ok || held.Token != second.Token() {
			t.Errorf("held by %+v; want token %d", held, second.Token())
		}
		release(t, second)
	})
}

// D41: a release while a renewal is on the wire.
func TestReleaseWhileARenewalIsOnTheWire(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		c.onRenew = func(ctx context.Context, n int, _ piton.Grant, call renewCall) (piton.Grant, error) {
			hang(150 * time.Millisecond)
			g, err := call(context.WithoutCancel(ctx))
			hang(150 * time.Millisecond)
			if n%10 == 0 {
				hang(time.Second)
			}
			return g, err
		}
		var lost atomic.Int64
		l := newLocker(t, c, piton.WithTTL(2*time.Second), piton.WithHeartbeat(300*time.Millisecond), piton.WithObserver(func(e piton.Event) {
			if e.Kind == piton.EventLost {
				lost.Add(1)
			}
		}))
		for n := range 500 {
			lease := acquire(t, l, "a")
			pass(300*time.Millisecond + time.Duration(n%31)*10*time.Millisecond)
			release(t, lease)
			if isHeld(t, c, "a") {
				t.Fatal("held after the release")
			}
			pass(400 * time.Millisecond)
			if isHeld(t, c, "a") {
				t.Fatal("a late renewal revived the grant")
			}
			if lease.Err() != piton.ErrReleased {
				t.Fatal(lease.Err())
			}
		}
		if lost.Load() > 0 {
			t.Errorf("%d losses were signalled", lost.Load())
		}
	})
}

// D34: a slow coordinator, many cycles: nothing piles up.
func TestASlowCoordinatorLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		slow := func() { hang(3 * time.Second) }
		c.onAcquire = func(ctx context.Context, _ int, _ piton.Request, call acquireCall) (piton.Grant, error) {
			slow()
			return call(context.WithoutCancel(ctx))
		}
		c.onRenew = func(ctx context.Context, _ int, _ piton.Grant, call renewCall) (piton.Grant, error) {
			slow()
			return call(context.WithoutCancel(ctx))
		}
		c.onRelease = func(ctx context.Context, _ int, _ piton.Grant, call releaseCall) error {
			slow()
			return call(context.WithoutCancel(ctx))
		}
		l := newLocker(t, c, piton.WithHeartbeat(500*time.Millisecond))
		before, most := runtime.NumGoroutine(), 0
		for n := range 200 {
			lease := acquire(t, l, fmt.Sprint("name ", n%20))
			pass(2 * time.Second)
			most = max(most, runtime.NumGoroutine())
			if err := lease.Release(t.Context()); err != nil && !errors.Is(err, piton.ErrLost) {
				t.Fatal(err)
			}
		}
		if most > before+20 {
			t.Errorf("up to %d goroutines, %d before", most, before)
		}
	})
}
