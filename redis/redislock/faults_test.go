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

// go-redis sends a request again by itself when its connection breaks.
func TestRequestsThatTheClientSendsAgain(t *testing.T) {
	direct, _, server := fresh(t)
	c, proxy := behind(t, server.Addr(), 3)
	must(t, c.Release(t.Context(), grant(t, c, request("warm", "h")))) // as in losing
	sent := 0
	proxy.OnData(func(dir faultproxy.Direction, data []byte) {
		if dir != faultproxy.ToServer {
			return
		}
		proxy.Heal() // for the greeting of the next connection
		if bytes.Contains(data, []byte("evalsha")) {
			if sent++; sent == 1 {
				proxy.Set(faultproxy.ToClient, faultproxy.Reset)
			}
		}
	})
	g := grant(t, c, request("a", "h"))
	proxy.OnData(nil)
	if sent != 2 {
		t.Errorf("sent %d times; want 2", sent)
	}
	if held, ok, err := direct.Get(t.Context(), "a"); err != nil || !ok || held.Token != g.Token {
		t.Errorf("held: %+v, %v, %v; want token %d", held, ok, err, g.Token)
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
			if left := client.PTTL(t.Context(), key).Val(); left <= 0 || left > redislock.Idle {
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
