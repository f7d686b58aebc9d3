package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/faultproxy"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/redis/redislock"
	"github.com/redis/go-redis/v9"
)

// behind is a coordinator whose connections go through a proxy.
func behind(tb testing.TB, addr string, retries int) (*redislock.Coordinator, *faultproxy.Proxy) {
	tb.Helper()
	proxy := faultproxy.Start(tb, addr)
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true, MaxRetries: retries})
	c, err := redislock.New(client)
	must(tb, err)
	tb.Cleanup(func() {
		must(tb, c.Close(), client.Close())
	})
	return c, proxy
}

// losing runs a step whose answer is lost, which says nothing about its outcome.
func losing(tb testing.TB, c *redislock.Coordinator, proxy *faultproxy.Proxy, step func(ctx context.Context) error) {
	tb.Helper()
	// A connection is open and the scripts are loaded, so it is the step's answer that is lost.
	g, err := c.Renew(tb.Context(), grant(tb, c, request("warm", "h")))
	must(tb, err, c.Release(tb.Context(), g))
	proxy.Set(faultproxy.ToClient, faultproxy.Drop)
	ctx, cancel := context.WithTimeout(tb.Context(), 200*time.Millisecond)
	defer cancel()
	if err := step(ctx); err == nil || errors.Is(err, piton.ErrHeld) || errors.Is(err, piton.ErrLost) {
		tb.Errorf("without an answer: %v; want unknown", err)
	}
	proxy.Heal()
}

// A step that was carried out without its answer is done again without harm.
func TestLostAnswers(t *testing.T) {
	direct, _, server := fresh(t)
	c, proxy := behind(t, server.Addr(), -1)
	losing(t, c, proxy, func(ctx context.Context) error {
		_, err := c.Acquire(ctx, request("a", "h"))
		return err
	})
	held, ok, err := direct.Get(t.Context(), "a")
	if err != nil || !ok {
		t.Fatalf("the server did not get the request: %v, %v", ok, err)
	}
	g := grant(t, c, request("a", "h"))
	if g.Token != held.Token {
		t.Errorf("the second time token %d; want %d again", g.Token, held.Token)
	}
	losing(t, c, proxy, func(ctx context.Context) error {
		_, err := c.Renew(ctx, g)
		return err
	})
	if again, err := c.Renew(t.Context(), g); err != nil || again != g {
		t.Errorf("the second renewal: %v, %v", again, err)
	}
	losing(t, c, proxy, func(ctx context.Context) error { return c.Release(ctx, g) })
	if _, ok, err := direct.Get(t.Context(), "a"); ok || err != nil {
		t.Errorf("after the release: %v, %v", ok, err)
	}
	must(t, c.Release(t.Context(), g))
	losing(t, c, proxy, func(ctx context.Context) error {
		_, err := c.Acquire(ctx, request("a", "given up"))
		return err
	})
	must(t, c.Release(t.Context(), piton.Grant{Fence: piton.Fence{Lock: "a", Holder: "given up"}}))
	grant(t, direct, request("a", "next"))
}

// A request is sent once, whatever go-redis is told, and a release whose answer was
// lost is known to be one.
func TestGoRedisDoesNotSendAStepAgain(t *testing.T) {
	direct, _, server := fresh(t)
	c, proxy := behind(t, server.Addr(), 3)
	must(t, c.Release(t.Context(), grant(t, c, request("warm", "h")))) // as in losing
	g := grant(t, c, request("a", "h"))
	sent := 0
	proxy.OnData(func(dir faultproxy.Direction, data []byte) {
		if dir == faultproxy.ToServer && bytes.Contains(data, []byte("evalsha")) {
			if sent++; sent == 1 {
				proxy.Set(faultproxy.ToClient, faultproxy.Reset)
			}
		}
	})
	if err := c.Release(t.Context(), g); err == nil || errors.Is(err, piton.ErrLost) {
		t.Errorf("the release: %v; want unknown", err)
	}
	proxy.OnData(nil)
	proxy.Heal()
	if _, held, err := direct.Get(t.Context(), "a"); err != nil || held || sent != 1 {
		t.Errorf("held %v, %v, sent %d times; want it carried out, once", held, err, sent)
	}
}

// The next holder has the lock already when the release is repeated.
func TestAReleaseWithoutAnswerIsNoLoss(t *testing.T) {
	direct, _, server := fresh(t)
	c, proxy := behind(t, server.Addr(), 3)
	holder, waiter := locker(t, c), locker(t, direct)
	must(t, holder.Do(t.Context(), "warm", func(context.Context, *piton.Lease) error { return nil }))
	got := make(chan error, 1)
	err := holder.Do(t.Context(), "a", func(context.Context, *piton.Lease) error {
		waiting := make(chan struct{})
		go func() {
			got <- waiter.Do(context.Background(), "a", func(context.Context, *piton.Lease) error {
				proxy.Heal()
				return nil
			})
		}()
		go func() {
			servertest.Eventually(t, 10*time.Second, func() bool { return server.Command(t, "EXISTS", "piton:{a}:queue") == int64(1) }, "waiter")
			close(waiting)
		}()
		<-waiting
		proxy.Set(faultproxy.ToClient, faultproxy.Reset)
		return nil
	})
	must(t, err, <-got)
}

// A token that a floor lifted above the clock stays counted, or the clock would give a
// lower one; so does that of a lease that is longer than a counter's idle time.
func TestCountersOutliveWhatIsBelowThem(t *testing.T) {
	c, client, _ := fresh(t)
	r := request("a", "h")
	r.Floor = piton.Token(time.Now().Add(30 * 24 * time.Hour).UnixMilli())
	must(t, c.Release(t.Context(), grant(t, c, r)))
	if left := client.PTTL(t.Context(), "piton:{a}:token").Val(); left < 30*24*time.Hour || left > 31*24*time.Hour {
		t.Errorf("the counter of a token 30 days ahead expires in %v", left)
	}
	r = request("b", "h")
	r.TTL = 24 * time.Hour
	g := grant(t, c, r)
	for range 2 {
		if left := client.PTTL(t.Context(), "piton:{b}:token").Val(); left < 23*time.Hour {
			t.Errorf("the counter of a lease of a day expires in %v", left)
		}
		_, err := c.Renew(t.Context(), g)
		must(t, err)
	}
	r.Lock, r.Floor = "c", piton.MaxToken-1
	if g := grant(t, c, r); g.Token != piton.MaxToken {
		t.Errorf("token %d", g.Token)
	}
}

// After the server has forgotten everything a lease is lost, and stays it.
func TestFlushWhileHeld(t *testing.T) {
	c, client, _ := fresh(t)
	old := grant(t, c, request("a", "h1"))
	must(t, client.FlushAll(t.Context()).Err())
	_, err := c.Renew(t.Context(), old)
	wantLost(t, err, piton.ReasonExpired, 0)
	wantLost(t, c.RenewBatch(t.Context(), []piton.Grant{old})[0].Err, piton.ReasonExpired, 0)
	must(t, c.Release(t.Context(), old))
	if n := client.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were made by steps of a lease that is lost", n)
	}
	r := request("a", "h2")
	r.Floor = old.Token + 5_000_000 // what a sealed storage has seen
	next := grant(t, c, r)
	if next.Token != r.Floor+1 {
		t.Errorf("token %d; want %d", next.Token, r.Floor+1)
	}
	_, err = c.Renew(t.Context(), old)
	wantLost(t, err, piton.ReasonTaken, next.Token)
	wantLost(t, c.Release(t.Context(), old), piton.ReasonTaken, next.Token)
}

// Whatever a step leaves expires by itself.
func TestEveryKeyExpires(t *testing.T) {
	c, client, _ := fresh(t)
	check := func(step string, want int) {
		t.Helper()
		keys := client.Keys(t.Context(), "*").Val()
		if len(keys) != want {
			t.Errorf("after %s: keys %q; want %d", step, keys, want)
		}
		for _, key := range keys {
			// A token that was lifted is a little ahead of the clock, and so is its counter's end.
			if left := client.PTTL(t.Context(), key).Val(); left <= 0 || left > redislock.Idle+time.Second {
				t.Errorf("after %s: %s expires in %v", step, key, left)
			}
		}
	}
	g := grant(t, c, request("a", "h"))
	check("acquire", 2)
	r := request("a", "h")
	r.Floor = g.Token + 1
	g = grant(t, c, r)
	check("a lifted token", 2)
	g, err := c.Renew(t.Context(), g)
	must(t, err)
	check("renew", 2)
	must(t, c.Release(t.Context(), g))
	check("release", 1)
	must(t, client.PExpire(t.Context(), "piton:{a}:token", time.Minute).Err())
	g = grant(t, c, request("a", "h2"))
	if left := client.PTTL(t.Context(), "piton:{a}:token").Val(); left <= time.Minute {
		t.Errorf("the counter expires in %v; want its time started anew by the grant", left)
	}
	_, err = c.Break(t.Context(), "a", g.Token)
	must(t, err)
	check("break", 1)
}

// A grant never says more time than the server keeps.
func TestTimesAreRoundedDown(t *testing.T) {
	c, client, _ := fresh(t)
	r := request("a", "h")
	r.TTL = 10*time.Second + 999*time.Microsecond
	g := grant(t, c, r)
	if g.TTL != 10*time.Second {
		t.Errorf("granted %v; want 10s", g.TTL)
	}
	g.TTL = 20*time.Second + 999*time.Microsecond
	renewed, err := c.Renew(t.Context(), g)
	if err != nil || renewed.TTL != 20*time.Second {
		t.Errorf("renewed for %v, %v; want 20s", renewed.TTL, err)
	}
	if left := client.PTTL(t.Context(), "piton:{a}:lock").Val(); left > 20*time.Second || left < 15*time.Second {
		t.Errorf("the server keeps it for %v", left)
	}
}

// flushing forgets the scripts in the middle of the first pipeline of renewals,
// and records how many each pipeline had.
type flushing struct {
	flush func(ctx context.Context) error
	then  error // breaks the later pipelines, may be nil

	mu    sync.Mutex
	sizes []int
}

func (f *flushing) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (f *flushing) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (f *flushing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if commands[0].Name() != "evalsha" {
			return next(ctx, commands) // the greeting of a connection
		}
		f.mu.Lock()
		f.sizes = append(f.sizes, len(commands))
		first := len(f.sizes) == 1
		f.mu.Unlock()
		switch half := len(commands) / 2; {
		case first:
			return errors.Join(next(ctx, commands[:half]), f.flush(ctx), next(ctx, commands[half:]))
		case f.then != nil:
			for _, command := range commands {
				command.SetErr(f.then)
			}
			return f.then
		}
		return next(ctx, commands)
	}
}

func TestScriptsAreLostWithinABatch(t *testing.T) {
	_, admin, server := fresh(t)
	broken := errors.New("connection broken on purpose")
	for name, then := range map[string]error{"sent again": nil, "not even that": broken} {
		c, client := open(t, server.Addr())
		var grants []piton.Grant
		for n := range 1000 {
			grants = append(grants, grant(t, c, request(fmt.Sprint(name, n), "h")))
		}
		must(t, c.Release(t.Context(), grants[7]))
		other := grant(t, c, request(grants[7].Lock, "h2"))
		_, err := c.Renew(t.Context(), grants[0]) // the server knows the script
		must(t, err)
		hook := &flushing{flush: func(ctx context.Context) error { return admin.ScriptFlush(ctx).Err() }, then: then}
		client.AddHook(hook)
		results := c.RenewBatch(t.Context(), grants)
		if want := []int{250, 125, 250, 250, 250}; !slices.Equal(hook.sizes, want) {
			t.Errorf("%s: pipelines of %v; want only what was refused sent again: %v", name, hook.sizes, want)
		}
		for i, r := range results {
			switch {
			case i == 7:
				wantLost(t, r.Err, piton.ReasonTaken, other.Token)
			case i >= 125 && then != nil:
				if !errors.Is(r.Err, broken) || errors.Is(r.Err, piton.ErrLost) {
					t.Fatalf("%s: renewal %d: %v; want the connection's error", name, i, r.Err)
				}
			case r.Err != nil || r.Grant != grants[i]:
				t.Fatalf("%s: renewal %d: %v, %v", name, i, r.Grant, r.Err)
			}
		}
	}
}

// Close ends a Turns that still waits for the server, whatever its context.
func TestCloseEndsAPendingSubscription(t *testing.T) {
	server := servertest.StartRedis(t)
	c, proxy := behind(t, server.Addr(), -1)
	server.Pause(t)
	result := make(chan error, 1)
	started := make(chan struct{}, 100)
	proxy.OnData(func(faultproxy.Direction, []byte) { started <- struct{}{} })
	go func() {
		_, _, err := c.Turns(context.Background(), "a", "h")
		result <- err
	}()
	<-started
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case err := <-result:
		if !errors.Is(err, piton.ErrClosed) {
			t.Errorf("got %v; want %v", err, piton.ErrClosed)
		}
	case <-time.After(10 * time.Second):
		t.Error("Turns still waits")
	}
	server.Resume(t)
	must(t, <-closed)
}
