package consullock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/consul/consullock"
	"github.com/pitonlock/piton/internal/servertest"
)

func TestNewNeedsAClient(t *testing.T) {
	if _, err := consullock.New(nil); err == nil {
		t.Error("a nil client is accepted")
	}
}

func TestAcquireIsIdempotentPerHolder(t *testing.T) {
	c, _ := fresh(t)
	first := grant(t, c, request("a", "h1"))
	if again := grant(t, c, request("a", "h1")); again != first {
		t.Errorf("the second time %v; want %v", again, first)
	}
	r := request("a", "h1")
	r.Floor = first.Token + 1000
	lifted := grant(t, c, r)
	if lifted.Token <= r.Floor || lifted.Ref != first.Ref {
		t.Errorf("with floor %d: %v after %v", r.Floor, lifted, first)
	}
	if kept := grant(t, c, r); kept != lifted {
		t.Errorf("with the floor below the token: %v; want %v", kept, lifted)
	}
	_, err := c.Acquire(t.Context(), request("a", "h2"))
	var held *piton.HeldError
	if !errors.As(err, &held) || held.Token != lifted.Token || held.Owner != "owner of h1" {
		t.Errorf("another holder got %v", err)
	}
	_, err = c.Renew(t.Context(), first)
	wantLost(t, err, piton.ReasonReplaced, lifted.Token)
	wantLost(t, c.Release(t.Context(), first), piton.ReasonReplaced, lifted.Token)
	wantSessions(t, c, 1)
	must(t, c.Release(t.Context(), lifted))
	wantSessions(t, c, 0)
}

// A token is the index of the write that granted, plus an offset that a floor raises:
// for all locks, or for one when it is far above everything.
func TestTokensAreIndexesPlusAnOffset(t *testing.T) {
	c, _ := fresh(t)
	first := grant(t, c, request("a", "h"))
	pair, _, err := c.consul.KV().Get("piton/lock/a/holder", nil)
	if err != nil || pair == nil || pair.ModifyIndex != uint64(first.Token) {
		t.Errorf("the first token is %d, the key %+v, %v", first.Token, pair, err)
	}
	r := request("b", "h")
	r.Floor = 5000
	above := grant(t, c, r)
	if above.Token <= 5000 || above.Token > 5010 {
		t.Errorf("above a floor of 5000: token %d", above.Token)
	}
	if g := grant(t, c, request("c", "h")); g.Token <= above.Token || g.Token > 5020 {
		t.Errorf("another lock afterwards: token %d", g.Token)
	}
	if renewed, err := c.Renew(t.Context(), first); err != nil || renewed.Token != first.Token {
		t.Errorf("an older grant: %v, %v", renewed, err)
	}
	r = request("far", "h")
	r.Floor = 1 << 44
	far := grant(t, c, r)
	if far.Token <= 1<<44 || far.Token > 1<<44+20 {
		t.Errorf("above a floor of 2^44: token %d", far.Token)
	}
	must(t, c.Release(t.Context(), far))
	if g := grant(t, c, request("far", "h2")); g.Token <= far.Token {
		t.Errorf("the same lock afterwards: token %d", g.Token)
	}
	if g := grant(t, c, request("d", "h")); g.Token > 5100 {
		t.Errorf("another lock after a floor of 2^44: token %d", g.Token)
	}
	if n, err := c.kept(t.Context(), ""); n != 2 || err != nil {
		t.Errorf("%d keys stay, %v; want the offsets of all locks and of one", n, err)
	}
}

// Floors that others raise at the same moment are never undercut: the offset is a
// condition of each grant.
func TestTokensGrowWhileFloorsRace(t *testing.T) {
	const clients, turns = 8, 40
	first, server := fresh(t)
	var inside sync.Mutex
	last := map[string]piton.Token{}
	var all sync.WaitGroup
	for n := range clients {
		c := open(t, server.Addr())
		all.Go(func() {
			for turn := range turns {
				r := request([]string{"a", "b", "far"}[rand.IntN(3)], fmt.Sprint("h", n, ".", turn))
				inside.Lock()
				if rand.IntN(2) == 0 {
					r.Floor = max(last["a"], last["b"]) + piton.Token(rand.IntN(5000))
				}
				if r.Lock == "far" && r.Floor > 0 {
					r.Floor = max(last["far"], 1<<44) + piton.Token(rand.IntN(5000))
				}
				inside.Unlock()
				g, err := c.Acquire(t.Context(), r)
				if errors.Is(err, piton.ErrHeld) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				inside.Lock()
				if g.Token <= last[r.Lock] || g.Token <= r.Floor {
					t.Errorf("%s: token %d after %d, with a floor of %d", r.Lock, g.Token, last[r.Lock], r.Floor)
				}
				last[r.Lock] = max(last[r.Lock], g.Token)
				inside.Unlock()
				if err := c.Release(t.Context(), g); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if n, err := first.kept(t.Context(), ""); n > 2 || err != nil {
		t.Errorf("%d keys stay, %v; want two offsets at most", n, err)
	}
	wantSessions(t, first, 0)
}

func TestTokensEndAtMaxToken(t *testing.T) {
	c, _ := fresh(t)
	r := request("a", "h")
	r.Floor = piton.MaxToken
	if _, err := c.Acquire(t.Context(), r); err == nil || errors.Is(err, piton.ErrHeld) || !strings.Contains(err.Error(), "no token") {
		t.Errorf("a floor of %d: %v", r.Floor, err)
	}
	r.Floor = piton.MaxToken - 100
	last := grant(t, c, r)
	must(t, c.Release(t.Context(), last))
	servertest.Eventually(t, 20*time.Second, func() bool {
		g, err := c.Acquire(t.Context(), request("a", "h2"))
		if err == nil {
			if g.Token <= last.Token || g.Token > piton.MaxToken {
				t.Fatalf("token %d after %d", g.Token, last.Token)
			}
			last = g
			must(t, c.Release(t.Context(), g))
			return false
		}
		if errors.Is(err, piton.ErrHeld) || !strings.Contains(err.Error(), "token") {
			t.Fatal(err)
		}
		return true
	}, "the end of the tokens")
	if _, held, err := c.Get(t.Context(), "a"); held || err != nil {
		t.Errorf("the refused request left the lock held: %v, %v", held, err)
	}
	grant(t, c, request("b", "h"))
	wantSessions(t, c, 1)
}

// A refusal leaves no session, also when many ask at once.
func TestNoSessionIsLeft(t *testing.T) {
	c, _ := fresh(t)
	g := grant(t, c, request("a", "h"))
	wantSessions(t, c, 1)
	for _, r := range []piton.Request{request("a", "h2"), {Lock: "b", TTL: time.Minute}, {Lock: "b", Holder: "h"}} {
		if _, err := c.Acquire(t.Context(), r); err == nil {
			t.Errorf("%v was granted", r)
		}
	}
	wantSessions(t, c, 1)
	g.Token = 0
	must(t, c.Release(t.Context(), g), c.Release(t.Context(), g))
	wantSessions(t, c, 0)
	g = grant(t, c, request("a", "h"))
	if ok, err := c.Break(t.Context(), "a", g.Token); !ok || err != nil {
		t.Error(ok, err)
	}
	wantSessions(t, c, 0)
	var all sync.WaitGroup
	for n := range 16 {
		all.Go(func() {
			if _, err := c.Acquire(t.Context(), request("c", fmt.Sprint("h", n))); err != nil && !errors.Is(err, piton.ErrHeld) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	wantSessions(t, c, 1)
}

// With the settings that Consul has by itself: short TTLs are refused in words that
// name the setting, TTLs arrive as they are, and a lock is free at once after its end.
func TestTTLs(t *testing.T) {
	server := servertest.StartConsul(t, "-hcl", `session_ttl_min = "10s"`)
	c := open(t, server.Addr())
	r := request("a", "h")
	for _, ttl := range []time.Duration{5 * time.Second, 25 * time.Hour} {
		r.TTL = ttl
		if _, err := c.Acquire(t.Context(), r); err == nil || errors.Is(err, piton.ErrHeld) || !strings.Contains(err.Error(), "session_ttl_min, 10 s by default") {
			t.Errorf("a TTL of %v: %v", ttl, err)
		}
	}
	wantSessions(t, c, 0)
	r.TTL = 10500 * time.Millisecond
	g := grant(t, c, r)
	all, _, err := c.consul.Session().List(nil)
	if err != nil || len(all) != 1 || all[0].TTL != "10.5s" || all[0].LockDelay != 0 || g.TTL != r.TTL {
		t.Errorf("%v has the session %+v, %v; want its TTL, and no lock-delay", g, all, err)
	}
	_, err = c.consul.Session().Destroy(g.Ref, nil)
	must(t, err)
	next := grant(t, c, request("a", "h2"))
	_, err = c.Renew(t.Context(), g)
	wantLost(t, err, piton.ReasonTaken, next.Token)
}

// A datacenter that is made anew from a snapshot counts on from there; the floor of
// the storage lifts tokens.
func TestARestoredSnapshotIsHealed(t *testing.T) {
	old, _ := fresh(t)
	snapshot, _, err := old.consul.Snapshot().Save(nil)
	must(t, err)
	defer snapshot.Close()
	var sealed piton.Grant
	for range 60 {
		sealed = grant(t, old, request("a", "h"))
		must(t, old.Release(t.Context(), sealed))
	}
	c, _ := fresh(t)
	must(t, c.consul.Snapshot().Restore(nil, snapshot))
	var g piton.Grant
	servertest.Eventually(t, 20*time.Second, func() bool {
		g, err = c.Acquire(t.Context(), request("a", "h2"))
		return err == nil
	}, "a grant after the restore")
	if g.Token > sealed.Token {
		t.Fatalf("token %d after %d: the restore set nothing back", g.Token, sealed.Token)
	}
	r := request("a", "h2")
	r.Floor = sealed.Token
	if g = grant(t, c, r); g.Token <= sealed.Token {
		t.Errorf("token %d with the floor %d", g.Token, r.Floor)
	}
	if other := grant(t, c, request("b", "h")); other.Token <= g.Token {
		t.Errorf("another lock: token %d after %d", other.Token, g.Token)
	}
}

func TestForeignKeysAreNamed(t *testing.T) {
	c, _ := fresh(t)
	session, _, err := c.consul.Session().CreateNoChecks(&api.SessionEntry{TTL: "60s"}, nil)
	must(t, err)
	ok, _, err := c.consul.KV().Acquire(&api.KVPair{Key: "piton/lock/a/holder", Value: []byte("mine"), Session: session}, nil)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	_, acquired := c.Acquire(t.Context(), request("a", "h"))
	_, _, got := c.Get(t.Context(), "a")
	_, listed := c.List(t.Context(), "", 0)
	for what, err := range map[string]error{"Acquire": acquired, "Get": got, "List": listed} {
		if err == nil || errors.Is(err, piton.ErrHeld) || !strings.Contains(err.Error(), `"piton/lock/a/holder" is not one of piton's`) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Names are parts of URLs and of keys, and come back as they are.
func TestOddNamesComeBack(t *testing.T) {
	c, _ := fresh(t)
	names := []string{"a", "a/b", "a/holder", "a/", "/", "..", "a%2Fb", "~41", "A", "ü 🧗", "\xff\x00x", strings.Repeat("~", 512)}
	want := map[string]piton.Token{}
	for _, name := range names {
		if piton.ValidateLock(name) != nil {
			continue
		}
		want[name] = grant(t, c, request(name, "h")).Token
	}
	all, err := c.List(t.Context(), "", 0)
	if err != nil || len(all) != len(want) {
		t.Fatalf("%d locks, %v; want %d", len(all), err, len(want))
	}
	for _, held := range all {
		if want[held.Lock] != held.Token {
			t.Errorf("%q has the token %d; want %d", held.Lock, held.Token, want[held.Lock])
		}
	}
	some, err := c.List(t.Context(), "a/", 2)
	if err != nil || len(some) != 2 {
		t.Errorf("with the prefix a/, two at most: %v, %v", some, err)
	}
}

func TestCallsEndWithTheirContext(t *testing.T) {
	c, server := fresh(t)
	g := grant(t, c, request("a", "h"))
	server.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, acquired := c.Acquire(ctx, request("b", "h"))
	_, renewed := c.Renew(ctx, g)
	_, _, got := c.Get(ctx, "a")
	_, listed := c.List(ctx, "", 0)
	_, broken := c.Break(ctx, "a", g.Token)
	_, _, watched := c.Watch(ctx, "a")
	for what, err := range map[string]error{"Acquire": acquired, "Renew": renewed, "Release": c.Release(ctx, g), "Get": got, "List": listed, "Break": broken, "Watch": watched} {
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, piton.ErrHeld) || errors.Is(err, piton.ErrLost) {
			t.Errorf("%s on a frozen server: %v", what, err)
		}
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("all that took %v", took)
	}
	server.Resume(t)
}
