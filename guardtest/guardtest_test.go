package guardtest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/guardtest"
)

// storage is the smallest guarded storage: maps in memory. Its faults are the
// mistakes that the laws exist to find.
type storage struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a transaction ends
	marks   map[string]piton.Fence
	rows    int // marks ever written, for the fault "history"
	open    map[string]int
	values  map[string]int64
	faults  []string
}

func newStorage(faults ...string) *storage {
	return &storage{changed: make(chan struct{}), marks: map[string]piton.Fence{}, open: map[string]int{}, values: map[string]int64{}, faults: faults}
}

func (s *storage) has(fault string) bool { return slices.Contains(s.faults, fault) }

func (s *storage) name(lock string) string {
	if s.has("folds names") {
		return strings.ToLower(lock)
	}
	return lock
}

func (s *storage) Seal(ctx context.Context, f piton.Fence) error {
	if err := piton.ValidateLock(f.Lock); err != nil && !s.has("accepts any name") {
		return err
	}
	lock := s.name(f.Lock)
	for {
		s.mu.Lock()
		mark := s.marks[lock]
		switch {
		case s.has("seal is last writer wins"):
		case mark.Token == f.Token && (mark.Holder == f.Holder || s.has("ignores the holder")) && !s.has("repeated seal is stale"):
			s.mu.Unlock()
			return nil
		case mark.Token >= f.Token:
			s.mu.Unlock()
			return &piton.StaleError{Fence: f, Mark: mark}
		}
		if s.open[lock] == 0 || s.has("seal does not wait") {
			if !s.has("seal records nothing") {
				s.marks[lock] = f
			}
			s.rows++
			s.mu.Unlock()
			return nil
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *storage) Mark(_ context.Context, lock string) (piton.Fence, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mark, ok := s.marks[s.name(lock)]
	return mark, ok, nil
}

func (s *storage) Begin(ctx context.Context, f piton.Fence) (guardtest.Tx, error) {
	if err := piton.ValidateLock(f.Lock); err != nil && !s.has("accepts any name") {
		return nil, err
	}
	lock := s.name(f.Lock)
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.has("serialises writers") && s.open[lock] > 0 {
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
			s.mu.Lock()
		case <-ctx.Done():
			s.mu.Lock()
			return nil, ctx.Err()
		}
	}
	mark := s.marks[lock]
	switch {
	case s.has("admits everything"):
	case s.has("check raises the mark") && mark.Token < f.Token:
		s.marks[lock] = f
	case mark.Token < f.Token:
		return nil, fmt.Errorf("mark %d: %w", mark.Token, piton.ErrNotSealed)
	case mark.Token > f.Token, mark.Holder != f.Holder && !s.has("ignores the holder"):
		if s.has("refusal leaks") {
			s.open[lock+" leaked"]++
		}
		return nil, &piton.StaleError{Fence: f, Mark: mark}
	}
	s.open[lock]++
	return &memTx{s: s, lock: lock, writes: map[string]int64{}}, nil
}

type memTx struct {
	s      *storage
	lock   string
	writes map[string]int64
	ended  bool
}

func (t *memTx) Read(_ context.Context, key string) (int64, error) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.s.values[key], nil
}

func (t *memTx) Write(_ context.Context, key string, value int64) error {
	t.writes[key] = value
	return nil
}

func (t *memTx) Commit(ctx context.Context) error {
	if t.ended {
		return errors.New("the transaction has ended")
	}
	t.s.mu.Lock()
	for key, value := range t.writes {
		t.s.values[key] = value
	}
	t.s.mu.Unlock()
	return t.Rollback(ctx)
}

func (t *memTx) Rollback(context.Context) error {
	if t.ended {
		return nil
	}
	t.ended = true
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.s.open[t.lock]--
	close(t.s.changed)
	t.s.changed = make(chan struct{})
	return nil
}

func (s *storage) harness() guardtest.Harness {
	return guardtest.Harness{
		Patience: 50 * time.Millisecond,
		Open:     func(context.Context) (guardtest.Store, error) { return s, nil },
		Marks: func(_ context.Context, prefix string) (n int, err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.has("keeps history") {
				return s.rows, nil
			}
			for lock := range s.marks {
				if strings.HasPrefix(lock, prefix) {
					n++
				}
			}
			return n, nil
		},
		InUse: func(guardtest.Store) (n int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, open := range s.open {
				n += open
			}
			return n
		},
	}
}

func TestLawsOnMemory(t *testing.T) {
	guardtest.Run(t, newStorage().harness())
}

// Every law finds the mistakes that it is there for.
func TestLawsFindFaults(t *testing.T) {
	for fault, laws := range map[string][]string{
		"seal records nothing":     {"SealedBeforeUse"},
		"check raises the mark":    {"SealedBeforeUse"},
		"admits everything":        {"SealedBeforeUse", "StorageDecides", "NoReadHole", "OneHolderPerToken"},
		"seal is last writer wins": {"StorageDecides", "OneHolderPerToken"},
		"seal does not wait":       {"NoReadHole"},
		"ignores the holder":       {"OneHolderPerToken"},
		"repeated seal is stale":   {"UnknownIsNotNo"},
		"folds names":              {"OddNames"},
		"accepts any name":         {"OddNames"},
		"serialises writers":       {"ParallelWriters"},
		"keeps history":            {"NothingLeft"},
		"refusal leaks":            {"NothingLeft"},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			for _, r := range guardtest.Check(t.Context(), newStorage(fault).harness()) {
				if r.Err == nil && slices.Contains(laws, r.Law.Name) {
					t.Errorf("%s did not notice", r.Law.Name)
				}
			}
		})
	}
}

func TestIncompleteHarness(t *testing.T) {
	results := guardtest.Check(t.Context(), guardtest.Harness{})
	if len(results) != len(guardtest.Laws) {
		t.Fatalf("%d results for %d laws", len(results), len(guardtest.Laws))
	}
	for _, r := range results {
		if r.Err == nil || r.Law.Text == "" {
			t.Errorf("%s: %v; want the harness refused and a text", r.Law.Name, r.Err)
		}
	}
}
