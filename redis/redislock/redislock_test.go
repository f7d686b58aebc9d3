package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/redis/redislock"
)

func TestAcquireIsIdempotentPerHolder(t *testing.T) {
	c, client, _ := fresh(t)
	first := grant(t, c, request("a", "h1"))
	must(t, client.PExpire(t.Context(), "piton:{a}:lock", time.Second).Err())
	if again := grant(t, c, request("a", "h1")); again != first {
		t.Errorf("the second time %v; want %v", again, first)
	}
	if left := client.PTTL(t.Context(), "piton:{a}:lock").Val(); left < 50*time.Second {
		t.Errorf("%v left; want the time started anew", left)
	}
	r := request("a", "h1")
	r.Floor = first.Token + 1000
	if lifted := grant(t, c, r); lifted.Token != r.Floor+1 {
		t.Errorf("with floor %d: token %d", r.Floor, lifted.Token)
	}
	if kept := grant(t, c, r); kept.Token != r.Floor+1 {
		t.Errorf("with the floor below the token: %d", kept.Token)
	}
	_, err := c.Acquire(t.Context(), request("a", "h2"))
	var held *piton.HeldError
	if !errors.As(err, &held) || held.Token != r.Floor+1 || held.Owner != "owner of h1" || held.Remaining <= 50*time.Second || held.Remaining > time.Minute {
		t.Errorf("another holder got %v", err)
	}
}

func TestTokensComeFromTheCounterAndTheClock(t *testing.T) {
	c, client, _ := fresh(t)
	now := client.Time(t.Context()).Val().UnixMilli()
	first := grant(t, c, request("a", "h1"))
	if int64(first.Token) < now || int64(first.Token) > now+60_000 {
		t.Errorf("the first token is %d; want the server's time, %d ms", first.Token, now)
	}
	must(t, client.Set(t.Context(), "piton:{a}:token", int64(first.Token)+1_000_000, 0).Err(), c.Release(t.Context(), first))
	second := grant(t, c, request("a", "h2"))
	if second.Token != first.Token+1_000_001 {
		t.Errorf("token %d; want the counter's next, %d", second.Token, first.Token+1_000_001)
	}
	must(t, client.FlushAll(t.Context()).Err()) // the clock restarts above all but the jump
	servertest.Eventually(t, 5*time.Second, func() bool { return client.Time(t.Context()).Val().UnixMilli() > int64(first.Token) }, "the next millisecond")
	if third := grant(t, c, request("a", "h3")); third.Token <= first.Token {
		t.Errorf("token %d after %d and FLUSHALL", third.Token, first.Token)
	}
	if kept := client.PTTL(t.Context(), "piton:{a}:token").Val(); kept <= 0 || kept > redislock.Idle {
		t.Errorf("the counter expires in %v; want at most %v", kept, redislock.Idle)
	}
}

func TestTokensStayExact(t *testing.T) {
	c, _, _ := fresh(t)
	for _, floor := range []piton.Token{1 << 52, piton.MaxToken - 10, piton.MaxToken - 1} {
		r := request(fmt.Sprint(floor), "h")
		r.Floor = floor
		if g := grant(t, c, r); g.Token != floor+1 {
			t.Errorf("above %d: token %d", floor, g.Token)
		}
	}
	last := grant(t, c, request(fmt.Sprint(piton.MaxToken-1), "h"))
	must(t, c.Release(t.Context(), last))
	_, err := c.Acquire(t.Context(), request(last.Lock, "h2"))
	if err == nil || errors.Is(err, piton.ErrHeld) || !strings.Contains(err.Error(), "no token above") {
		t.Errorf("with all tokens used: %v", err)
	}
	if _, held, err := c.Get(t.Context(), last.Lock); held || err != nil {
		t.Errorf("the refused request left the lock held: %v, %v", held, err)
	}
	r := request("b", "h")
	r.Floor = piton.MaxToken
	if _, err := c.Acquire(t.Context(), r); err == nil {
		t.Error("a floor without room is accepted")
	}
}

func TestRenewOnlyOwn(t *testing.T) {
	c, client, _ := fresh(t)
	old := grant(t, c, request("a", "h1"))
	must(t, c.Release(t.Context(), old))
	_, err := c.Renew(t.Context(), old)
	wantLost(t, err, piton.ReasonExpired, 0)
	if n := client.Exists(t.Context(), "piton:{a}:lock").Val(); n != 0 {
		t.Error("the renewal made the key anew")
	}
	next := grant(t, c, request("a", "h2"))
	must(t, client.PExpire(t.Context(), "piton:{a}:lock", 20*time.Second).Err())
	_, err = c.Renew(t.Context(), old)
	wantLost(t, err, piton.ReasonTaken, next.Token)
	wrong := next
	wrong.Token--
	_, err = c.Renew(t.Context(), wrong)
	wantLost(t, err, piton.ReasonReplaced, next.Token)
	if left := client.PTTL(t.Context(), "piton:{a}:lock").Val(); left > 20*time.Second {
		t.Errorf("a renewal that was refused moved the end to %v", left)
	}
	must(t, client.PExpire(t.Context(), "piton:{a}:token", time.Minute).Err())
	again, err := c.Renew(t.Context(), next)
	if err != nil || again != next {
		t.Errorf("own renewal: %v, %v", again, err)
	}
	if left := client.PTTL(t.Context(), "piton:{a}:token").Val(); left <= time.Minute {
		t.Errorf("the counter of a lock that is held ends in %v", left)
	}
}

func TestReleaseOnlyOwn(t *testing.T) {
	c, _, _ := fresh(t)
	old := grant(t, c, request("a", "h1"))
	must(t, c.Release(t.Context(), old), c.Release(t.Context(), old))
	next := grant(t, c, request("a", "h2"))
	wantLost(t, c.Release(t.Context(), old), piton.ReasonTaken, next.Token)
	old.Token = 0
	wantLost(t, c.Release(t.Context(), old), piton.ReasonTaken, next.Token)
	if held, ok, err := c.Get(t.Context(), "a"); !ok || held.Token != next.Token || err != nil {
		t.Errorf("held by %+v, %v, %v", held, ok, err)
	}
	next.Token = 0 // whatever the holder holds
	must(t, c.Release(t.Context(), next))
	if _, ok, _ := c.Get(t.Context(), "a"); ok {
		t.Error("still held")
	}
}

func TestBreakComparesTheToken(t *testing.T) {
	c, _, _ := fresh(t)
	if ok, err := c.Break(t.Context(), "a", 7); ok || err != nil {
		t.Errorf("a free lock: %v, %v", ok, err)
	}
	g := grant(t, c, request("a", "h"))
	var held *piton.HeldError
	if ok, err := c.Break(t.Context(), "a", g.Token+1); ok || !errors.As(err, &held) || held.Token != g.Token || held.Owner != "owner of h" {
		t.Errorf("another token: %v, %v", ok, err)
	}
	if ok, err := c.Break(t.Context(), "a", g.Token); !ok || err != nil {
		t.Errorf("the token: %v, %v", ok, err)
	}
	if next := grant(t, c, request("a", "h2")); next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
}

func TestScriptsAreLoadedAgain(t *testing.T) {
	c, client, server := fresh(t)
	forget := map[string]func(){
		"SCRIPT FLUSH": func() { must(t, client.ScriptFlush(t.Context()).Err()) },
		"restart":      func() { server.Restart(t) },
	}
	for name, lose := range forget {
		var grants []piton.Grant
		for n := range 600 {
			grants = append(grants, grant(t, c, request(fmt.Sprintf("%s %d", name, n), "h")))
		}
		must(t, c.Release(t.Context(), grants[5]))
		lose()
		for i, r := range c.RenewBatch(t.Context(), grants) {
			if i == 5 {
				wantLost(t, r.Err, piton.ReasonExpired, 0)
			} else if r.Err != nil || r.Grant != grants[i] {
				t.Fatalf("%s: renewal %d: %v, %v", name, i, r.Grant, r.Err)
			}
		}
		lose()
		_, err := c.Renew(t.Context(), grants[0])
		must(t, err)
		lose()
		must(t, c.Release(t.Context(), grants[0]))
		lose()
		grant(t, c, request(grants[0].Lock, "h2"))
	}
}

func TestABatchTellsEachApart(t *testing.T) {
	c, _, server := fresh(t)
	a, b := grant(t, c, request("a", "h")), grant(t, c, request("b", "h"))
	invalid := piton.Grant{Fence: piton.Fence{Lock: "", Token: 1, Holder: "h"}, TTL: time.Second}
	must(t, c.Release(t.Context(), b))
	other := grant(t, c, request("b", "h2"))
	results := c.RenewBatch(t.Context(), []piton.Grant{a, b, invalid})
	must(t, results[0].Err)
	wantLost(t, results[1].Err, piton.ReasonTaken, other.Token)
	if err := results[2].Err; err == nil || errors.Is(err, piton.ErrLost) {
		t.Errorf("an invalid grant: %v", err)
	}
	if none := c.RenewBatch(t.Context(), nil); len(none) != 0 {
		t.Errorf("no grants: %v", none)
	}
	server.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	for i, r := range c.RenewBatch(ctx, []piton.Grant{a, other}) {
		if r.Err == nil || errors.Is(r.Err, piton.ErrLost) {
			t.Errorf("on a frozen server renewal %d: %v; want unknown", i, r.Err)
		}
	}
	server.Resume(t)
}

func TestNamesAreFoundAsTheyAre(t *testing.T) {
	c, _, _ := fresh(t)
	names := []string{
		"a", "A", "a ", "a/b", "a{b}c", "}", "{", "%", "%7B", "{%7B}", `a"b`, `a\b`, "*", "?", "[a]", "é", "e\u0301", "🧗", "a\nb",
		"}:lock", "x}:lock", strings.Repeat("x", 512),
	}
	for i, name := range names {
		r := request(name, "h"+name)
		r.TTL += time.Duration(i) * time.Second
		grant(t, c, r)
	}
	all, err := c.List(t.Context(), "", 0)
	if err != nil || len(all) != len(names) {
		t.Fatalf("listed %d of %d: %v", len(all), len(names), err)
	}
	for i, name := range names {
		held, ok, err := c.Get(t.Context(), name)
		if err != nil || !ok || held.Lock != name || held.Owner != "owner of h"+name {
			t.Errorf("%q: %+v, %v, %v", name, held, ok, err)
		}
		list, err := c.List(t.Context(), name, 0)
		if err != nil || len(list) == 0 || list[0].Lock != name {
			t.Errorf("prefix %q: %v, %v", name, list, err)
		}
		for _, h := range list {
			if !strings.HasPrefix(h.Lock, name) {
				t.Errorf("prefix %q lists %q", name, h.Lock)
			}
		}
		if i > 0 && all[i].Lock <= all[i-1].Lock {
			t.Errorf("%q is listed after %q", all[i].Lock, all[i-1].Lock)
		}
	}
	if few, err := c.List(t.Context(), "a", 3); err != nil || len(few) != 3 {
		t.Errorf("limit 3: %v, %v", few, err)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	c, client, _ := fresh(t)
	for what, r := range map[string]piton.Request{
		"name": {Holder: "h", TTL: time.Second}, "holder": {Lock: "a", TTL: time.Second},
		"TTL": {Lock: "a", Holder: "h", TTL: time.Microsecond}, "negative TTL": {Lock: "a", Holder: "h", TTL: -time.Second},
	} {
		if _, err := c.Acquire(t.Context(), r); err == nil || errors.Is(err, piton.ErrHeld) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := client.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
	if _, err := redislock.New(nil); err == nil {
		t.Error("a nil client is accepted")
	}
	must(t, client.Set(t.Context(), "piton:{string}:lock", "x", 0).Err())
	if _, err := c.Acquire(t.Context(), request("string", "h")); err == nil || errors.Is(err, piton.ErrHeld) {
		t.Errorf("a key of another type: %v", err)
	}
}

func TestCheckWarnsOfEviction(t *testing.T) {
	c, client, _ := fresh(t)
	for policy, warned := range map[string]bool{"noeviction": false, "allkeys-lru": true, "volatile-ttl": true} {
		must(t, client.ConfigSet(t.Context(), "maxmemory-policy", policy).Err())
		warnings, err := c.Check(t.Context())
		if err != nil || (len(warnings) > 0) != warned {
			t.Errorf("%s: %q, %v", policy, warnings, err)
		}
		if warned && !strings.Contains(warnings[0], policy) {
			t.Errorf("%q does not name %s", warnings[0], policy)
		}
	}
}
