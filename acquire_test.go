package piton_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitonlock/piton"
)

// UnknownIsNotNo: the grant is there, its reply is not.
func TestALostReplyIsAskedForAgainUnderTheSameHolder(t *testing.T) {
	for name, wait := range map[string]bool{"Acquire": true, "TryAcquire": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newTap()
				holders := map[string]bool{}
				c.onAcquire = func(ctx context.Context, n int, r piton.Request, call acquireCall) (piton.Grant, error) {
					holders[r.Holder] = true
					g, err := call(ctx)
					if n == 1 {
						return piton.Grant{}, errNetwork
					}
					return g, err
				}
				l := newLocker(t, c)
				take := l.TryAcquire
				if wait {
					take = l.Acquire
				}
				lease, err := take(t.Context(), "a")
				if err != nil || lease.Token() != 1 || len(holders) != 1 {
					t.Fatalf("%v, %d holder ids; want the first grant under one id", err, len(holders))
				}
				release(t, lease)
			})
		})
	}
}

func TestAnUnreachableCoordinatorIsNotHeld(t *testing.T) {
	fails := map[string]func(){"refuses": func() {}, "hangs": func() { hang(time.Hour) }}
	for name, fail := range fails {
		for _, wait := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s,wait=%v", name, wait), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					c := newTap()
					c.onAcquire = func(context.Context, int, piton.Request, acquireCall) (piton.Grant, error) {
						fail()
						return piton.Grant{}, errNetwork
					}
					l := newLocker(t, c)
					take := l.TryAcquire
					if wait {
						take = l.Acquire
					}
					start := time.Now()
					_, err := take(t.Context(), "a")
					if !errors.Is(err, piton.ErrUnavailable) || errors.Is(err, piton.ErrHeld) {
						t.Errorf("%v; want ErrUnavailable", err)
					}
					if name == "refuses" && !errors.Is(err, errNetwork) {
						t.Errorf("%v hides the driver's error", err)
					}
					if took := time.Since(start); took > 11*time.Second {
						t.Errorf("it took %v", took)
					}
				})
			})
		}
	}
}

// A deadline that is shorter than the patience with a silent coordinator.
func TestADeadlineDuringAnOutageSaysBoth(t *testing.T) {
	fails := map[string]func(){"refuses": func() {}, "hangs": func() { hang(time.Hour) }}
	for name, fail := range fails {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newTap()
				c.onAcquire = func(context.Context, int, piton.Request, acquireCall) (piton.Grant, error) {
					fail()
					return piton.Grant{}, errNetwork
				}
				bound := 20 * time.Millisecond
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				defer cancel()
				start := time.Now()
				_, err := newLocker(t, c).Acquire(ctx, "a")
				if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, piton.ErrUnavailable) || errors.Is(err, piton.ErrHeld) {
					t.Errorf("%v; want the deadline and ErrUnavailable", err)
				}
				if name == "refuses" && !errors.Is(err, errNetwork) {
					t.Errorf("%v hides the driver's error", err)
				}
				if took := time.Since(start); took != bound {
					t.Errorf("it took %v; want %v", took, bound)
				}
			})
		})
	}
}

// Somebody who waits for a lock is not sent away by a coordinator that restarts.
func TestAWaiterSitsOutAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		start := time.Now()
		c.onAcquire = func(ctx context.Context, _ int, _ piton.Request, call acquireCall) (piton.Grant, error) {
			if since := time.Since(start); since > time.Second && since < 20*time.Second {
				return piton.Grant{}, errNetwork
			}
			return call(ctx)
		}
		first := acquire(t, newLocker(t, c.Coordinator), "a")
		waiter := newLocker(t, c)
		got := make(chan *piton.Lease)
		go func() { got <- acquire(t, waiter, "a") }()
		pass(5 * time.Second)
		release(t, first)
		second := <-got
		if since := time.Since(start); since < 20*time.Second || since > 22*time.Second {
			t.Errorf("granted after %v; want soon after the outage's end at 20s", since)
		}
		release(t, second)
	})
}

// D04: the caller is gone while the request is on the wire.
func TestACancelledAcquireLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		c.onAcquire = func(ctx context.Context, _ int, _ piton.Request, call acquireCall) (piton.Grant, error) {
			hang(200 * time.Millisecond)
			g, err := call(context.WithoutCancel(ctx)) // the server does not know that nobody waits
			hang(200 * time.Millisecond)
			return g, err
		}
		l, other := newLocker(t, c, piton.WithTTL(5*time.Second)), newLocker(t, c.Coordinator)
		for n := range 200 {
			lock := fmt.Sprintf("a%d", n)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond+rand.N(250*time.Millisecond))
			_, err := l.Acquire(ctx, lock)
			late := time.Now()
			if deadline, _ := ctx.Deadline(); late.Sub(deadline) > 50*time.Millisecond {
				t.Fatalf("returned %v after the cancellation", late.Sub(deadline))
			}
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			lease, err := other.Acquire(ctx, lock)
			cancel()
			if err != nil {
				t.Fatalf("another one, a second later: %v", err)
			}
			release(t, lease)
			pass(500 * time.Millisecond)
			if isHeld(t, c, lock) {
				t.Fatal("the cancelled attempt was granted after its clean-up")
			}
		}
		synctest.Wait()
		if n := c.count(&c.renewals); n != 0 {
			t.Errorf("%d renewals of leases that nobody has", n)
		}
	})
}

// An attempt that hangs, then an answer that another holder has the lock: what the
// first attempt is granted later is given back, too.
func TestALateGrantAfterHeldIsGivenBack(t *testing.T) {
	for name, wait := range map[string]bool{"Acquire": true, "TryAcquire": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newTap()
				c.onAcquire = func(ctx context.Context, n int, _ piton.Request, call acquireCall) (piton.Grant, error) {
					if n == 1 {
						hang(20 * time.Second) // the other holder has released meanwhile
					}
					return call(context.WithoutCancel(ctx))
				}
				first := acquire(t, newLocker(t, c.Coordinator), "a")
				l := newLocker(t, c)
				if !wait {
					if _, err := l.TryAcquire(t.Context(), "a"); !errors.Is(err, piton.ErrHeld) {
						t.Errorf("got %v", err)
					}
				} else {
					ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
					defer cancel()
					if _, err := l.Acquire(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("got %v", err)
					}
				}
				release(t, first)
				pass(30 * time.Second)
				if isHeld(t, c, "a") {
					t.Error("the lock is held by nobody")
				}
			})
		})
	}
}

func TestHeldSaysByWhom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		lease := acquire(t, newLocker(t, c, piton.WithOwner("db-1, process 7")), "a")
		_, err := newLocker(t, c).TryAcquire(t.Context(), "a")
		var held *piton.HeldError
		if !errors.As(err, &held) || held.Owner != "db-1, process 7" || held.Token != lease.Token() || held.Remaining != ttl {
			t.Errorf("got %v", err)
		}
		if errors.Is(err, piton.ErrUnavailable) {
			t.Errorf("%v is said to be an outage", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = newLocker(t, c).Acquire(ctx, "a")
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, piton.ErrHeld) {
			t.Errorf("after a minute's wait: %v; want the deadline, not a refusal", err)
		}
		release(t, lease)
	})
}

// pollOnly hides that a coordinator can wake waiters up.
type pollOnly struct{ piton.Coordinator }

func TestWaitingIsNotABusyLoop(t *testing.T) {
	for name, push := range map[string]bool{"with hints": true, "by polling": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newTap()
				first := acquire(t, newLocker(t, c.Coordinator), "a")
				var waiting piton.Coordinator = c
				if !push {
					waiting = pollOnly{c}
				}
				l := newLocker(t, waiting)
				got := make(chan *piton.Lease)
				go func() { got <- acquire(t, l, "a") }()
				pass(5 * time.Minute)
				asked := c.count(&c.acquires)
				if most := map[bool]int{true: 65, false: 2200}[push]; asked > most {
					t.Errorf("asked %d times in five minutes; want at most %d", asked, most)
				}
				start := time.Now()
				release(t, first)
				second := <-got
				if took := time.Since(start); push && took > 0 || took > 300*time.Millisecond {
					t.Errorf("granted %v after the release", took)
				}
				release(t, second)
			})
		})
	}
}

// A push is only a hint: one that is lost costs no more than the lease it stood for.
type deafWatcher struct{ *tap }

func (deafWatcher) Watch(context.Context, string) (<-chan struct{}, func(), error) {
	return make(chan struct{}), func() {}, nil
}

func TestALostHintIsMadeUpFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := deafWatcher{newTap()}
		// The holder crashes: nobody renews, nobody releases.
		if _, err := c.Coordinator.Acquire(t.Context(), piton.Request{Lock: "a", Holder: "crashed", TTL: ttl}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		release(t, acquire(t, newLocker(t, c), "a"))
		if took := time.Since(start); took != ttl {
			t.Errorf("granted after %v; want %v, when the crashed holder's lease is over", took, ttl)
		}
	})
}

// lateWatcher subscribes only when the lock has just been released.
type lateWatcher struct {
	*tap
	release func()
}

func (w lateWatcher) Watch(ctx context.Context, lock string) (<-chan struct{}, func(), error) {
	w.release()
	return w.Coordinator.Watch(ctx, lock)
}

func TestAReleaseBeforeTheSubscriptionIsNotMissed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		first := acquire(t, newLocker(t, c), "a")
		start := time.Now()
		lease := acquire(t, newLocker(t, lateWatcher{c, func() { release(t, first) }}), "a")
		if took := time.Since(start); took > 0 {
			t.Errorf("granted %v after the release", took)
		}
		release(t, lease)
	})
}

// lined is a coordinator with a queue of its own that says when to look.
type lined struct {
	*tap
	looks   chan time.Duration
	queued  atomic.Int64
	stopped atomic.Int64
}

func (l *lined) Queue(ctx context.Context, r piton.Request) (piton.Grant, error) {
	l.queued.Add(1)
	return l.Acquire(ctx, r)
}

func (l *lined) Turns(context.Context, string, string) (<-chan time.Duration, func(), error) {
	return l.looks, func() { l.stopped.Add(1) }, nil
}

// What the coordinator's queue says decides when to look, and no less than the end
// of the lease that is waited for.
func TestAQueueSaysWhenToLook(t *testing.T) {
	for name, test := range map[string]struct {
		told []time.Duration
		want time.Duration
	}{
		"your turn":       {[]time.Duration{0}, 0},
		"look in between": {[]time.Duration{time.Second}, time.Second},
		"the earlier":     {[]time.Duration{time.Hour, 3 * time.Second}, 3 * time.Second},
		"nothing":         {nil, ttl},
		"too late":        {[]time.Duration{time.Hour}, ttl},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := &lined{tap: newTap(), looks: make(chan time.Duration)}
				crashed, err := c.Coordinator.Acquire(t.Context(), piton.Request{Lock: "a", Holder: "crashed", TTL: ttl})
				if err != nil {
					t.Fatal(err)
				}
				l := newLocker(t, c)
				got := make(chan *piton.Lease)
				go func() { got <- acquire(t, l, "a") }()
				synctest.Wait()
				if len(test.told) > 0 { // otherwise it ends by itself
					if err := c.Coordinator.Release(t.Context(), crashed); err != nil {
						t.Fatal(err)
					}
				}
				if name == "too late" {
					_, err := c.Coordinator.Acquire(t.Context(), piton.Request{Lock: "a", Holder: "crashed", TTL: ttl})
					if err != nil {
						t.Fatal(err)
					}
				}
				start := time.Now()
				for _, look := range test.told {
					c.looks <- look
				}
				lease := <-got
				if took := time.Since(start); took != test.want {
					t.Errorf("granted after %v; want %v", took, test.want)
				}
				if c.queued.Load() == 0 || c.stopped.Load() != 1 {
					t.Errorf("%d looks by Queue, %d subscriptions ended", c.queued.Load(), c.stopped.Load())
				}
				release(t, lease)
			})
		})
	}
}

// Whoever stops waiting gives its place back, whatever the reason.
func TestAPlaceInTheQueueIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := &lined{tap: newTap(), looks: make(chan time.Duration)}
		first := acquire(t, newLocker(t, c), "a")
		gaveUp := make(chan piton.Grant, 1)
		c.onRelease = func(ctx context.Context, _ int, g piton.Grant, call releaseCall) error {
			if g.Token == 0 {
				gaveUp <- g
			}
			return call(ctx)
		}
		waiter := newLocker(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := waiter.Acquire(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if g := <-gaveUp; g.Lock != "a" || g.Holder == "" || g.Holder == first.Fence().Holder {
			t.Errorf("given up: %+v", g)
		}
		release(t, first)
	})
}

func TestWaitersOfOneProcessAreServedInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		l := newLocker(t, c)
		first := acquire(t, l, "a")
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for n := range 50 {
			all.Go(func() {
				ctx := t.Context()
				if n%10 == 3 { // some give up
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, time.Second)
					defer cancel()
				}
				err := l.Do(ctx, "a", func(context.Context, *piton.Lease) error {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, n)
					return nil
				})
				if (err != nil) != (n%10 == 3) {
					t.Errorf("waiter %d: %v", n, err)
				}
			})
			synctest.Wait()
		}
		pass(2 * time.Second)
		before := c.count(&c.acquires)
		release(t, first)
		all.Wait()
		for i := 1; i < len(order); i++ {
			if order[i] < order[i-1] {
				t.Fatalf("served in the order %v", order)
			}
		}
		if len(order) != 45 {
			t.Errorf("%d of 45 were served", len(order))
		}
		if asked := c.count(&c.acquires) - before; asked > 100 {
			t.Errorf("asked %d times for 45 grants", asked)
		}
	})
}

// D10: a waiter whose context has ended never gets a lease, and nobody waits for it.
func TestAWaiterThatGaveUpIsPassedOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		a := acquire(t, newLocker(t, c), "a")
		start := time.Now()
		b, third := newLocker(t, c), newLocker(t, c)
		var all sync.WaitGroup
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
			defer cancel()
			if _, err := b.Acquire(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 6050*time.Millisecond {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		})
		all.Go(func() {
			pass(time.Second)
			lease := acquire(t, third, "a")
			if since := time.Since(start); since > 11*time.Second || lease.Token() <= a.Token() {
				t.Errorf("granted after %v with token %d", since, lease.Token())
			}
			release(t, lease)
		})
		pass(10 * time.Second)
		release(t, a)
		all.Wait()
	})
}

// D15: who holds is known by a new random id each time, never by names of machines.
func TestHolderIdsAreNewEachTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		seen := map[string]bool{}
		l, twin := newLocker(t, c, piton.WithOwner("same")), newLocker(t, c, piton.WithOwner("same"))
		for range 200 {
			lease := acquire(t, l, "a")
			if _, err := twin.TryAcquire(t.Context(), "a"); !errors.Is(err, piton.ErrHeld) {
				t.Fatalf("a twin with the same owner label got %v", err)
			}
			if id := lease.Fence().Holder; len(id) != 32 || seen[id] {
				t.Fatalf("holder id %q", id)
			}
			seen[lease.Fence().Holder] = true
			release(t, lease)
		}
	})
}

func TestBadNamesAreRefusedBeforeAnythingIsSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		l := newLocker(t, c)
		for _, name := range []string{"", "a\x00b", "\xff", string(make([]byte, 513))} {
			if _, err := l.TryAcquire(t.Context(), name); err == nil || err.Error() != piton.ValidateLock(name).Error() {
				t.Errorf("%q: %v", name, err)
			}
		}
		if n := c.count(&c.acquires); n > 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
}

// A driver that breaks its contract must not make a lease out of nothing.
func TestAnAnswerThatIsNoGrantIsNotTaken(t *testing.T) {
	for name, spoil := range map[string]func(*piton.Grant){
		"empty":          func(g *piton.Grant) { *g = piton.Grant{} },
		"token 0":        func(g *piton.Grant) { g.Token = 0 },
		"token too big":  func(g *piton.Grant) { g.Token = piton.MaxToken + 1 },
		"another lock":   func(g *piton.Grant) { g.Lock = "b" },
		"another holder": func(g *piton.Grant) { g.Holder = "x" },
		"no time":        func(g *piton.Grant) { g.TTL = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newTap()
				c.onAcquire = func(ctx context.Context, _ int, _ piton.Request, call acquireCall) (piton.Grant, error) {
					g, err := call(ctx)
					spoil(&g)
					return g, err
				}
				if _, err := newLocker(t, c).Acquire(t.Context(), "a"); !errors.Is(err, piton.ErrUnavailable) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

func TestCoordinatorsThatHangDoNotHoldUpCancellation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		var hung atomic.Int64
		c.onAcquire = func(ctx context.Context, _ int, _ piton.Request, call acquireCall) (piton.Grant, error) {
			hung.Add(1)
			hang(time.Hour)
			return call(ctx)
		}
		l := newLocker(t, c)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errors.New("enough")) })
		start := time.Now()
		_, err := l.Acquire(ctx, "a")
		if err == nil || err.Error() != `piton: acquiring lock "a": enough` || time.Since(start) != time.Second {
			t.Errorf("after %v: %v; want the cause, at once", time.Since(start), err)
		}
	})
}
