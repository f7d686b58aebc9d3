package memlock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/memlock"
)

func request(lock, holder string) piton.Request {
	return piton.Request{Lock: lock, Holder: holder, Owner: "owner of " + holder, TTL: time.Second}
}

func take(t *testing.T, c *memlock.Coordinator, r piton.Request) piton.Grant {
	t.Helper()
	g, err := c.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func wantLost(t *testing.T, err error, reason piton.Reason, by piton.Token) {
	t.Helper()
	var lost *piton.LostError
	if !errors.As(err, &lost) || lost.Reason != reason || lost.By != by {
		t.Errorf("got %v; want lost: %s by %d", err, reason, by)
	}
}

// In synthetic time the end of a grant is exact to the nanosecond.
func TestAGrantEndsWithItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := memlock.New()
		g := take(t, c, request("a", "h1"))
		time.Sleep(900 * time.Millisecond)
		if _, err := c.Renew(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second - time.Nanosecond)
		_, err := c.Acquire(t.Context(), request("a", "h2"))
		var held *piton.HeldError
		if !errors.As(err, &held) || held.Remaining != time.Nanosecond || held.Token != g.Token || held.Owner != "owner of h1" {
			t.Fatalf("%v, %+v", err, held)
		}
		time.Sleep(time.Nanosecond)
		_, err = c.Renew(t.Context(), g)
		wantLost(t, err, piton.ReasonExpired, 0)
		next := take(t, c, request("a", "h2"))
		if next.Token <= g.Token {
			t.Fatal(next, g)
		}
		_, err = c.Renew(t.Context(), g)
		wantLost(t, err, piton.ReasonTaken, next.Token)
		wantLost(t, c.Release(t.Context(), g), piton.ReasonTaken, next.Token)
	})
}

func TestALiftedTokenReplacesTheOldOne(t *testing.T) {
	c := memlock.New()
	r := request("a", "h")
	old := take(t, c, r)
	r.Floor = old.Token + 100
	lifted := take(t, c, r)
	if lifted.Token <= r.Floor {
		t.Fatal(lifted)
	}
	_, err := c.Renew(t.Context(), old)
	wantLost(t, err, piton.ReasonReplaced, lifted.Token)
	wantLost(t, c.Release(t.Context(), old), piton.ReasonReplaced, lifted.Token)
	if held, ok, err := c.Get(t.Context(), "a"); !ok || err != nil || held.Token != lifted.Token {
		t.Fatal(held, ok, err)
	}
}

func TestBreakEndsThisGrantAlone(t *testing.T) {
	c := memlock.New()
	g := take(t, c, request("a", "h1"))
	broken, err := c.Break(t.Context(), "a", g.Token+1)
	var held *piton.HeldError
	if broken || !errors.As(err, &held) || held.Token != g.Token {
		t.Fatal(broken, err)
	}
	if broken, err := c.Break(t.Context(), "a", g.Token); !broken || err != nil {
		t.Fatal(broken, err)
	}
	if broken, err := c.Break(t.Context(), "a", g.Token); broken || err != nil {
		t.Fatal(broken, err)
	}
	_, err = c.Renew(t.Context(), g)
	wantLost(t, err, piton.ReasonExpired, 0)
}

func TestListIsSortedAndKeepsToThePrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := memlock.New()
		for _, lock := range []string{"job/2", "job/10", "job", "Job/1", "jobs", "a"} {
			take(t, c, request(lock, "h"))
		}
		time.Sleep(999 * time.Millisecond)
		long := request("job/30", "h")
		long.TTL = time.Minute
		take(t, c, long)
		for _, test := range []struct {
			prefix string
			limit  int
			want   string
		}{
			{"job/", 0, "job/10 job/2 job/30"},
			{"job/", 2, "job/10 job/2"},
			{"", 0, "Job/1 a job job/10 job/2 job/30 jobs"},
			{"nothing", 0, ""},
		} {
			list, err := c.List(t.Context(), test.prefix, test.limit)
			var names []string
			for _, held := range list {
				names = append(names, held.Lock)
			}
			if got := strings.Join(names, " "); err != nil || got != test.want {
				t.Errorf("List(%q, %d) is %q, %v; want %q", test.prefix, test.limit, got, err, test.want)
			}
		}
		time.Sleep(time.Millisecond)
		list, err := c.List(t.Context(), "", 0)
		want := piton.Held{Lock: "job/30", Token: 7, Owner: "owner of h", Remaining: time.Minute - time.Millisecond}
		if err != nil || len(list) != 1 || list[0] != want {
			t.Errorf("%+v, %v; want only %+v", list, err, want)
		}
	})
}

func TestStoppedWatchersAreForgotten(t *testing.T) {
	c := memlock.New()
	var stops []func()
	for n := range 10 {
		_, stop, err := c.Watch(t.Context(), fmt.Sprint(n%2))
		if err != nil {
			t.Fatal(err)
		}
		stops = append(stops, stop)
	}
	if kept := c.Kept(); kept != 2 {
		t.Errorf("%d entries; want one for each lock", kept)
	}
	for _, stop := range stops {
		stop()
		stop()
	}
	if kept := c.Kept(); kept != 0 {
		t.Errorf("%d entries are left", kept)
	}
}

// One lock with a huge floor does not use up the numbers of all others.
func TestAHugeTokenIsNoFloorForOtherLocks(t *testing.T) {
	c := memlock.New()
	r := request("huge", "h")
	r.Floor = piton.MaxToken - 2
	last := take(t, c, r)
	if g := take(t, c, request("other", "h")); g.Token > 10 {
		t.Fatal(g)
	}
	if err := c.Release(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	next := take(t, c, request("huge", "h2"))
	if next.Token != piton.MaxToken {
		t.Fatalf("token %d after %d", next.Token, last.Token)
	}
	if err := c.Release(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if g, err := c.Acquire(t.Context(), request("huge", "h3")); err == nil || !strings.Contains(err.Error(), "no token above") {
		t.Fatal(g, err)
	}
}

func TestARequestThatCannotBeGrantedSaysWhy(t *testing.T) {
	for _, test := range []struct {
		change func(*piton.Request)
		want   string
	}{
		{func(r *piton.Request) { r.Lock = "" }, "name is empty"},
		{func(r *piton.Request) { r.Holder = "" }, "want a holder"},
		{func(r *piton.Request) { r.TTL = 0 }, "TTL 0s"},
		{func(r *piton.Request) { r.TTL = -time.Second }, "TTL -1s"},
	} {
		r := request("a", "h")
		test.change(&r)
		_, err := memlock.New().Acquire(t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v; want %q", err, test.want)
		}
	}
}

func TestAnEndedContextChangesNothing(t *testing.T) {
	c := memlock.New()
	g := take(t, c, request("a", "h"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, acquire := c.Acquire(ended, request("b", "h"))
	_, renew := c.Renew(ended, g)
	_, _, get := c.Get(ended, "a")
	_, list := c.List(ended, "", 0)
	_, broken := c.Break(ended, "a", g.Token)
	_, _, watch := c.Watch(ended, "a")
	for what, err := range map[string]error{
		"acquire": acquire, "renew": renew, "release": c.Release(ended, g), "get": get, "list": list, "break": broken, "watch": watch,
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if kept := c.Kept(); kept != 1 {
		t.Errorf("%d entries; want the one lock", kept)
	}
	if _, err := c.Renew(t.Context(), g); err != nil {
		t.Error(err)
	}
}

// Numbers at the end of their range are refused, and change nothing.
func TestNumbersDoNotOverflow(t *testing.T) {
	c := memlock.New()
	before, err := c.Acquire(t.Context(), piton.Request{Lock: "a", Holder: "h", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []piton.Request{
		{Lock: "b", Holder: "h", TTL: time.Minute, Floor: math.MaxInt64},
		{Lock: "b", Holder: "h", TTL: time.Minute, Floor: piton.MaxToken},
		{Lock: "b", Holder: "h", TTL: math.MaxInt64},
	} {
		if g, err := c.Acquire(t.Context(), r); err == nil {
			t.Errorf("%+v was granted: %+v", r, g)
		}
	}
	after, err := c.Acquire(t.Context(), piton.Request{Lock: "c", Holder: "h", TTL: time.Minute})
	if err != nil || after.Token <= before.Token {
		t.Errorf("token %d after %d, %v", after.Token, before.Token, err)
	}
}
