package piton_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pitonlock/piton"
)

// storage is a guard in memory.
type storage struct {
	mu     sync.Mutex
	mark   piton.Fence
	seals  []piton.Fence
	before func(ctx context.Context, n int) error
}

func (s *storage) Seal(ctx context.Context, f piton.Fence) error {
	s.mu.Lock()
	s.seals = append(s.seals, f)
	n := len(s.seals)
	s.mu.Unlock()
	if s.before != nil {
		if err := s.before(ctx, n); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Token <= s.mark.Token && f != s.mark {
		return &piton.StaleError{Fence: f, Mark: s.mark}
	}
	s.mark = f
	return nil
}

func TestEveryGuardIsSealedInOrderBeforeTheLeaseIsHandedOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second := &storage{}, &storage{}
		first.before = func(context.Context, int) error { pass(time.Second); return nil }
		second.before = func(ctx context.Context, _ int) error {
			f, ok := piton.FenceFromContext(ctx)
			left, alive := piton.TimeLeft(ctx)
			if !ok || !alive || f.Lock != "a" || left <= 0 || left >= ttl {
				t.Errorf("the seal's context has fence %v, time left %v", f, left)
			}
			if first.mark != f {
				t.Errorf("the first guard has %v when the second is sealed with %v", first.mark, f)
			}
			return nil
		}
		lease := acquire(t, newLocker(t, newTap(), piton.WithGuards(first, second)), "a")
		if first.mark != lease.Fence() || second.mark != lease.Fence() {
			t.Errorf("marks %v and %v; want %v", first.mark, second.mark, lease.Fence())
		}
		release(t, lease)
	})
}

// TokenHeals: the storage remembers what the coordinator forgot.
func TestRepairLiftsTheTokenAboveEveryMark(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second, third := &storage{}, &storage{mark: piton.Fence{Lock: "a", Token: 500, Holder: "x"}}, &storage{mark: piton.Fence{Lock: "a", Token: 900, Holder: "y"}}
		var repaired []error
		c := newTap()
		l := newLocker(t, c, piton.WithGuards(first, second, third), piton.WithObserver(func(e piton.Event) {
			if e.Kind == piton.EventRepaired {
				repaired = append(repaired, e.Err)
			}
		}))
		lease := acquire(t, l, "a")
		if lease.Token() != 901 {
			t.Errorf("token %d; want one above the highest mark, 900", lease.Token())
		}
		for _, s := range []*storage{first, second, third} {
			if s.mark != lease.Fence() {
				t.Errorf("mark %v; want %v", s.mark, lease.Fence())
			}
		}
		if len(repaired) != 2 || !errors.Is(repaired[0], piton.ErrStale) {
			t.Errorf("observed repairs: %v", repaired)
		}
		for _, s := range first.seals {
			if s.Holder != lease.Fence().Holder {
				t.Errorf("the repair used another holder id: %v", s)
			}
		}
		pass(10 * time.Minute) // the heartbeat goes on with the new token
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
		release(t, lease)
	})
}

// A renewal of the old token on the wire while the new one is granted is no loss.
func TestRenewalsWaitForARepair(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		c.onAcquire = func(ctx context.Context, n int, _ piton.Request, call acquireCall) (piton.Grant, error) {
			g, err := call(ctx)
			if n == 2 {
				hang(8 * time.Second)
			}
			return g, err
		}
		c.onRenew = func(ctx context.Context, n int, _ piton.Grant, call renewCall) (piton.Grant, error) {
			if n == 1 {
				hang(3 * time.Second) // sent at 10 s, before the repair, and seen after it
			}
			return call(context.WithoutCancel(ctx))
		}
		s := &storage{mark: piton.Fence{Lock: "a", Token: 50, Holder: "x"}}
		s.before = func(_ context.Context, n int) error {
			if n == 1 {
				pass(12 * time.Second)
			}
			return nil
		}
		lease := acquire(t, newLocker(t, c, piton.WithGuards(s)), "a")
		pass(5 * time.Minute)
		if len(s.seals) != 2 || lease.Err() != nil || s.seals[0].Holder != s.seals[1].Holder {
			t.Errorf("seals %v, lease %v", s.seals, lease.Err())
		}
		release(t, lease)
	})
}

// OneHolderPerToken: the same number of another holder is stale, too.
func TestRepairOfATwin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &storage{mark: piton.Fence{Lock: "a", Token: 1, Holder: "twin"}}
		lease := acquire(t, newLocker(t, newTap(), piton.WithGuards(s)), "a")
		if lease.Token() != 2 || s.mark != lease.Fence() {
			t.Errorf("token %d, mark %v", lease.Token(), s.mark)
		}
		release(t, lease)
	})
}

// A holder that was superseded cannot repair itself back in.
func TestOnlyWhoHoldsIsRepaired(t *testing.T) {
	for name, wait := range map[string]bool{"Acquire": true, "TryAcquire": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newTap()
				other := newLocker(t, c.Coordinator)
				var next *piton.Lease
				s := &storage{mark: piton.Fence{Lock: "a", Token: 10, Holder: "x"}}
				s.before = func(ctx context.Context, n int) error {
					if n == 1 {
						f, _ := piton.FenceFromContext(ctx)
						if ok, err := c.Break(ctx, "a", f.Token); !ok || err != nil {
							t.Errorf("break: %v, %v", ok, err)
						}
						next = acquire(t, other, "a")
						time.AfterFunc(time.Minute, func() { release(t, next) })
					}
					return nil
				}
				l := newLocker(t, c, piton.WithGuards(s))
				if !wait {
					_, err := l.TryAcquire(t.Context(), "a")
					if !errors.Is(err, piton.ErrHeld) {
						t.Errorf("got %v; want held", err)
					}
					pass(2 * time.Minute)
					return
				}
				start := time.Now()
				lease := acquire(t, l, "a")
				if took := time.Since(start); took != time.Minute || lease.Token() <= next.Token() || lease.Token() <= 10 {
					t.Errorf("granted after %v with token %d", took, lease.Token())
				}
				if s.seals[0].Holder == lease.Fence().Holder {
					t.Error("the new acquisition uses the old holder id")
				}
				release(t, lease)
			})
		})
	}
}

func TestAStorageThatCannotBeSealed(t *testing.T) {
	errDisk := errors.New("disk is full")
	for name, s := range map[string]*storage{
		"fails":           {before: func(context.Context, int) error { return errDisk }},
		"absurd mark":     {mark: piton.Fence{Lock: "a", Token: piton.MaxToken - 5, Holder: "x"}},
		"moves each time": nil,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newTap()
				if s == nil {
					s = &storage{}
					s.before = func(context.Context, int) error {
						s.mark.Token += 100
						s.mark.Holder = "x"
						return nil
					}
				}
				_, err := newLocker(t, c, piton.WithGuards(s)).Acquire(t.Context(), "a")
				if want := map[bool]error{true: errDisk, false: piton.ErrStale}[name == "fails"]; !errors.Is(err, want) {
					t.Errorf("got %v; want %v", err, want)
				}
				if _, held, _ := c.Get(t.Context(), "a"); held {
					t.Error("the lock is still held when Acquire has failed")
				}
			})
		})
	}
}

func TestASealThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		s := &storage{before: func(context.Context, int) error { hang(time.Hour); return nil }}
		l := newLocker(t, c, piton.WithGuards(s))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		start := time.Now()
		if _, err := l.Acquire(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		pass(time.Second)
		if _, held, _ := c.Get(t.Context(), "a"); held {
			t.Error("the lock is still held")
		}
		if n := c.count(&c.renewals); n < 10 {
			t.Errorf("%d renewals; the heartbeat should run while storages are sealed", n)
		}
	})
}

// The lease is lost while it is being sealed: it is never handed out.
func TestALeaseLostWhileSealing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		c.onRenew = func(_ context.Context, n int, _ piton.Grant, call renewCall) (piton.Grant, error) {
			if n <= 5 {
				return piton.Grant{}, errNetwork
			}
			return call(context.Background())
		}
		s := &storage{before: func(ctx context.Context, n int) error {
			if n == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		lease := acquire(t, newLocker(t, c, piton.WithGuards(s)), "a")
		if len(s.seals) != 2 || lease.Fence() != s.mark || lease.Err() != nil || s.seals[0].Holder == s.seals[1].Holder {
			t.Errorf("seals %v, lease %v: %v; want a new acquisition", s.seals, lease.Fence(), lease.Err())
		}
		release(t, lease)
	})
}
