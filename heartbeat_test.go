package piton_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pitonlock/piton"
)

const ttl = 30 * time.Second

func TestHeartbeatKeepsTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		lease := acquire(t, newLocker(t, c), "a")
		token := lease.Token()
		lowest := ttl
		for range 600 {
			pass(time.Second)
			lowest = min(lowest, remaining(t, c, "a"))
		}
		if err := lease.Err(); err != nil || lease.Token() != token {
			t.Fatalf("after ten minutes: %v, token %d, was %d", err, lease.Token(), token)
		}
		if lowest < 20*time.Second {
			t.Errorf("the grant had only %v left at one time; want two thirds of %v", lowest, ttl)
		}
		if n := c.count(&c.renewals); n != 60 && n != 59 {
			t.Errorf("%d renewals in ten minutes; want one each 10 s", n)
		}
		release(t, lease)
	})
}

// D02: the signal doesn't wait for a call that hangs.
func TestLossIsSignalledWhileTheRenewalHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		c.onRenew = func(context.Context, int, piton.Grant, renewCall) (piton.Grant, error) {
			hang(5 * time.Minute)
			return piton.Grant{}, errNetwork
		}
		holder, contender := newLocker(t, c), newLocker(t, c.Coordinator)
		lease := acquire(t, holder, "a")
		granted := make(chan time.Time, 1)
		go func() {
			next := acquire(t, contender, "a")
			granted <- time.Now()
			release(t, next)
		}()
		took, lost := lostAfter(t, lease)
		ended := time.Now()
		if lost.Reason != piton.ReasonExpired || took >= ttl || took < ttl-time.Second {
			t.Errorf("lost after %v: %v; want expired just before %v", took, lost, ttl)
		}
		if at := <-granted; !at.After(ended) {
			t.Errorf("the contender was granted %v before the holder's end", ended.Sub(at))
		}
	})
}

// D03 (d): every renewal fails; the work ends early, at two thirds of the TTL.
func TestTwoFailedHeartbeatsEndTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		c.onRenew = func(context.Context, int, piton.Grant, renewCall) (piton.Grant, error) {
			return piton.Grant{}, errNetwork
		}
		lease := acquire(t, newLocker(t, c), "a")
		took, lost := lostAfter(t, lease)
		if took != 20*time.Second || lost.Reason != piton.ReasonRenewal || !errors.Is(lost, errNetwork) {
			t.Errorf("lost after %v: %v; want at 20s by two failed heartbeats, with the driver's error", took, lost)
		}
	})
}

// D03 (a-c): one failure is not a loss, and is tried again within a second.
func TestOneFailedRenewalChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		var failed, retried atomic.Pointer[time.Time]
		c.onRenew = func(ctx context.Context, n int, _ piton.Grant, call renewCall) (piton.Grant, error) {
			now := time.Now()
			if n%3 == 1 {
				failed.Store(&now)
				return piton.Grant{}, errNetwork
			}
			if n == 2 {
				retried.Store(&now)
			}
			return call(ctx)
		}
		lease := acquire(t, newLocker(t, c), "a")
		token := lease.Token()
		pass(15 * time.Second)
		if gap := retried.Load().Sub(*failed.Load()); gap > time.Second {
			t.Errorf("the next try came after %v; want 1s or less", gap)
		}
		pass(10 * time.Minute)
		if lease.Err() != nil || lease.Token() != token {
			t.Errorf("the lease is %v with token %d, was %d", lease.Err(), lease.Token(), token)
		}
		release(t, lease)
	})
}

// A whole heartbeat fails, by errors or by hanging, and the next one succeeds.
func TestOneFailedHeartbeatChangesNothing(t *testing.T) {
	for name, fail := range map[string]func(){"errors": func() {}, "hangs": func() { hang(time.Hour) }} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newTap()
				start := time.Now()
				c.onRenew = func(ctx context.Context, _ int, _ piton.Grant, call renewCall) (piton.Grant, error) {
					if beat := int(time.Since(start) / (ttl / 3)); beat%2 == 1 {
						fail()
						return piton.Grant{}, errNetwork
					}
					return call(ctx)
				}
				lease := acquire(t, newLocker(t, c), "a")
				pass(10 * time.Minute)
				if err := lease.Err(); err != nil {
					t.Error(err)
				}
				release(t, lease)
			})
		})
	}
}

func TestNotYoursEndsTheLeaseAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		lease := acquire(t, newLocker(t, c), "a")
		if ok, err := c.Break(t.Context(), "a", lease.Token()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		other := acquire(t, newLocker(t, c.Coordinator), "a")
		took, lost := lostAfter(t, lease)
		if took != ttl/3 || lost.Reason != piton.ReasonTaken || lost.By != other.Token() {
			t.Errorf("lost after %v: %v; want at the first heartbeat, taken by token %d", took, lost, other.Token())
		}
		release(t, other)
	})
}

// A grant that is gone although its time is not over did not expire: somebody
// broke it, or the coordinator forgot it.
func TestAMissingGrantIsNotCalledExpired(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		l := newLocker(t, c)
		lease := acquire(t, l, "a")
		if ok, err := c.Break(t.Context(), "a", lease.Token()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if took, lost := lostAfter(t, lease); took != ttl/3 || lost.Reason != piton.ReasonMissing {
			t.Errorf("lost after %v: %v; want at the first heartbeat, %q", took, lost, piton.ReasonMissing)
		}
	})
}

// A success that comes after its attempt was given up still counts from when it was sent.
func TestALateSuccessCounts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		c.onRenew = func(ctx context.Context, n int, _ piton.Grant, call renewCall) (piton.Grant, error) {
			g, err := call(ctx)
			if n <= 2 {
				hang(ttl/3 + time.Second)
			}
			return g, err
		}
		lease := acquire(t, newLocker(t, c), "a")
		pass(2*ttl/3 + 2*time.Second) // sent at 10 s, answered at 21 s
		left := time.Until(lease.Until())
		if want := 18 * time.Second; left < want-time.Second || left > want {
			t.Errorf("%v left at 22 s; want the TTL from the sending at 10 s, %v with the margin", left, want)
		}
		release(t, lease)
		pass(ttl)
	})
}

// D17: the machine slept; timers stood still, the lease did not.
func TestSleepOfTheMachineEndsTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var slept atomic.Int64
		start := time.Now()
		boot := func() (time.Duration, bool) { return time.Since(start) + time.Duration(slept.Load()), true }
		c := newTap()
		l := newLocker(t, c, piton.WithBootClock(boot), piton.WithTTL(10*time.Second))
		lease := acquire(t, l, "a")
		slept.Store(int64(time.Minute))
		if took, lost := lostAfter(t, lease); took > time.Second || lost.Reason != piton.ReasonExpired {
			t.Errorf("signalled %v after waking up: %v; want within 1s", took, lost)
		}
		next := acquire(t, l, "b")
		slept.Store(int64(time.Hour))
		if err := next.Err(); !errors.Is(err, piton.ErrLost) {
			t.Errorf("right after waking up Err is %v; want lost", err)
		}
	})
}

// LostIsFinal
func TestALostLeaseStaysLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		hold := make(chan struct{})
		c.onRenew = func(ctx context.Context, _ int, _ piton.Grant, call renewCall) (piton.Grant, error) {
			<-hold
			return call(context.WithoutCancel(ctx))
		}
		lease := acquire(t, newLocker(t, c), "a")
		_, lost := lostAfter(t, lease)
		close(hold) // the coordinator, whose clock has 2 % more to go, renews after all
		pass(time.Second)
		if lease.Err() != error(lost) || lease.Until().After(time.Now()) {
			t.Errorf("after the late renewal Err is %v until %v", lease.Err(), lease.Until())
		}
		if err := lease.Release(t.Context()); err != error(lost) {
			t.Errorf("Release says %v; want the loss", err)
		}
		pass(ttl)
	})
}

// D34: however slow the coordinator is, what hangs is bounded.
func TestManyLeasesNeedNoGoroutineEach(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		l := newLocker(t, c)
		const leases = 500
		held := make([]*piton.Lease, leases)
		before := runtime.NumGoroutine()
		for i := range held {
			held[i] = acquire(t, l, "lock "+time.Duration(i).String())
		}
		most := 0
		for range 300 {
			pass(100 * time.Millisecond)
			most = max(most, runtime.NumGoroutine())
		}
		if most > before+70 {
			t.Errorf("up to %d goroutines for %d leases, %d before", most, leases, before)
		}
		for _, lease := range held {
			if lease.Err() != nil {
				t.Fatal(lease.Err())
			}
			release(t, lease)
		}
	})
}

// Renewals that hang don't keep those of other leases from being sent.
func TestHungRenewalsHoldUpNoOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		c.onRenew = func(ctx context.Context, _ int, g piton.Grant, call renewCall) (piton.Grant, error) {
			if g.Lock != "good" {
				hang(time.Hour)
			}
			return call(ctx)
		}
		l := newLocker(t, c)
		for i := range 100 {
			acquire(t, l, "hung "+time.Duration(i).String())
		}
		good := acquire(t, l, "good")
		pass(5 * time.Minute)
		if err := good.Err(); err != nil {
			t.Error(err)
		}
		release(t, good)
	})
}

type batcher struct {
	*tap
	sizes chan int
	drop  func(call int) bool
	calls atomic.Int64
}

func (b *batcher) RenewBatch(ctx context.Context, grants []piton.Grant) []piton.RenewResult {
	b.sizes <- len(grants)
	results := make([]piton.RenewResult, len(grants))
	fail := b.drop != nil && b.drop(int(b.calls.Add(1)))
	for i, g := range grants {
		if fail {
			results[i].Err = errNetwork
			continue
		}
		results[i].Grant, results[i].Err = b.Coordinator.Renew(ctx, g)
	}
	return results
}

func TestRenewalsGoInBatches(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := &batcher{tap: newTap(), sizes: make(chan int, 10_000), drop: func(n int) bool { return n == 2 }}
		l := newLocker(t, c)
		const leases = 1000
		held := make([]*piton.Lease, leases)
		for i := range held {
			held[i] = acquire(t, l, "lock "+time.Duration(i).String())
			pass(time.Millisecond / 2)
		}
		if _, err := c.Break(t.Context(), held[7].Fence().Lock, held[7].Token()); err != nil {
			t.Fatal(err)
		}
		pass(10 * ttl)
		for i, lease := range held {
			if err := lease.Err(); (err != nil) != (i == 7) {
				t.Fatalf("lease %d: %v", i, err)
			}
			if i != 7 {
				release(t, lease)
			}
		}
		close(c.sizes)
		calls, sum := 0, 0
		for n := range c.sizes {
			calls, sum = calls+1, sum+n
			if n > 250 {
				t.Errorf("a batch of %d; want 250 at most", n)
			}
		}
		if sum < 29*leases || calls > sum/50 {
			t.Errorf("%d renewals in %d batches", sum, calls)
		}
	})
}
