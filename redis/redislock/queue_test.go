package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/redis/redislock"
	"github.com/redis/go-redis/v9"
)

func turns(tb testing.TB, c piton.Queuer, lock, holder string) (<-chan time.Duration, func()) {
	tb.Helper()
	looks, stop, err := c.Turns(context.Background(), lock, holder)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(stop)
	return looks, stop
}

// queued leaves a place in the queue of a lock that is held.
func queued(tb testing.TB, c *redislock.Coordinator, lock, holder string) (looks <-chan time.Duration, stop func()) {
	tb.Helper()
	looks, stop = turns(tb, c, lock, holder)
	if _, err := c.Queue(context.Background(), request(lock, holder)); !errors.Is(err, piton.ErrHeld) {
		tb.Fatalf("queue: %v; want it held", err)
	}
	return looks, stop
}

func wantLook(tb testing.TB, looks <-chan time.Duration, want time.Duration) {
	tb.Helper()
	select {
	case got := <-looks:
		if got != want {
			tb.Errorf("told to look after %v; want %v", got, want)
		}
	case <-time.After(10 * time.Second):
		tb.Error("nothing was told")
	}
}

func wantHeldBy(tb testing.TB, c *redislock.Coordinator, lock string, after piton.Token) piton.Held {
	tb.Helper()
	held, ok, err := c.Get(tb.Context(), lock)
	if err != nil || !ok || held.Token <= after {
		tb.Errorf("get: %+v, %v, %v; want it held by a token above %d", held, ok, err, after)
	}
	return held
}

func TestEndsAreTheNextOnesGrants(t *testing.T) {
	c, client, server := fresh(t)
	other, _ := open(t, server.Addr())
	for _, lock := range []string{"a", "b{}% c"} {
		g := grant(t, c, request(lock, "h"))
		first, _ := queued(t, other, lock, "first "+lock)
		second, _ := queued(t, c, lock, "second "+lock)
		must(t, c.Release(t.Context(), g))
		wantLook(t, first, 0)
		wantLook(t, second, redislock.Claim)
		held := wantHeldBy(t, c, lock, g.Token)
		if held.Remaining > redislock.Claim {
			t.Errorf("%v are left of the time to claim", held.Remaining)
		}
		g, err := other.Queue(t.Context(), request(lock, "first "+lock))
		if err != nil || g.Token != held.Token || g.TTL != time.Minute {
			t.Fatalf("claimed %+v, %v; want token %d for a minute", g, err, held.Token)
		}
		if ok, err := c.Break(t.Context(), lock, g.Token); !ok || err != nil {
			t.Fatal(ok, err)
		}
		wantLook(t, second, 0)
		g, err = c.Queue(t.Context(), request(lock, "second "+lock))
		must(t, err)
		must(t, c.Release(t.Context(), g))
	}
	if keys := client.Keys(t.Context(), "*queue*").Val(); len(keys) > 0 {
		t.Errorf("left: %q", keys)
	}
}

// Who looks again keeps its place, and the queue lives as long as somebody looks.
func TestAPlaceIsKept(t *testing.T) {
	c, client, _ := fresh(t)
	g := grant(t, c, request("a", "h"))
	first, _ := queued(t, c, "a", "first")
	queued(t, c, "a", "second")
	_, err := c.Queue(t.Context(), request("a", "first"))
	if !errors.Is(err, piton.ErrHeld) {
		t.Fatal(err)
	}
	if left := client.PTTL(t.Context(), "piton:{a}:queue").Val(); left < time.Minute || left > 2*time.Minute {
		t.Errorf("the queue lives %v; want a little longer than the lease of a minute", left)
	}
	must(t, client.PExpire(t.Context(), "piton:{a}:lock", time.Second).Err())
	_, err = c.Queue(t.Context(), request("a", "second"))
	if left := client.PTTL(t.Context(), "piton:{a}:queue").Val(); left < 30*time.Second {
		t.Errorf("a look shortened the life of the queue to %v; %v", left, err)
	}
	must(t, c.Release(t.Context(), g))
	wantLook(t, first, 0)
}

// Whoever is gone costs nothing, wherever in the queue.
func TestWhoIsGoneIsPassedOver(t *testing.T) {
	c, client, server := fresh(t)
	g := grant(t, c, request("a", "h"))
	gone, _ := open(t, server.Addr())
	for n := range 30 {
		queued(t, gone, "a", fmt.Sprint("gone ", n))
	}
	first, _ := queued(t, c, "a", "first")
	queued(t, gone, "a", "gone too")
	last, _ := queued(t, c, "a", "last")
	must(t, gone.Close())
	servertest.Eventually(t, 5*time.Second, func() bool { return len(subscriptions(t, client)) == 1 }, "end of the other subscription")
	must(t, c.Release(t.Context(), g))
	wantLook(t, first, 0)
	wantLook(t, last, redislock.Claim)
}

// One who was told to look for the others, and gives up, passes that on.
func TestWhoGivesUpPassesTheLookOn(t *testing.T) {
	c, _, _ := fresh(t)
	g := grant(t, c, request("a", "h"))
	queued(t, c, "a", "frozen")
	queued(t, c, "a", "gives up")
	last, _ := queued(t, c, "a", "last")
	must(t, c.Release(t.Context(), g))
	wantLost(t, c.Release(t.Context(), piton.Grant{Fence: piton.Fence{Lock: "a", Holder: "gives up"}}),
		piton.ReasonTaken, wantHeldBy(t, c, "a", g.Token).Token)
	select {
	case look := <-last:
		if look <= 0 || look > redislock.Claim {
			t.Errorf("told to look after %v", look)
		}
	case <-time.After(10 * time.Second):
		t.Error("the last was not told")
	}
}

func subscriptions(tb testing.TB, client *redis.Client) []string {
	tb.Helper()
	channels, err := client.PubSubChannels(tb.Context(), "*").Result()
	must(tb, err)
	return channels
}

func TestWaitersShareOneConnection(t *testing.T) {
	c, client, _ := fresh(t)
	before := runtime.NumGoroutine()
	var stops []func()
	for n := range 100 {
		_, stop := turns(t, c, fmt.Sprint(n/2), fmt.Sprint("h", n))
		stops = append(stops, stop)
	}
	if list := subscriptions(t, client); len(list) != 1 {
		t.Errorf("%d channels; want 1", len(list))
	}
	clients := client.ClientList(t.Context()).Val()
	if n := strings.Count(clients, "sub=") - strings.Count(clients, "sub=0"); n != 1 {
		t.Errorf("%d subscribed connections:\n%s", n, clients)
	}
	if n := runtime.NumGoroutine(); n > before+10 {
		t.Errorf("%d goroutines for 100 waiters, %d before", n, before)
	}
	for _, stop := range stops {
		stop()
		stop()
	}
	servertest.Eventually(t, 10*time.Second, func() bool { return len(subscriptions(t, client)) == 0 }, "end of the subscription")
	servertest.Eventually(t, 10*time.Second, func() bool { return runtime.NumGoroutine() <= before }, "end of the goroutines")
	g := grant(t, c, request("again", "h"))
	looks, _ := queued(t, c, "again", "next")
	must(t, c.Release(t.Context(), g))
	wantLook(t, looks, 0)
}

// A connection that was lost is made anew, and everybody looks again.
func TestALostSubscriptionIsMadeAnew(t *testing.T) {
	c, client, _ := fresh(t)
	g := grant(t, c, request("a", "h"))
	looks, _ := queued(t, c, "a", "next")
	must(t, client.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
	wantLook(t, looks, 0)
	must(t, c.Release(t.Context(), g))
	wantLook(t, looks, 0)
}

func TestSubscribingEndsWithItsContext(t *testing.T) {
	c, _, server := fresh(t)
	server.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, _, err := c.Turns(ctx, "a", "h"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	server.Resume(t)
	must(t, c.Close())
	if _, _, err := c.Turns(t.Context(), "a", "h"); !errors.Is(err, piton.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Who may not subscribe is told so at once, and waits by polling.
func TestAUserWithoutChannels(t *testing.T) {
	_, admin, server := fresh(t)
	must(t, admin.Do(t.Context(), "ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels").Err())
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "mute", Password: "secret", ContextTimeoutEnabled: true})
	c, err := redislock.New(client)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close(), client.Close()) })
	if _, _, err := c.Turns(t.Context(), "a", "h"); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("got %v; want the server's refusal", err)
	}
	holder, waiter := locker(t, c), locker(t, c)
	lease, err := holder.Acquire(t.Context(), "a")
	must(t, err)
	got := make(chan error, 1)
	go func() { got <- waiter.Do(t.Context(), "a", func(context.Context, *piton.Lease) error { return nil }) }()
	must(t, lease.Release(t.Context()), <-got)
}

func locker(tb testing.TB, c piton.Coordinator, opts ...piton.Option) *piton.Locker {
	tb.Helper()
	l, err := piton.New(c, opts...)
	must(tb, err)
	tb.Cleanup(func() { must(tb, l.Close(context.Background())) })
	return l
}

// calls counts the commands that a client sends.
type calls struct {
	mu    sync.Mutex
	names []string
}

func (c *calls) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.mu.Lock()
		c.names = append(c.names, cmd.Name())
		c.mu.Unlock()
		return next(ctx, cmd)
	}
}

func (c *calls) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.names)
}

// Many clients on one lock are served in the order of their arrival, with few
// commands for each.
func TestHandOff(t *testing.T) {
	const waiters = 50
	c, admin, server := fresh(t)
	lease, err := locker(t, c).Acquire(t.Context(), "a")
	must(t, err)
	var counted calls
	var mu sync.Mutex
	var order []int
	var all sync.WaitGroup
	for n := range waiters {
		other, client := open(t, server.Addr())
		client.AddHook(&counted)
		l := locker(t, other)
		all.Go(func() {
			err := l.Do(t.Context(), "a", func(context.Context, *piton.Lease) error {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, n)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		servertest.Eventually(t, 10*time.Second, func() bool { return waiting(t, admin) == n+1 }, "place in the queue")
	}
	before := counted.count()
	must(t, lease.Release(t.Context()))
	all.Wait()
	if !slices.IsSorted(order) || len(order) != waiters {
		t.Errorf("served in the order %d", order)
	}
	perHandOff := float64(counted.count()-before) / waiters
	t.Logf("%.1f commands per hand-off", perHandOff)
	if perHandOff > 3 {
		t.Errorf("%.1f commands per hand-off; want at most 3: %q", perHandOff, counted.names[before:])
	}
}

// waiting is the length of the queue of lock a.
func waiting(tb testing.TB, client *redis.Client) int {
	tb.Helper()
	n, err := client.ZCard(context.Background(), "piton:{a}:queue").Result()
	must(tb, err)
	return int(n)
}
