package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/etcd/etcdlock"
	"github.com/pitonlock/piton/internal/servertest"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
)

func TestAcquireIsIdempotentPerHolder(t *testing.T) {
	c, _ := fresh(t)
	first := grant(t, c, request("a", "h1"))
	if again := grant(t, c, request("a", "h1")); again != first {
		t.Errorf("the second time %v; want %v", again, first)
	}
	r := request("a", "h1")
	r.Floor = first.Token + 1000
	lifted := grant(t, c, r)
	if lifted.Token != r.Floor+1 {
		t.Errorf("with floor %d: token %d", r.Floor, lifted.Token)
	}
	if kept := grant(t, c, r); kept != lifted {
		t.Errorf("with the floor below the token: %v; want %v", kept, lifted)
	}
	r = request("a", "h2")
	r.Floor = lifted.Token + 1000
	_, err := c.Acquire(t.Context(), r)
	var held *piton.HeldError
	if !errors.As(err, &held) || held.Token != lifted.Token || held.Owner != "owner of h1" || held.Remaining <= 50*time.Second || held.Remaining > time.Minute {
		t.Errorf("another holder got %v", err)
	}
	if next := grant(t, c, request("b", "h")); next.Token > r.Floor {
		t.Errorf("the floor of a request that was refused raised tokens to %d", next.Token)
	}
	_, err = c.Renew(t.Context(), first)
	wantLost(t, err, piton.ReasonReplaced, lifted.Token)
	wantLost(t, c.Release(t.Context(), first), piton.ReasonReplaced, lifted.Token)
	must(t, c.Release(t.Context(), lifted))
}

// A token is the revision of the write that granted, plus an offset that a floor
// raises: for all locks, or for one when it is far above everything.
func TestTokensAreRevisionsPlusAnOffset(t *testing.T) {
	c, _ := fresh(t)
	first := grant(t, c, request("a", "h"))
	answer, err := c.etcd.Get(t.Context(), "piton/lock/a")
	if err != nil || len(answer.Kvs) != 1 || answer.Kvs[0].ModRevision != int64(first.Token) {
		t.Errorf("the first token is %d, the key %v, %v", first.Token, answer, err)
	}
	r := request("b", "h")
	r.Floor = 5000
	if g := grant(t, c, r); g.Token != 5001 {
		t.Errorf("above a floor of 5000: token %d", g.Token)
	}
	if g := grant(t, c, request("c", "h")); g.Token <= 5001 || g.Token > 5010 {
		t.Errorf("another lock afterwards: token %d", g.Token)
	}
	if renewed, err := c.Renew(t.Context(), first); err != nil || renewed.Token != first.Token {
		t.Errorf("an older grant: %v, %v", renewed, err)
	}
	must(t, c.Release(t.Context(), first))
	r = request("far", "h")
	r.Floor = 1 << 44
	far := grant(t, c, r)
	if far.Token != 1<<44+1 {
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

func TestTokensEndAtMaxToken(t *testing.T) {
	c, _ := fresh(t)
	r := request("a", "h")
	r.Floor = piton.MaxToken - 1
	last := grant(t, c, r)
	if last.Token != piton.MaxToken {
		t.Errorf("the last token is %d", last.Token)
	}
	if again := grant(t, c, request("a", "h")); again != last {
		t.Errorf("the same holder again: %v", again)
	}
	must(t, c.Release(t.Context(), last))
	_, err := c.Acquire(t.Context(), request("a", "h2"))
	if err == nil || errors.Is(err, piton.ErrHeld) || !strings.Contains(err.Error(), "no token") {
		t.Errorf("with all tokens used: %v", err)
	}
	if _, held, err := c.Get(t.Context(), "a"); held || err != nil {
		t.Errorf("the refused request left the lock held: %v, %v", held, err)
	}
	grant(t, c, request("b", "h"))
}

// Whoever raises the offset while others acquire: each grant of a lock is above
// the one before it, and above its floor.
func TestTokensGrowWhileFloorsRace(t *testing.T) {
	const clients, turns = 8, 60
	server := servertest.StartEtcd(t)
	var inside sync.Mutex
	last := map[string]piton.Token{}
	var all sync.WaitGroup
	for n := range clients {
		c := open(t, server.Endpoint())
		all.Go(func() {
			for turn := range turns {
				r := request([]string{"a", "b", "far"}[rand.IntN(3)], fmt.Sprint("h", n, ".", turn))
				inside.Lock()
				if rand.IntN(2) == 0 {
					r.Floor = max(last["a"], last["b"]) + piton.Token(rand.IntN(50))
				}
				if r.Lock == "far" && r.Floor > 0 {
					r.Floor = max(last["far"], 1<<44) + piton.Token(rand.IntN(50))
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
	c := open(t, server.Endpoint())
	if n, err := c.kept(t.Context(), ""); n > 2 || err != nil {
		t.Errorf("%d keys stay, %v; want two offsets at most", n, err)
	}
	wantLeases(t, c, 0)
}

func wantLeases(t *testing.T, c client, want int) {
	t.Helper()
	leases, err := c.etcd.Leases(t.Context())
	if err != nil || len(leases.Leases) != want {
		t.Errorf("%d etcd leases, %v; want %d", len(leases.Leases), err, want)
	}
}

// An acquisition has one etcd lease at most, and none when it was refused.
func TestNoLeaseIsLeft(t *testing.T) {
	c, _ := fresh(t)
	g := grant(t, c, request("a", "h"))
	wantLeases(t, c, 1)
	for _, r := range []piton.Request{request("a", "h2"), {Lock: "b", Holder: "h", TTL: time.Second, Floor: piton.MaxToken}, {Lock: "b", TTL: time.Second}} {
		if _, err := c.Acquire(t.Context(), r); err == nil {
			t.Errorf("%v was granted", r)
		}
	}
	r := request("a", "h")
	r.Floor = g.Token
	g = grant(t, c, r)
	wantLeases(t, c, 1)
	must(t, c.Release(t.Context(), g))
	wantLeases(t, c, 0)
	g = grant(t, c, request("a", "h"))
	g.Token = 0
	must(t, c.Release(t.Context(), g), c.Release(t.Context(), g))
	wantLeases(t, c, 0)
	g = grant(t, c, request("a", "h"))
	if ok, err := c.Break(t.Context(), "a", g.Token); !ok || err != nil {
		t.Error(ok, err)
	}
	wantLeases(t, c, 0)
	// Everybody finds the lock free, and makes a lease; one of them gets the lock.
	var all sync.WaitGroup
	for n := range 16 {
		all.Go(func() {
			if _, err := c.Acquire(t.Context(), request("c", fmt.Sprint("h", n))); err != nil && !errors.Is(err, piton.ErrHeld) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	wantLeases(t, c, 1)
}

// etcd has whole seconds, and no TTL below one and a half election timeouts.
func TestTheGrantedTTLIsTheServersAnswer(t *testing.T) {
	slow := open(t, servertest.StartEtcd(t, "--heartbeat-interval", "100", "--election-timeout", "2000").Endpoint())
	quick, _ := fresh(t)
	for _, it := range []struct {
		c         client
		ask, want time.Duration
	}{
		{quick, time.Second, time.Second},
		{quick, time.Millisecond, time.Second},
		{quick, 2*time.Second + 1, 3 * time.Second},
		{slow, time.Second, 3 * time.Second},
		{slow, time.Minute, time.Minute},
	} {
		r := request(it.ask.String(), "h")
		r.TTL = it.ask
		g := grant(t, it.c, r)
		renewed, err := it.c.Renew(t.Context(), g)
		if g.TTL != it.want || renewed != g || err != nil {
			t.Errorf("%v became %v, renewed %v, %v; want %v", it.ask, g.TTL, renewed.TTL, err, it.want)
		}
	}
	for _, ttl := range []time.Duration{0, -time.Second} {
		if _, err := quick.Acquire(t.Context(), piton.Request{Lock: "x", Holder: "h", TTL: ttl}); err == nil || errors.Is(err, piton.ErrHeld) {
			t.Errorf("TTL %v: %v", ttl, err)
		}
	}
}

// Asking again and renewing start the time of a grant anew; its end is its own,
// whatever else its holder has.
func TestEachGrantHasItsOwnTime(t *testing.T) {
	c, _ := fresh(t)
	a, b := grant(t, c, request("a", "h")), grant(t, c, request("b", "h"))
	left := func() int64 {
		t.Helper()
		leases, err := c.etcd.Get(t.Context(), "piton/lock/a")
		must(t, err)
		answer, err := c.etcd.TimeToLive(t.Context(), clientv3.LeaseID(leases.Kvs[0].Lease))
		must(t, err)
		return answer.TTL // in whole seconds, rounded down
	}
	for what, renew := range map[string]func() (piton.Grant, error){
		"Acquire": func() (piton.Grant, error) { return c.Acquire(t.Context(), request("a", "h")) },
		"Renew":   func() (piton.Grant, error) { return c.Renew(t.Context(), a) },
		"RenewBatch": func() (piton.Grant, error) {
			r := c.RenewBatch(t.Context(), []piton.Grant{a})[0]
			return r.Grant, r.Err
		},
	} {
		servertest.Eventually(t, 10*time.Second, func() bool { return left() < 59 }, "a second of the lease's time")
		if _, err := c.Renew(t.Context(), b); err != nil || left() >= 59 {
			t.Errorf("a renewal of another grant, %v, leaves %d seconds", err, left())
		}
		wrong := a
		wrong.Token++
		if _, err := c.Renew(t.Context(), wrong); !errors.Is(err, piton.ErrLost) || left() >= 59 {
			t.Errorf("a renewal that was refused, %v, leaves %d seconds", err, left())
		}
		if g, err := renew(); err != nil || g != a || left() < 59 {
			t.Errorf("%s: %v, %v, %d seconds left", what, g, err, left())
		}
	}
	must(t, c.Release(t.Context(), b))
	if renewed, err := c.Renew(t.Context(), a); err != nil || renewed != a {
		t.Errorf("after the release of another grant: %v, %v", renewed, err)
	}
}

func TestRenewAndReleaseOnlyOwn(t *testing.T) {
	c, _ := fresh(t)
	old := grant(t, c, request("a", "h1"))
	must(t, c.Release(t.Context(), old), c.Release(t.Context(), old))
	_, err := c.Renew(t.Context(), old)
	wantLost(t, err, piton.ReasonExpired, 0)
	if answer, err := c.etcd.Get(t.Context(), "piton/", clientv3.WithPrefix()); err != nil || answer.Count != 0 {
		t.Errorf("a refused renewal left %v, %v", answer, err)
	}
	next := grant(t, c, request("a", "h2"))
	_, err = c.Renew(t.Context(), old)
	wantLost(t, err, piton.ReasonTaken, next.Token)
	wantLost(t, c.Release(t.Context(), old), piton.ReasonTaken, next.Token)
	old.Token = 0
	wantLost(t, c.Release(t.Context(), old), piton.ReasonTaken, next.Token)
	// After a restored backup the same revision may be another's.
	twin := next
	twin.Holder = "h1"
	wantLost(t, c.Release(t.Context(), twin), piton.ReasonTaken, next.Token)
	_, err = c.Renew(t.Context(), twin)
	wantLost(t, err, piton.ReasonTaken, next.Token)
	if renewed, err := c.Renew(t.Context(), next); err != nil || renewed != next {
		t.Errorf("own renewal: %v, %v", renewed, err)
	}
	noRef := next
	noRef.Ref = ""
	if err := c.Release(t.Context(), noRef); err == nil || errors.Is(err, piton.ErrLost) || !strings.Contains(err.Error(), "Ref") {
		t.Errorf("release without the driver's handle: %v", err)
	}
}

func TestBreakComparesTheToken(t *testing.T) {
	c, _ := fresh(t)
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

func TestABatchTellsEachApart(t *testing.T) {
	c, server := fresh(t)
	var grants []piton.Grant
	for n := range 250 {
		grants = append(grants, grant(t, c, request(fmt.Sprint("lock ", n), "h")))
	}
	must(t, c.Release(t.Context(), grants[7]), c.Release(t.Context(), grants[149]))
	other := grant(t, c, request(grants[149].Lock, "h2"))
	grants = append(grants, piton.Grant{Fence: piton.Fence{Token: 1, Holder: "h"}})
	for i, r := range c.RenewBatch(t.Context(), grants) {
		switch i {
		case 7:
			wantLost(t, r.Err, piton.ReasonExpired, 0)
		case 149:
			wantLost(t, r.Err, piton.ReasonTaken, other.Token)
		case 250:
			if r.Err == nil {
				t.Error("a grant without a name was renewed")
			}
		default:
			if r.Err != nil || r.Grant != grants[i] {
				t.Fatalf("renewal %d: %v, %v", i, r.Grant, r.Err)
			}
		}
	}
	server.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	for i, r := range c.RenewBatch(ctx, grants[:3]) {
		if !errors.Is(r.Err, context.DeadlineExceeded) || errors.Is(r.Err, piton.ErrLost) {
			t.Errorf("on a frozen server renewal %d: %v; want unknown", i, r.Err)
		}
	}
	server.Resume(t)
}

func TestForeignKeysAreNotHolders(t *testing.T) {
	c, _ := fresh(t)
	for name, text := range map[string]string{"text": "x", "no holder": "{}"} {
		_, err := c.etcd.Put(t.Context(), "piton/lock/"+name, text)
		must(t, err)
		_, err = c.Acquire(t.Context(), request(name, "h"))
		if err == nil || errors.Is(err, piton.ErrHeld) || !strings.Contains(err.Error(), "not one of piton's") {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantLeases(t, c, 0)
	if _, err := etcdlock.New(nil); err == nil {
		t.Error("a nil client is accepted")
	}
}

// A client may be confined to a part of the key space.
func TestNamespaces(t *testing.T) {
	c, server := fresh(t)
	confined := open(t, server.Endpoint())
	confined.etcd.KV = namespace.NewKV(confined.etcd.KV, "team/")
	confined.etcd.Watcher = namespace.NewWatcher(confined.etcd.Watcher, "team/")
	r := request("a", "h")
	r.Floor = 1000
	outer, inner := grant(t, c, request("a", "h0")), grant(t, confined, r)
	if held, ok, err := confined.Get(t.Context(), "a"); !ok || err != nil || held.Token != inner.Token {
		t.Errorf("%+v, %v, %v", held, ok, err)
	}
	hints, stop, err := confined.Watch(t.Context(), "a")
	must(t, err)
	defer stop()
	_, err = confined.Renew(t.Context(), inner)
	must(t, err, confined.Release(t.Context(), inner))
	wantHint(t, hints)
	if _, err := c.Renew(t.Context(), outer); err != nil {
		t.Error(err)
	}
	if all, err := c.etcd.Get(t.Context(), "team/piton/offset"); err != nil || all.Count != 1 {
		t.Errorf("the offset: %v, %v", all, err)
	}
}

func TestCheckNamesVersionsThatEndLivingLeases(t *testing.T) {
	for version, want := range map[string]bool{
		"3.3.27": true, "3.4.23": true, "3.4.30": true, "3.4.31": false, "3.5.12": true, "3.5.13": false, "3.6.0": false, "3.7.0-alpha.0": false, "4.0.0": false, "?": false,
	} {
		if etcdlock.EndsLivingLeases(version) != want {
			t.Errorf("%s: %v; want %v", version, !want, want)
		}
	}
	c, _ := fresh(t)
	answer, err := c.etcd.Status(t.Context(), c.etcd.Endpoints()[0])
	must(t, err)
	warnings, err := c.Check(t.Context())
	if must(t, err); etcdlock.EndsLivingLeases(answer.Version) != (len(warnings) == 1 && strings.Contains(warnings[0], "etcd "+answer.Version+" may end")) {
		t.Errorf("etcd %s: %q", answer.Version, warnings)
	}
}
