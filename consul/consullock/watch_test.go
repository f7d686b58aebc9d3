package consullock_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/faultproxy"
	"github.com/pitonlock/piton/internal/servertest"
)

func watching(t *testing.T, c client, lock string) (<-chan struct{}, func()) {
	t.Helper()
	hints, stop, err := c.Watch(t.Context(), lock)
	must(t, err)
	t.Cleanup(stop)
	return hints, stop
}

// Every way in which a lock ends is told, and while it is held nothing else is.
func TestEndsAreTold(t *testing.T) {
	c, _ := fresh(t)
	g := grant(t, c, request("a", "h"))
	hints, stop := watching(t, c, "a")
	other := grant(t, c, request("a/b", "h"))
	_, err := c.Renew(t.Context(), g)
	must(t, err)
	r := request("a", "h")
	r.Floor = g.Token
	g = grant(t, c, r)
	must(t, c.Release(t.Context(), other))
	select {
	case <-hints:
		t.Error("a hint of a renewal, a lift or another lock's end")
	case <-time.After(300 * time.Millisecond):
	}
	must(t, c.Release(t.Context(), g))
	wantHint(t, hints)
	for _, end := range []func(g piton.Grant) error{
		func(g piton.Grant) error {
			_, err := c.Break(t.Context(), "a", g.Token)
			return err
		},
		func(g piton.Grant) error {
			_, err := c.consul.Session().Destroy(g.Ref, nil)
			return err
		},
		func(piton.Grant) error { return nil }, // its time
	} {
		r := request("b", "h")
		r.TTL = time.Second
		g := grant(t, c, r)
		hints, stop := watching(t, c, "b")
		must(t, end(g))
		wantHint(t, hints)
		stop()
	}
	stop()
	stop()
}

func TestWatchesLeaveNothing(t *testing.T) {
	server := servertest.StartConsul(t)
	before := runtime.NumGoroutine()
	c, err := connect(server.Addr())
	must(t, err)
	var stops []func()
	for range 100 {
		_, stop, err := c.Watch(t.Context(), "a")
		must(t, err)
		stops = append(stops, stop)
	}
	if _, _, err := c.Watch(t.Context(), "a"); err == nil {
		t.Error("a watch too many was begun")
	}
	for _, stop := range stops {
		stop()
	}
	servertest.Eventually(t, 10*time.Second, func() bool {
		must(t, c.Close()) // the connections that are idle by now
		return runtime.NumGoroutine() <= before
	}, "the end of the goroutines")
	_, stop, err := c.Watch(t.Context(), "a")
	must(t, err)
	stop()
}

func TestALostWatchIsMadeAnew(t *testing.T) {
	direct, server := fresh(t)
	proxy := faultproxy.Start(t, server.Addr())
	c := open(t, proxy.Addr())
	g := grant(t, direct, request("a", "h"))
	hints, _ := watching(t, c, "a")
	proxy.ResetAll()
	must(t, direct.Release(t.Context(), g))
	wantHint(t, hints)
	g = grant(t, direct, request("a", "h"))
	server.Kill(t)
	server.Restart(t)
	servertest.Eventually(t, 10*time.Second, func() bool { return direct.Release(t.Context(), g) == nil }, "a release after the restart")
	wantHint(t, hints)
}

// Waiting through piton is by push: the next holder is woken up at once.
func TestWaitersAreWokenUp(t *testing.T) {
	c, server := fresh(t)
	other := open(t, server.Addr())
	holder, err := piton.New(c)
	must(t, err)
	asked := make(chan struct{}, 100)
	waiter, err := piton.New(other, piton.WithObserver(func(e piton.Event) {
		if e.Kind == piton.EventWaiting {
			asked <- struct{}{}
		}
	}))
	must(t, err)
	for range 5 {
		lease, err := holder.Acquire(t.Context(), "a")
		must(t, err)
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
		must(t, lease.Release(t.Context()))
		released := time.Now()
		if took := (<-got).Sub(released); took > 2*time.Second {
			t.Errorf("woken up after %v", took)
		}
	}
	must(t, holder.Close(t.Context()), waiter.Close(t.Context()))
	wantSessions(t, c, 0)
}

func TestWatchEndsWithItsContext(t *testing.T) {
	c, server := fresh(t)
	server.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, _, err := c.Watch(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 2*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	server.Resume(t)
}
