package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func watch(tb testing.TB, c piton.Waiter, lock string) (<-chan struct{}, func()) {
	tb.Helper()
	hints, stop, err := c.Watch(context.Background(), lock)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(stop)
	return hints, stop
}

func TestReleaseAndBreakAreTold(t *testing.T) {
	c, _, server := fresh(t)
	other, _ := open(t, server.Addr())
	for _, lock := range []string{"a", "b{}%"} {
		first, stop := watch(t, c, lock)
		second, _ := watch(t, c, lock)
		g := grant(t, other, request(lock, "h"))
		must(t, other.Release(t.Context(), g))
		wantHint(t, first)
		wantHint(t, second)
		stop()
		stop()
		g = grant(t, other, request(lock, "h2"))
		if ok, err := other.Break(t.Context(), lock, g.Token); !ok || err != nil {
			t.Fatal(ok, err)
		}
		wantHint(t, second)
		select {
		case <-first:
			t.Error("a hint came after stop")
		default:
		}
	}
}

func subscriptions(tb testing.TB, client *redis.Client) []string {
	tb.Helper()
	channels, err := client.PubSubChannels(tb.Context(), "*").Result()
	must(tb, err)
	return channels
}

func TestWatchersShareOneConnection(t *testing.T) {
	c, client, _ := fresh(t)
	before := runtime.NumGoroutine()
	var stops []func()
	for n := range 100 {
		_, stop := watch(t, c, fmt.Sprint(n/2))
		stops = append(stops, stop)
	}
	if list := subscriptions(t, client); len(list) != 50 {
		t.Errorf("%d channels; want 50", len(list))
	}
	clients := client.ClientList(t.Context()).Val()
	if n := strings.Count(clients, "sub=") - strings.Count(clients, "sub=0"); n != 1 {
		t.Errorf("%d subscribed connections:\n%s", n, clients)
	}
	if n := runtime.NumGoroutine(); n > before+10 {
		t.Errorf("%d goroutines for 100 watchers, %d before", n, before)
	}
	for _, stop := range stops {
		stop()
	}
	servertest.Eventually(t, 5*time.Second, func() bool { return len(subscriptions(t, client)) == 0 }, "end of the subscriptions")
	servertest.Eventually(t, 5*time.Second, func() bool { return runtime.NumGoroutine() <= before }, "end of the goroutines")
	hints, _ := watch(t, c, "again")
	must(t, c.Release(t.Context(), grant(t, c, request("again", "h"))))
	wantHint(t, hints)
}

// Subscriptions that come and go at the same time leave the right ones.
func TestSubscriptionsDoNotOvertakeOneAnother(t *testing.T) {
	c, client, _ := fresh(t)
	watch(t, c, "kept") // keeps the connection
	for range 30 {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				_, stop, err := c.Watch(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				stop()
			})
		}
		all.Wait()
		hints, stop := watch(t, c, "a")
		must(t, c.Release(t.Context(), grant(t, c, request("a", "h"))))
		wantHint(t, hints)
		stop()
	}
	servertest.Eventually(t, 5*time.Second, func() bool { return len(subscriptions(t, client)) == 1 }, "end of the subscriptions")
}

// A connection that was lost is made anew, and everybody looks again.
func TestALostSubscriptionIsMadeAnew(t *testing.T) {
	c, client, _ := fresh(t)
	hints, _ := watch(t, c, "a")
	g := grant(t, c, request("a", "h"))
	must(t, client.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
	wantHint(t, hints)
	must(t, c.Release(t.Context(), g))
	wantHint(t, hints)
}

func TestWatchEndsWithItsContext(t *testing.T) {
	c, _, server := fresh(t)
	server.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, _, err := c.Watch(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	server.Resume(t)
	must(t, c.Close())
	if _, _, err := c.Watch(t.Context(), "a"); !errors.Is(err, piton.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Waiting through piton: the next holder is woken up, and does not poll.
func TestWaitersAreWokenUp(t *testing.T) {
	c, _, server := fresh(t)
	holder, err := piton.New(c)
	must(t, err)
	lease, err := holder.Acquire(t.Context(), "a")
	must(t, err)
	other, client := open(t, server.Addr())
	waiter, err := piton.New(other)
	must(t, err)
	got := make(chan time.Time, 1)
	go func() {
		next, err := waiter.Acquire(t.Context(), "a")
		got <- time.Now()
		if err == nil {
			err = next.Release(context.Background())
		}
		if err != nil {
			t.Error(err)
		}
	}()
	servertest.Eventually(t, 5*time.Second, func() bool { return len(subscriptions(t, client)) == 1 }, "the waiter's subscription")
	must(t, lease.Release(t.Context()))
	released := time.Now()
	if took := (<-got).Sub(released); took > time.Second {
		t.Errorf("woken up after %v", took)
	}
	must(t, holder.Close(t.Context()), waiter.Close(t.Context()))
}
