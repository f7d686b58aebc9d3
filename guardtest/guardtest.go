// Package guardtest is the executable meaning of [piton.Guard]: the laws that
// every guard has to keep, each a named check over a real storage.
//
// A guard's own test is a harness and one call:
//
//	func TestLaws(t *testing.T) {
//		guardtest.Run(t, guardtest.Harness{Open: ..., Marks: ..., InUse: ...})
//	}
//
// [Check] does the same without package testing, for programs that prove a
// user's own servers.
package guardtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pitonlock/piton"
)

// Store is a guard together with the storage that it guards, as one process
// sees it. It is safe for concurrent use. When it is an io.Closer, the law that
// opened it closes it.
type Store interface {
	piton.Guard

	// Mark returns the newest recorded fence of lock; ok is false when there is none.
	Mark(ctx context.Context, lock string) (mark piton.Fence, ok bool, err error)

	// Begin starts a transaction that is admitted under f, or returns the guard's
	// refusal: a *[piton.StaleError], or an error that wraps [piton.ErrNotSealed].
	// It then leaves nothing open. A storage whose every write is a transaction of
	// its own collects the writes and checks f once more when it commits them.
	Begin(ctx context.Context, f piton.Fence) (Tx, error)
}

// Tx is a guarded transaction over numbers that are found by key. Ended by
// Commit or Rollback; an error of Commit ends it too. Rollback of an ended
// transaction is nil.
type Tx interface {
	Read(ctx context.Context, key string) (int64, error) // 0 when never written
	Write(ctx context.Context, key string, value int64) error
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// Harness connects the laws to a storage. Laws use lock names and keys of their
// own, so one storage may serve many runs.
type Harness struct {
	// Open returns a new client of the storage, always the same storage. Required.
	Open func(ctx context.Context) (Store, error)

	// Marks counts the marks (rows, keys, objects) that the storage keeps for
	// locks whose names begin with prefix. Required.
	Marks func(ctx context.Context, prefix string) (int, error)

	// InUse counts what s has open at the moment: transactions, and connections
	// that are not idle. Required.
	InUse func(s Store) int

	// OneWriter says that the storage runs one writing transaction at a time, as
	// SQLite does. The law ParallelWriters then asks only that both get through.
	OneWriter bool

	// Patience is how long a law watches a call before it takes it to be waiting;
	// 0 means 200 ms.
	Patience time.Duration
}

// Law is one rule that a guard keeps.
type Law struct {
	Name  string // as in docs/guarantees.md
	Text  string
	Check func(ctx context.Context, h Harness) error // nil when kept; the error says what was seen
}

// Result is the outcome of one law.
type Result struct {
	Law  Law
	Err  error // nil when the law was kept
	Took time.Duration
}

// limit ends a law that hangs.
const limit = 30 * time.Second

// Run checks every law as a subtest of its name.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, law := range Laws {
		t.Run(law.Name, func(t *testing.T) {
			if r := check(t.Context(), law, h); r.Err != nil {
				t.Errorf("%s\nThe law: %s", r.Err, law.Text)
			}
		})
	}
}

// Check checks every law, in the order of [Laws], and never panics on account of
// a storage that misbehaves. A law runs for at most 30 s.
func Check(ctx context.Context, h Harness) []Result {
	results := make([]Result, 0, len(Laws))
	for _, law := range Laws {
		results = append(results, check(ctx, law, h))
	}
	return results
}

func check(ctx context.Context, law Law, h Harness) Result {
	start := time.Now()
	r := Result{Law: law}
	if h.Open == nil || h.Marks == nil || h.InUse == nil {
		r.Err = errors.New("guardtest: the harness is incomplete; Open, Marks and InUse are required")
		return r
	}
	if h.Patience <= 0 {
		h.Patience = 200 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r.Err = law.Check(ctx, h)
	r.Took = time.Since(start)
	return r
}

// Laws are the laws of guards, in the order in which they build on each other.
var Laws = []Law{
	{"SealedBeforeUse", "A seal that returned nil has recorded exactly its fence; a fence that was not sealed, or is newer than the mark, is not admitted and moves nothing.", sealedBeforeUse},
	{"StorageDecides", "Once a storage has recorded fence g, no write with another fence f < g, or f = g of another holder, commits. Check and write are one atomic step.", storageDecides},
	{"NoReadHole", "What a holder reads from a guarded storage after its seal is not changed by any earlier holder before this holder's writes commit.", noReadHole},
	{"OneHolderPerToken", "Two holders with one number: the first recorded wins, the other is refused. A holder may write as often as it likes under its one token.", oneHolderPerToken},
	{"UnknownIsNotNo", "A seal whose reply was lost may have succeeded: sealing again with the same fence is nil, waits for nobody and is never reported as stale.", unknownIsNotNo},
	{"OddNames", "Lock names are opaque UTF-8, 1 to 512 bytes, and all distinct; anything else is refused before it reaches the storage.", oddNames},
	{"ParallelWriters", "Transactions of one holder do not serialise on the mark, where the storage runs writers in parallel.", parallelWriters},
	{"NothingLeft", "However often a lock is sealed, refused and written under, one mark of it is left, and nothing open.", nothingLeft},
}

// random returns n random bytes in hexadecimal.
func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// fences returns one fence per token on a new lock, each of a holder of its own.
func fences(law string, tokens ...piton.Token) []piton.Fence {
	lock := "guardtest/" + law + "/" + random(8)
	all := make([]piton.Fence, len(tokens))
	for i, token := range tokens {
		all[i] = piton.Fence{Lock: lock, Token: token, Holder: random(16)}
	}
	return all
}

// wantStale accepts only a *piton.StaleError with exactly these fences.
func wantStale(what string, err error, f, mark piton.Fence) error {
	var stale *piton.StaleError
	switch {
	case err == nil:
		return fmt.Errorf("%s: accepted; want a *piton.StaleError, since the mark is %v", what, mark)
	case !errors.As(err, &stale) || !errors.Is(err, piton.ErrStale):
		return fmt.Errorf("%s: want a *piton.StaleError, got: %w", what, err)
	case stale.Fence != f || stale.Mark != mark:
		return fmt.Errorf("%s: the StaleError says fence %v and mark %v; want %v and %v", what, stale.Fence, stale.Mark, f, mark)
	}
	return nil
}

func wantNotSealed(what string, err error) error {
	switch {
	case err == nil:
		return fmt.Errorf("%s: admitted; want an error that wraps piton.ErrNotSealed", what)
	case !errors.Is(err, piton.ErrNotSealed) || errors.Is(err, piton.ErrStale):
		return fmt.Errorf("%s: want an error that wraps piton.ErrNotSealed and not piton.ErrStale, got: %w", what, err)
	}
	return nil
}

func wantMark(ctx context.Context, s Store, want piton.Fence) error {
	mark, ok, err := s.Mark(ctx, want.Lock)
	switch {
	case err != nil:
		return fmt.Errorf("mark of %q: %w", want.Lock, err)
	case !ok:
		return fmt.Errorf("mark of %q: none; want %v", want.Lock, want)
	case mark != want:
		return fmt.Errorf("mark of %q: %v; want %v", want.Lock, mark, want)
	}
	return nil
}
