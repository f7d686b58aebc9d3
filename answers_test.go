package piton_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/memlock"
)

// A release that was carried out, and whose answer is lost, is no loss when somebody
// else has the lock by the time it is repeated.
func TestAReleaseWithoutAnswerIsNoLoss(t *testing.T) {
	carriedOut := func(ctx context.Context, n int, g piton.Grant, call releaseCall) error {
		err := call(ctx)
		if n == 1 && err == nil {
			return errNetwork
		}
		return err
	}
	t.Run("Release", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			c := newTap()
			c.onRelease = carriedOut
			lease := acquire(t, newLocker(t, c), "a")
			other := newLocker(t, c)
			got := make(chan *piton.Lease, 1)
			go func() { got <- acquire(t, other, "a") }()
			pass(time.Second)
			release(t, lease)
			release(t, <-got)
			release(t, lease)
		})
	})
	t.Run("Do", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			c := newTap()
			c.onRelease = carriedOut
			other := newLocker(t, c)
			got := make(chan *piton.Lease, 1)
			err := newLocker(t, c).Do(t.Context(), "a", func(context.Context, *piton.Lease) error {
				go func() { got <- acquire(t, other, "a") }()
				pass(time.Second)
				return nil
			})
			if err != nil {
				t.Errorf("the work was done in time; Do says: %v", err)
			}
			release(t, <-got)
		})
	})
	t.Run("after a loss", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			c := newTap()
			lease := acquire(t, newLocker(t, c), "a")
			c.Break(t.Context(), "a", lease.Token())
			other := acquire(t, newLocker(t, c.Coordinator), "a")
			<-lease.Done()
			c.onRelease = func(ctx context.Context, n int, _ piton.Grant, call releaseCall) error {
				if n == 1 {
					return errNetwork
				}
				return call(ctx)
			}
			if err := lease.Release(t.Context()); !errors.Is(err, piton.ErrLost) {
				t.Errorf("release of a lease that was lost before: %v", err)
			}
			release(t, other)
		})
	})
}

// An attempt that had no answer is not forgotten when a later one fails or succeeds:
// what it is granted late is given back.
func TestWhatIsGrantedLateIsGivenBack(t *testing.T) {
	late := func(c *tap, after time.Duration, then error) {
		c.onAcquire = func(ctx context.Context, n int, r piton.Request, call acquireCall) (piton.Grant, error) {
			switch {
			case n == 1:
				hang(after)
				return call(context.Background())
			case then != nil:
				return piton.Grant{}, then
			}
			return call(ctx)
		}
	}
	t.Run("after a failure", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			c := newTap()
			late(c, 15*time.Second, errNetwork)
			if _, err := newLocker(t, c).TryAcquire(t.Context(), "a"); !errors.Is(err, piton.ErrUnavailable) {
				t.Fatal(err)
			}
			pass(16 * time.Second)
			if left := remaining(t, c, "a"); left > 0 {
				t.Errorf("nobody has the lock, and it is held for %v", left)
			}
		})
	})
	t.Run("after the release", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			c := newTap()
			late(c, 8*time.Second, nil)
			release(t, acquire(t, newLocker(t, c), "a"))
			pass(9 * time.Second)
			if left := remaining(t, c, "a"); left > 0 {
				t.Errorf("nobody has the lock, and it is held for %v", left)
			}
		})
	})
	t.Run("while the lease lives", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			c := newTap()
			late(c, 8*time.Second, nil)
			lease := acquire(t, newLocker(t, c), "a")
			pass(2 * ttl)
			if err := lease.Err(); err != nil {
				t.Error(err)
			}
			release(t, lease)
		})
	})
}

// LostBeforeExpired: a renewal that grants less than before shortens the trusted time.
func TestARenewalForLessIsTrustedForLess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		c.onRenew = func(ctx context.Context, n int, g piton.Grant, call renewCall) (piton.Grant, error) {
			if n > 1 {
				<-ctx.Done() // an outage
				return piton.Grant{}, ctx.Err()
			}
			g.TTL = 2 * time.Second
			return c.Coordinator.Renew(ctx, g)
		}
		lease := acquire(t, newLocker(t, c, piton.WithTTL(30*time.Second), piton.WithHeartbeat(time.Second)), "a")
		pass(1001 * time.Millisecond)
		if trusted, left := time.Until(lease.Until()), remaining(t, c, "a"); trusted > left || trusted <= 0 {
			t.Errorf("trusted for %v; the coordinator's lease has %v left", trusted, left)
		}
		pass(2 * time.Second)
		if lease.Err() == nil || remaining(t, c, "a") > 0 {
			t.Error("the lease is trusted beyond the coordinator's end")
		}
		_ = lease.Release(t.Context())
	})
}

// What a renewal answers is looked at as what an acquisition answers.
func TestRenewalsAreChecked(t *testing.T) {
	for name, test := range map[string]struct {
		answer piton.Grant
		kept   bool
	}{
		"no fence":      {piton.Grant{TTL: ttl}, true},
		"another fence": {piton.Grant{Fence: piton.Fence{Lock: "b", Token: 99, Holder: "x"}, TTL: ttl}, true},
		"no time":       {piton.Grant{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newTap()
				c.onRenew = func(ctx context.Context, _ int, _ piton.Grant, call renewCall) (piton.Grant, error) {
					_, err := call(ctx)
					return test.answer, err
				}
				lease := acquire(t, newLocker(t, c), "a")
				fence := lease.Fence()
				pass(2 * ttl)
				if lease.Fence() != fence || (lease.Err() == nil) != test.kept {
					t.Errorf("fence %v after %v, %v", lease.Fence(), fence, lease.Err())
				}
				_ = lease.Release(t.Context())
			})
		})
	}
}

// mute is a coordinator whose push never gets confirmed.
type mute struct{ *tap }

func (m mute) Watch(ctx context.Context, _ string) (<-chan struct{}, func(), error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

func TestWaitingWithoutPushIsPolling(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := mute{newTap()}
		l := newLocker(t, c, piton.WithTTL(30*time.Second))
		lease := acquire(t, l, "a")
		other := newLocker(t, c)
		got := make(chan time.Time, 2)
		for _, waiter := range []*piton.Locker{l, other} {
			go func() {
				release(t, acquire(t, waiter, "a"))
				got <- time.Now()
			}()
		}
		pass(5300 * time.Millisecond)
		freed := time.Now()
		release(t, lease)
		for range 2 {
			if took := (<-got).Sub(freed); took > time.Second {
				t.Errorf("granted %v after the release", took)
			}
		}
	})
}

func TestAnObserverMayReleaseAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		var up atomic.Bool
		c.onRelease = func(ctx context.Context, _ int, _ piton.Grant, call releaseCall) error {
			if !up.Load() {
				return errNetwork
			}
			return call(ctx)
		}
		var lease *piton.Lease
		again := make(chan error, 1)
		l := newLocker(t, c, piton.WithObserver(func(e piton.Event) {
			if e.Kind == piton.EventReleaseFailed && !up.Swap(true) {
				again <- lease.Release(t.Context())
			}
		}))
		lease = acquire(t, l, "a")
		if err := lease.Release(t.Context()); !errors.Is(err, piton.ErrUnavailable) {
			t.Error(err)
		}
		if err := <-again; err != nil {
			t.Errorf("the release from the observer: %v", err)
		}
	})
}

func TestANilOptionIsRefused(t *testing.T) {
	if _, err := piton.New(memlock.New(), piton.WithTTL(time.Second), nil); err == nil {
		t.Error("accepted")
	}
}
