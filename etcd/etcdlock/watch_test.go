package etcdlock_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
)

func watching(t *testing.T, c client, lock string) (<-chan struct{}, func()) {
	t.Helper()
	hints, stop, err := c.Watch(t.Context(), lock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return hints, stop
}

// wantNoHint gives a hint that should not come time to come.
func wantNoHint(t *testing.T, hints <-chan struct{}, of string) {
	t.Helper()
	select {
	case <-hints:
		t.Errorf("a hint of %s", of)
	case <-time.After(300 * time.Millisecond):
	}
}

// Every way in which a lock ends is told, and nothing else.
func TestEndsAreTold(t *testing.T) {
	c, _ := fresh(t)
	hints, stop := watching(t, c, "a")
	other := grant(t, c, request("a/b", "h"))
	g := grant(t, c, request("a", "h"))
	_, err := c.Renew(t.Context(), g)
	must(t, err)
	r := request("a", "h")
	r.Floor = g.Token
	g = grant(t, c, r)
	must(t, c.Release(t.Context(), other))
	wantNoHint(t, hints, "a grant, a renewal, a lift and another lock's end")
	must(t, c.Release(t.Context(), g))
	wantHint(t, hints)
	g = grant(t, c, request("a", "h"))
	_, err = c.Break(t.Context(), "a", g.Token)
	must(t, err)
	wantHint(t, hints)
	r = request("a", "h")
	r.TTL = time.Second
	grant(t, c, r)
	wantHint(t, hints) // of its expiry
	stop()
	stop()
	must(t, c.Release(t.Context(), grant(t, c, request("a", "h"))))
	wantNoHint(t, hints, "an end after stop")
}

func TestWatchesLeaveNothing(t *testing.T) {
	server := servertest.StartEtcd(t)
	before := runtime.NumGoroutine()
	c, err := connect(server.Endpoint())
	must(t, err)
	var stops []func()
	for range 20 {
		_, stop, err := c.Watch(t.Context(), "a")
		must(t, err)
		stops = append(stops, stop)
	}
	for _, stop := range stops[1:] {
		stop()
	}
	must(t, c.Close()) // with one watch that nobody has stopped
	servertest.Eventually(t, 10*time.Second, func() bool { return runtime.NumGoroutine() <= before }, "the end of the goroutines")
	stops[0]()
}

func TestALostWatchIsMadeAnew(t *testing.T) {
	direct, server := fresh(t)
	c, proxy := behind(t, server.Addr())
	hints, _ := watching(t, c, "a")
	g := grant(t, direct, request("a", "h"))
	proxy.ResetAll()
	must(t, direct.Release(t.Context(), g))
	wantHint(t, hints)
	g = grant(t, direct, request("a", "h"))
	server.Kill(t)
	server.Restart(t)
	must(t, direct.Release(t.Context(), g))
	wantHint(t, hints)
}

func TestWatchEnds(t *testing.T) {
	c, server := fresh(t)
	must(t, c.Release(t.Context(), grant(t, c, request("warm", "h"))))
	server.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, _, err := c.Watch(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 2*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	gone, err := connect(server.Endpoint())
	must(t, err)
	waiting := make(chan error, 1)
	go func() {
		_, _, err := gone.Watch(context.Background(), "a")
		waiting <- err
	}()
	must(t, gone.Close())
	select {
	case err := <-waiting:
		if err == nil {
			t.Error("a watch on a closed client was confirmed")
		}
	case <-time.After(10 * time.Second):
		t.Error("Watch goes on after the end of its client")
	}
	server.Resume(t)
}

// Waiting through piton is by push: the next holder is woken up at once.
func TestWaitersAreWokenUp(t *testing.T) {
	c, server := fresh(t)
	other := open(t, server.Endpoint())
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
}
