package piton_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitonlock/piton"
)

// An observer may call back into the Locker: no lock is held while it is told.
func TestObserversSeeTheLifeOfALease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		c.onRenew = func(ctx context.Context, n int, _ piton.Grant, call renewCall) (piton.Grant, error) {
			if n == 2 || n > 4 {
				return piton.Grant{}, errNetwork
			}
			return call(ctx)
		}
		s := &storage{mark: piton.Fence{Lock: "a", Token: 50, Holder: "x"}}
		var l *piton.Locker
		var mu sync.Mutex
		var seen []piton.EventKind
		observe := func(e piton.Event) {
			mu.Lock()
			seen = append(seen, e.Kind)
			mu.Unlock()
			if e.Lock != "a" || e.Holder == "" {
				t.Errorf("event %+v", e)
			}
			if e.Kind == piton.EventLost || e.Kind == piton.EventReleased {
				return
			}
			if _, err := l.TryAcquire(context.Background(), "a"); err == nil {
				t.Errorf("after %q the lock could be taken", e.Kind)
			}
		}
		var log bytes.Buffer
		l = newLocker(t, c, piton.WithGuards(s), piton.WithObserver(observe), piton.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		first, err := c.Acquire(t.Context(), piton.Request{Lock: "a", Holder: "before", TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		lease := acquire(t, l, "a")
		<-lease.Done()
		if got := lease.Release(t.Context()); !errors.Is(got, piton.ErrLost) {
			t.Errorf("released: %v", got)
		}
		want := []piton.EventKind{
			piton.EventWaiting, piton.EventRepaired, piton.EventAcquired, piton.EventRenewed, piton.EventRenewalFailed, piton.EventRenewed,
			piton.EventLost, piton.EventReleased,
		}
		synctest.Wait() // for those that are still being told
		mu.Lock()
		defer mu.Unlock()
		kinds := slices.Compact(slices.Clone(seen))
		for i, k := range want {
			if !slices.Contains(kinds, k) {
				t.Errorf("no event %q (%d) in %v", k, i, kinds)
			}
		}
		for _, text := range []string{"piton: lost", "piton: repaired", "piton: renewal failed", "lock=a", errNetwork.Error()} {
			if !strings.Contains(log.String(), text) {
				t.Errorf("the log does not say %q:\n%s", text, log.String())
			}
		}
		if first.Token >= lease.Token() {
			t.Errorf("token %d after %d", lease.Token(), first.Token)
		}
	})
}

func TestReleaseFromManyGoroutines(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		l := newLocker(t, c)
		lease := acquire(t, l, "a")
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := c.count(&c.release); n != 1 {
			t.Errorf("%d releases were sent; want 1", n)
		}
	})
}
