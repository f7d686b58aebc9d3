package sqlitelock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton"
)

var ctx = context.Background()

func TestTokenGrowsAcrossReleaseAndExpiry(t *testing.T) {
	c, clock := openFake(t)
	var last piton.Token
	for i := range 20 {
		g := take(t, c, "a", fmt.Sprint("h", i))
		if g.Token <= last || g.TTL != 10*time.Second || g.Lock != "a" {
			t.Fatalf("grant %+v after token %d", g, last)
		}
		last = g.Token
		if i%2 == 0 {
			clock.pass(10 * time.Second)
		} else if err := c.Release(ctx, g); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAcquireOfAHeldLockTellsWhoHasIt(t *testing.T) {
	c, clock := openFake(t)
	g := take(t, c, "a", "h1")
	clock.pass(4 * time.Second)
	_, err := c.Acquire(ctx, request("a", "h2"))
	held := wantHeld(t, err)
	want := piton.HeldError{Lock: "a", Owner: "owner of h1", Token: g.Token, Remaining: 6 * time.Second}
	if *held != want {
		t.Fatalf("got %+v, want %+v", *held, want)
	}
	clock.pass(6*time.Second - 1)
	_, err = c.Acquire(ctx, request("a", "h2"))
	wantHeld(t, err)
	clock.pass(1)
	if next := take(t, c, "a", "h2"); next.Token <= g.Token {
		t.Fatalf("token %d after %d", next.Token, g.Token)
	}
}

func TestAcquireIsIdempotentPerHolder(t *testing.T) {
	c, clock := openFake(t)
	g := take(t, c, "a", "h1")
	clock.pass(9 * time.Second)
	if again := take(t, c, "a", "h1"); again != g {
		t.Fatalf("got %+v, want %+v", again, g)
	}
	clock.pass(9 * time.Second)
	if _, err := c.Renew(ctx, g); err != nil {
		t.Fatalf("the time was not started anew: %v", err)
	}
	clock.pass(10 * time.Second)
	if again := take(t, c, "a", "h1"); again.Token <= g.Token {
		t.Fatalf("an expired grant came back with token %d", again.Token)
	}
}

func TestFloorLiftsTheToken(t *testing.T) {
	c, _ := openFake(t)
	r := request("a", "h1")
	g := take(t, c, "a", "h1")
	r.Floor = 700
	lifted, err := c.Acquire(ctx, r)
	if err != nil || lifted.Token <= 700 {
		t.Fatal(lifted, err)
	}
	if same, err := c.Acquire(ctx, r); err != nil || same != lifted {
		t.Fatalf("a token above the floor changed: %+v, %v", same, err)
	}
	_, err = c.Renew(ctx, g)
	wantLost(t, err, piton.ReasonReplaced, lifted.Token)
	wantLost(t, c.Release(ctx, g), piton.ReasonReplaced, lifted.Token)
	r.Holder = "h2"
	_, err = c.Acquire(ctx, r)
	wantHeld(t, err)
	fresh := piton.Request{Lock: "new", Holder: "h", TTL: time.Second, Floor: 5000}
	if g, err := c.Acquire(ctx, fresh); err != nil || g.Token <= 5000 {
		t.Fatal(g, err)
	}
}

func TestTokensEndAtMaxToken(t *testing.T) {
	c, _ := openFake(t)
	r := request("a", "h1")
	r.Floor = piton.MaxToken
	if _, err := c.Acquire(ctx, r); err == nil {
		t.Fatal("a floor of MaxToken was accepted")
	}
	r.Floor = piton.MaxToken - 1
	g, err := c.Acquire(ctx, r)
	if err != nil || g.Token != piton.MaxToken {
		t.Fatal(g, err)
	}
	if err := c.Release(ctx, g); err != nil {
		t.Fatal(err)
	}
	_, err = c.Acquire(ctx, request("a", "h2"))
	if !errors.Is(err, errNoRoom) || errors.Is(err, piton.ErrHeld) {
		t.Fatal(err)
	}
	if g := take(t, c, "b", "h"); g.Token > 100 {
		t.Fatalf("another lock got token %d", g.Token)
	}
}

func TestRenewOnlyOwn(t *testing.T) {
	c, clock := openFake(t)
	g := take(t, c, "a", "h1")
	for range 5 {
		clock.pass(9 * time.Second)
		if again, err := c.Renew(ctx, g); err != nil || again != g {
			t.Fatal(again, err)
		}
	}
	stranger := g
	stranger.Holder = "h2"
	_, err := c.Renew(ctx, stranger)
	wantLost(t, err, piton.ReasonTaken, g.Token)
	_, err = c.Renew(ctx, piton.Grant{Fence: piton.Fence{Lock: "missing", Token: 1, Holder: "h1"}, TTL: time.Second})
	wantLost(t, err, piton.ReasonExpired, 0)
	if held, ok, err := c.Get(ctx, "missing"); ok || err != nil {
		t.Fatal("a renewal created", held, err)
	}
	clock.pass(10 * time.Second)
	_, err = c.Renew(ctx, g)
	wantLost(t, err, piton.ReasonExpired, 0)
	next := take(t, c, "a", "h2")
	_, err = c.Renew(ctx, g)
	wantLost(t, err, piton.ReasonTaken, next.Token)
}

func TestRenewBatchJudgesEachGrant(t *testing.T) {
	c, clock := openFake(t)
	a, b := take(t, c, "a", "h1"), take(t, c, "b", "h1")
	clock.pass(5 * time.Second)
	stranger := b
	stranger.Holder = "h2"
	results := c.RenewBatch(ctx, []piton.Grant{a, stranger, b})
	if results[0].Err != nil || results[0].Grant != a || results[2].Err != nil || results[2].Grant != b {
		t.Fatalf("%+v", results)
	}
	wantLost(t, results[1].Err, piton.ReasonTaken, b.Token)
	clock.pass(9 * time.Second)
	for _, lock := range []string{"a", "b"} {
		if held, ok, err := c.Get(ctx, lock); !ok || err != nil || held.Remaining != time.Second {
			t.Fatal(held, ok, err)
		}
	}
	if len(c.RenewBatch(ctx, nil)) != 0 {
		t.Fatal("results without grants")
	}
}

func TestReleaseOnlyOwn(t *testing.T) {
	c, clock := openFake(t)
	g := take(t, c, "a", "h1")
	for range 3 {
		if err := c.Release(ctx, g); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.Renew(ctx, g)
	wantLost(t, err, piton.ReasonExpired, 0)
	next := take(t, c, "a", "h2")
	wantLost(t, c.Release(ctx, g), piton.ReasonTaken, next.Token)
	if _, err := c.Renew(ctx, next); err != nil {
		t.Fatalf("a stranger's release ended the grant: %v", err)
	}
	clock.pass(10 * time.Second)
	if err := c.Release(ctx, next); err != nil {
		t.Fatalf("release of an expired grant: %v", err)
	}
	// Token 0: the clean-up after an attempt whose reply was lost.
	last := take(t, c, "a", "h3")
	wantLost(t, c.Release(ctx, piton.Grant{Fence: piton.Fence{Lock: "a", Holder: "h1"}}), piton.ReasonTaken, last.Token)
	if err := c.Release(ctx, piton.Grant{Fence: piton.Fence{Lock: "a", Holder: "h3"}}); err != nil {
		t.Fatal(err)
	}
	if held, ok, err := c.Get(ctx, "a"); ok || err != nil {
		t.Fatal(held, err)
	}
}

func TestBreakComparesTheToken(t *testing.T) {
	c, _ := openFake(t)
	if broken, err := c.Break(ctx, "a", 1); broken || err != nil {
		t.Fatal(broken, err)
	}
	g := take(t, c, "a", "h1")
	broken, err := c.Break(ctx, "a", g.Token+1)
	if held := wantHeld(t, err); broken || held.Token != g.Token || held.Owner != "owner of h1" {
		t.Fatal(broken, held)
	}
	if broken, err := c.Break(ctx, "a", g.Token); !broken || err != nil {
		t.Fatal(broken, err)
	}
	_, err = c.Renew(ctx, g)
	wantLost(t, err, piton.ReasonExpired, 0)
	if next := take(t, c, "a", "h2"); next.Token <= g.Token {
		t.Fatal(next)
	}
}

func TestListIsSortedAndKeepsToThePrefix(t *testing.T) {
	c, clock := openFake(t)
	for _, lock := range []string{"job/2", "job/10", "job", "Job/1", "job/\U0001F9D7", "jobs", "a"} {
		take(t, c, lock, "h")
	}
	if err := c.Release(ctx, take(t, c, "job/free", "h")); err != nil {
		t.Fatal(err)
	}
	clock.pass(3 * time.Second)
	for _, test := range []struct {
		prefix string
		limit  int
		want   string
	}{
		{"job/", 0, "job/10 job/2 job/\U0001F9D7"},
		{"job/", 2, "job/10 job/2"},
		{"", 0, "Job/1 a job job/10 job/2 job/\U0001F9D7 jobs"},
		{"job/2", 0, "job/2"},
		{"zzz", 0, ""},
	} {
		list, err := c.List(ctx, test.prefix, test.limit)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, held := range list {
			names = append(names, held.Lock)
			if held.Remaining != 7*time.Second || held.Owner != "owner of h" || held.Token < 1 {
				t.Fatalf("%+v", held)
			}
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("List(%q, %d) is %q, want %q", test.prefix, test.limit, got, test.want)
		}
	}
}

func TestOddNamesAreDistinctLocks(t *testing.T) {
	c, _ := openFake(t)
	names := []string{
		"a", "A", "a ", " a", "a\t", "a\n", "a/", "a/b", "a'b", `a"b`, "a;--", "a%", "a_", "{a}", "\u00e9", "e\u0301",
		"\U0001F9D7", "1", "01", "1.0", "NULL", "piton_floor", strings.Repeat("x", 512), strings.Repeat("x", 511), strings.Repeat("\U0001F9D7", 128),
	}
	for i, name := range names {
		take(t, c, name, fmt.Sprint("h", i))
	}
	for i, name := range names {
		held, ok, err := c.Get(ctx, name)
		if err != nil || !ok || held.Lock != name || held.Owner != fmt.Sprint("owner of h", i) {
			t.Errorf("%q: %+v, %v, %v", name, held, ok, err)
		}
	}
	for _, name := range []string{"", "a\x00b", "\xff", strings.Repeat("x", 513)} {
		if _, err := c.Acquire(ctx, request(name, "h")); err == nil || errors.Is(err, piton.ErrHeld) {
			t.Errorf("%q was accepted or held: %v", name, err)
		}
	}
}

func TestARequestThatCannotBeGrantedSaysWhy(t *testing.T) {
	c, _ := openFake(t)
	for _, test := range []struct {
		change func(*piton.Request)
		want   string
	}{
		{func(r *piton.Request) { r.Holder = "" }, "holder is empty"},
		{func(r *piton.Request) { r.TTL = 0 }, "TTL is 0s"},
		{func(r *piton.Request) { r.TTL = -time.Second }, "TTL is -1s"},
		{func(r *piton.Request) { r.TTL = 1<<63 - 1 }, "at most"},
		{func(r *piton.Request) { r.Floor = -1 }, "floor is -1"},
	} {
		r := request("a", "h")
		test.change(&r)
		if _, err := c.Acquire(ctx, r); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want %q", err, test.want)
		}
	}
}

func TestAnotherBootEndsAllLeases(t *testing.T) {
	path, clock := newPath(t), new(fakeMachine)
	clock.pass(time.Hour)
	before := openWith(t, path, clock.boot("boot-1"))
	a, b := take(t, before, "a", "h1"), take(t, before, "b", "h1")
	// A restart while the file is open cannot happen; a copied virtual machine can.
	after := new(fakeMachine)
	after.pass(time.Second)
	same := openWith(t, path, clock.boot("boot-1"))
	same.machine = after.boot("boot-2")
	if g := take(t, same, "a", "h2"); g.Token <= a.Token {
		t.Fatal(g, a)
	}
	_, err := same.Renew(ctx, b)
	wantLost(t, err, piton.ReasonExpired, 0)
	// Opening after the restart.
	fresh := openWith(t, path, after.boot("boot-3"))
	if list, err := fresh.List(ctx, "", 0); err != nil || len(list) != 0 {
		t.Fatal(list, err)
	}
	if g := take(t, fresh, "b", "h1"); g.Token <= b.Token {
		t.Fatal(g, b)
	}
	if n := number(t, foreign(t, path), "SELECT count(*) FROM piton_locks WHERE boot_id <> 'boot-3'"); n != 0 {
		t.Fatalf("%d rows of earlier boots", n)
	}
}

func TestCloseIsFinalAndRepeatable(t *testing.T) {
	c, _ := openFake(t)
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Acquire(ctx, request("a", "h")); !errors.Is(err, piton.ErrClosed) {
		t.Fatal(err)
	}
	if err := c.Release(ctx, piton.Grant{}); !errors.Is(err, piton.ErrClosed) {
		t.Fatal(err)
	}
}

func TestACancelledContextIsCancellation(t *testing.T) {
	c, _ := openFake(t)
	dead, cancel := context.WithCancel(ctx)
	cancel()
	_, err := c.Acquire(dead, request("a", "h"))
	if !errors.Is(err, context.Canceled) || errors.Is(err, piton.ErrUnavailable) || errors.Is(err, piton.ErrHeld) {
		t.Fatal(err)
	}
	if held, ok, err := c.Get(ctx, "a"); ok || err != nil {
		t.Fatal(held, err)
	}
}
