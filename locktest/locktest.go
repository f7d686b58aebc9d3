// Package locktest is the executable meaning of [piton.Coordinator]: the laws that
// every coordinator has to keep, each a named check over a real one.
//
// A coordinator's own test is a harness and one call:
//
//	func TestLaws(t *testing.T) {
//		locktest.Run(t, locktest.Harness{New: ..., Forget: ..., Left: ...})
//	}
//
// [Check] does the same without package testing, for programs that prove a
// user's own servers.
package locktest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton"
)

// Harness connects the laws to a coordinator. Laws use lock names of their own,
// so one coordinator may serve many runs.
type Harness struct {
	// New returns a new client of the coordinator, always the same one, as another
	// process would have it. The law that opened it closes it. Required.
	New func(ctx context.Context) (piton.Coordinator, error)

	// Close ends a client that New returned. nil stands for its own Close, if it is an
	// io.Closer.
	Close func(c piton.Coordinator) error

	// Forget makes the coordinator lose all that it knows while its clients stay
	// connected, as a flush or a failover does. Without it, on servers that others
	// use, TokenHeals fails with [ErrNotShown].
	Forget func(ctx context.Context) error

	// Left counts what free locks whose names begin with prefix leave for ever:
	// rows or keys that neither expire nor are collected. Required.
	Left func(ctx context.Context, prefix string) (int, error)

	// Prefix begins the names of all locks that the laws take, but for one of a single
	// byte, so that what they leave can be found; at most 64 bytes. "" means "locktest/".
	Prefix string

	// TTL is the TTL of leases that a law waits out; 0 means 300 ms. It must be one
	// that the coordinator grants as it is.
	TTL time.Duration

	// Late is how long after its end the coordinator may take to notice that a grant
	// has ended; 0 means 50 ms. With more than one TTL a law could not tell that from a
	// renewal that counted.
	Late time.Duration

	// Twice says that a grant may last twice its TTL, as where the coordinator's TTLs
	// are lower bounds. Laws that wait for the end of a grant wait as long.
	Twice bool
}

// Law is one rule that a coordinator keeps.
type Law struct {
	Name  string // as in docs/guarantees.md
	Text  string
	check func(ctx context.Context, h Harness) error // nil when kept; the error says what was seen
}

// Result is the outcome of one law.
type Result struct {
	Law  Law
	Err  error // nil when the law was kept
	Took time.Duration
}

// ErrNotShown is in the error of a law that the harness gives no means to check.
var ErrNotShown = errors.New("locktest: could not be shown")

// late is how long after its end a grant of ttl may still be there.
func (h Harness) late(ttl time.Duration) time.Duration {
	if h.Twice {
		return h.Late + ttl
	}
	return h.Late
}

// limit ends a law that hangs.
const limit = 60 * time.Second

// Laws are the laws of coordinators, those of single steps first.
var Laws = []Law{
	{"IdempotentPerHolder", "A holder that asks again gets its grant again with its time started anew, and a token above the floor if it names one.", idempotentPerHolder},
	{"TokenGrows", "Per lock name, each grant's token is greater than every earlier grant's: across release, expiry, break and clients.", tokenGrows},
	{"FloorIsHonoured", "A granted token is above the floor and at most MaxToken; a floor that leaves no room is an error and changes nothing.", floorIsHonoured},
	{"RenewOnlyOwn", "A renewal neither revives an expired grant, nor re-creates a missing one, nor touches another's.", renewOnlyOwn},
	{"ReleaseOnlyOwn", "Release of a grant never ends a newer one. A repeated release is harmless.", releaseOnlyOwn},
	{"NoSharedClock", "The coordinator's own clock ends a grant: a crashed holder's lock is free when its TTL is over, not before, and at once then.", noSharedClock},
	{"OddNames", "Lock names are opaque UTF-8, 1 to 512 bytes, and all distinct; anything else is refused.", oddNames},
	{"OneHolder", "However many contend, one holds at a time.", oneHolder},
	{"WakeUp", "Where waiting is by push, every end of a lock reaches everyone who watches it.", wakeUp},
	{"FirstComeFirstServed", "Where the coordinator has a queue, who came first is served first; who gave up, is gone or is frozen does not hold up the others.", firstComeFirstServed},
	{"SealedBeforeUse", "When Acquire returns, every attached guard has recorded the lease's fence.", sealedBeforeUse},
	{"TokenHeals", "After the coordinator lost its memory, the next lease that is handed out still has a token above everything a sealed storage has seen.", tokenHeals},
	{"UnknownIsNotNo", "An attempt whose reply was lost is retried under the same holder id or cleaned up; it is never reported as held by another.", unknownIsNotNo},
	{"LostBeforeExpired", "The work's context is cancelled before the lease can end at the coordinator, also when the renewal call hangs.", lostBeforeExpired},
	{"LostIsFinal", "After loss was announced the lease never becomes valid again; a new one has a new token.", lostIsFinal},
	{"ReleaseAfterWork", "The lease is given back only when the work function has returned.", releaseAfterWork},
	{"NothingLeft", "When everyone has stopped, no goroutine is left, and lock names used once leave nothing for ever.", nothingLeft},
}

// Run checks every law as a subtest of its name.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, law := range Laws {
		t.Run(law.Name, func(t *testing.T) {
			if r := CheckLaw(t.Context(), law, h); r.Err != nil {
				t.Errorf("%s\nThe law: %s", r.Err, law.Text)
			}
		})
	}
}

// Check checks every law, in the order of [Laws]. A law runs for at most 60 s.
func Check(ctx context.Context, h Harness) []Result {
	results := make([]Result, 0, len(Laws))
	for _, law := range Laws {
		results = append(results, CheckLaw(ctx, law, h))
	}
	return results
}

// CheckLaw checks one law. It runs for at most 60 s.
func CheckLaw(ctx context.Context, law Law, h Harness) Result {
	start := time.Now()
	if h.New == nil || h.Left == nil {
		return Result{Law: law, Err: errors.New("locktest: the harness is incomplete; New and Left are required")}
	}
	if h.TTL <= 0 {
		h.TTL = 300 * time.Millisecond
	}
	if h.Close == nil {
		h.Close = func(c piton.Coordinator) error {
			if c, ok := c.(io.Closer); ok {
				return c.Close()
			}
			return nil
		}
	}
	if h.Prefix == "" {
		h.Prefix = "locktest/"
	}
	if h.Late <= 0 {
		h.Late = 50 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return Result{Law: law, Err: law.check(ctx, h), Took: time.Since(start)}
}

// clients opens n clients. close ends them and must be called.
func (h Harness) clients(ctx context.Context, n int) (all []piton.Coordinator, closeAll func(), err error) {
	closeAll = func() {
		for _, c := range all {
			_ = h.Close(c) // a law is about leases
		}
	}
	for range n {
		c, err := h.New(ctx)
		if err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("opening a client: %w", err)
		}
		all = append(all, c)
	}
	return all, closeAll, nil
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// name is a new lock name.
func (h Harness) name(law string) string { return h.Prefix + law + "/" + random(8) }

// request asks for a lock under a new holder id, for long.
func request(lock string) piton.Request {
	return piton.Request{Lock: lock, Holder: random(16), Owner: "locktest", TTL: time.Minute}
}

// checkGrant says what is wrong with a grant of r.
func checkGrant(g piton.Grant, r piton.Request) error {
	switch {
	case g.Lock != r.Lock || g.Holder != r.Holder:
		return fmt.Errorf("the grant is %v; want lock %q, holder %s", g.Fence, r.Lock, r.Holder)
	case g.Token <= r.Floor || g.Token > piton.MaxToken:
		return fmt.Errorf("the token is %d; want %d to %d", g.Token, r.Floor+1, piton.MaxToken)
	case g.TTL <= 0 || g.TTL > r.TTL:
		return fmt.Errorf("a TTL of %v was granted for %v", g.TTL, r.TTL)
	}
	return nil
}

func take(ctx context.Context, c piton.Coordinator, r piton.Request) (piton.Grant, error) {
	g, err := c.Acquire(ctx, r)
	if err != nil {
		return g, fmt.Errorf("acquire %.40q: %w", r.Lock, err)
	}
	return g, checkGrant(g, r)
}

// wantHeld accepts only a *piton.HeldError; token 0 stands for any.
func wantHeld(what string, err error, token piton.Token) error {
	var held *piton.HeldError
	switch {
	case err == nil:
		return fmt.Errorf("%s: done; want a *piton.HeldError", what)
	case !errors.As(err, &held) || errors.Is(err, piton.ErrLost):
		return fmt.Errorf("%s: want a *piton.HeldError, got: %w", what, err)
	case token != 0 && held.Token != 0 && held.Token != token:
		return fmt.Errorf("%s: held with token %d; want %d", what, held.Token, token)
	}
	return nil
}

// wantLost accepts only a *piton.LostError with one of these reasons.
func wantLost(what string, err error, reasons ...piton.Reason) error {
	var lost *piton.LostError
	if err == nil {
		return fmt.Errorf("%s: done; want a *piton.LostError", what)
	}
	if errors.As(err, &lost) {
		for _, r := range reasons {
			if lost.Reason == r {
				return nil
			}
		}
	}
	return fmt.Errorf("%s: want a *piton.LostError because %q, got: %w", what, reasons, err)
}

// wantHolder demands that g, or nobody for a zero grant, holds the lock now. A
// coordinator without [piton.Inspector] is asked by a contender instead.
func wantHolder(ctx context.Context, c piton.Coordinator, lock string, g piton.Grant) error {
	if i, ok := c.(piton.Inspector); ok {
		held, ok, err := i.Get(ctx, lock)
		switch {
		case err != nil:
			return fmt.Errorf("get: %w", err)
		case !ok && g.Token != 0:
			return fmt.Errorf("nobody holds %.40q; want token %d", lock, g.Token)
		case ok && (held.Token != g.Token || held.Lock != lock):
			return fmt.Errorf("token %d holds %.40q; want %d for %.40q", held.Token, held.Lock, g.Token, lock)
		}
		return nil
	}
	other := request(lock)
	got, err := c.Acquire(ctx, other)
	if g.Token != 0 {
		return wantHeld("a contender", err, g.Token)
	}
	if err != nil {
		return fmt.Errorf("a contender for a free lock: %w", err)
	}
	return c.Release(ctx, got)
}

// until repeats f, which says whether it is done, for as long as the law may run.
func until(ctx context.Context, what string, f func() (bool, error)) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		switch done, err := f(); {
		case err != nil:
			return fmt.Errorf("%s: %w", what, err)
		case done:
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: not before the law's time was over", what)
		}
	}
}

// pass waits for a time that the law is about.
func pass(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// names that are all different, and that somebody's driver has confused.
func differentNames(prefix string) []string {
	prefix += "odd " + random(8)
	odd := []string{
		"", " ", "  ", "a", "A", "a ", " a", "aa", "a/b", "a/b/", "/a/b", "a//b", "a.b", "a:b", "a;b", "a,b", "a{b}", "{a}b", "{a}{b}", "}", "{",
		"%", "%25", "%7B", "%s", "a%", "'", `"`, "`", `\`, `\\`, "a\tb", "a\nb", "a\r\nb", "*", "?", "[a]", "a_b", "a-b", "--", "$1", "?1", ":lock",
		"é", "e\u0301", "É", "ß", "ss", "ﬁ", "fi", "İ", "i", "日本", "🧗", "🧗‍♀️", "\u200b", "\u00a0", "\u2028", "\ufeff",
	}
	all := make([]string, 0, len(odd)+2)
	for _, o := range odd {
		all = append(all, prefix+o)
	}
	fill := strings.Repeat("x", piton.MaxLockBytes-len(prefix))
	return append(all, prefix+fill, prefix+fill[:len(fill)-1])
}
