package sqlitelock

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/pitonlock/piton"
)

func TestNothingLeftOfManyNames(t *testing.T) {
	const names = mostRows + 3000 // for a million see internal/e2e
	path, clock := newPath(t), new(fakeMachine)
	clock.pass(time.Hour)
	c := openWith(t, path, clock.boot("boot-1"))
	first := take(t, c, "name-0", "h")
	for i := range names {
		clock.pass(time.Microsecond)
		g := take(t, c, fmt.Sprint("name-", i), "h")
		if err := c.Release(ctx, g); err != nil {
			t.Fatal(err)
		}
	}
	conn := foreign(t, path)
	rows := number(t, conn, "SELECT count(*) FROM piton_locks")
	if counted := number(t, conn, "SELECT locks FROM piton_floor"); counted != rows || rows > mostRows+1 {
		t.Fatalf("%d rows, counted as %d; want at most %d", rows, counted, mostRows+1)
	}
	if g := take(t, c, "name-0", "h2"); g.Token <= first.Token {
		t.Fatalf("token %d after %d: the deleted row was forgotten", g.Token, first.Token)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() > 8<<20 {
		t.Fatalf("size %d, %v", info.Size(), err)
	}
	t.Logf("%d names: %d rows, %d KiB", names, rows, info.Size()>>10)
}

func TestOldFreeRowsAreCollectedAFewAtATime(t *testing.T) {
	c, clock := openFake(t)
	conn := foreign(t, c.path)
	count := func() int64 { return number(t, conn, "SELECT count(*) FROM piton_locks") }
	tokens := map[string]piton.Token{}
	for i := range 20 {
		name := fmt.Sprint("name-", i)
		r := request(name, "h")
		r.Floor = piton.Token(100 * i)
		g, err := c.Acquire(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		tokens[name] = g.Token
		if i%2 == 0 { // half is released, half expires
			if err := c.Release(ctx, g); err != nil {
				t.Fatal(err)
			}
		}
	}
	clock.pass(mostFreeTime - time.Second)
	long := request("long", "h")
	long.TTL = 24 * time.Hour
	if _, err := c.Acquire(ctx, long); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 21 {
		t.Fatalf("%d rows: young ones were collected", n)
	}
	clock.pass(time.Minute)
	for _, want := range []int64{21 - 8, 21 - 16, 1, 1} {
		if _, err := c.Acquire(ctx, long); err != nil {
			t.Fatal(err)
		}
		if n := count(); n != want {
			t.Fatalf("%d rows, want %d", n, want)
		}
	}
	clock.pass(mostFreeTime)
	for name, before := range tokens {
		if g := take(t, c, name, "h2"); g.Token <= before {
			t.Fatalf("%s: token %d after %d", name, g.Token, before)
		}
	}
	if _, ok, err := c.Get(ctx, "long"); !ok || err != nil {
		t.Fatalf("a held row was collected: %v", err)
	}
}

func TestAnEarlierBootIsCollectedAtOnce(t *testing.T) {
	path, clock := newPath(t), new(fakeMachine)
	clock.pass(time.Hour)
	before := openWith(t, path, clock.boot("boot-1"))
	for i := range 5 {
		take(t, before, fmt.Sprint("name-", i), "h")
	}
	after := new(fakeMachine)
	c := openWith(t, path, after.boot("boot-2"))
	take(t, c, "other", "h")
	if n := number(t, foreign(t, path), "SELECT count(*) FROM piton_locks"); n != 1 {
		t.Fatalf("%d rows", n)
	}
}

func TestAHugeTokenIsNoFloorForOtherLocks(t *testing.T) {
	c, clock := openFake(t)
	r := request("huge", "h")
	r.Floor = piton.MaxToken - 2
	g, err := c.Acquire(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	clock.pass(time.Hour)
	take(t, c, "x", "h")
	if g := take(t, c, "y", "h"); g.Token > 10 {
		t.Fatalf("token %d", g.Token)
	}
	if next := take(t, c, "huge", "h2"); next.Token != g.Token+1 {
		t.Fatalf("token %d after %d", next.Token, g.Token)
	}
}

func TestADeletedRowDoesNotLowerTokens(t *testing.T) {
	c, _ := openFake(t)
	var g piton.Grant
	for i := range 5 {
		g = take(t, c, "a", fmt.Sprint("h", i))
		if i < 4 {
			if err := c.Release(ctx, g); err != nil {
				t.Fatal(err)
			}
		}
	}
	run(t, foreign(t, c.path), "DELETE FROM piton_locks")
	_, err := c.Renew(ctx, g)
	wantLost(t, err, piton.ReasonExpired, 0)
	if err := c.Release(ctx, g); err != nil {
		t.Fatal(err)
	}
	if next := take(t, c, "a", "other"); next.Token <= g.Token {
		t.Fatalf("token %d after %d", next.Token, g.Token)
	}
}

// A restored backup has forgotten tokens; what the storage has seen comes back
// as the floor.
func TestTokenHealsAfterARestoredBackup(t *testing.T) {
	path, clock := newPath(t), new(fakeMachine)
	clock.pass(time.Hour)
	c := openWith(t, path, clock.boot("boot-1"))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	backup, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c = openWith(t, path, clock.boot("boot-1"))
	var seen piton.Grant
	for i := range 10 {
		seen = take(t, c, "a", fmt.Sprint("h", i))
		clock.pass(time.Minute)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, backup, 0o600); err != nil {
		t.Fatal(err)
	}
	c = openWith(t, path, clock.boot("boot-1"))
	g := take(t, c, "a", "new")
	if g.Token > seen.Token {
		t.Fatalf("token %d: the backup has forgotten nothing", g.Token)
	}
	r := request("a", "new")
	r.Floor = seen.Token
	if g, err = c.Acquire(ctx, r); err != nil || g.Token <= seen.Token {
		t.Fatal(g, err)
	}
	if _, err := c.Renew(ctx, g); err != nil {
		t.Fatal(err)
	}
}
