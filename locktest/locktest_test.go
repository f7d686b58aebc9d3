package locktest_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/locktest"
	"github.com/pitonlock/piton/memlock"
)

// broken is a coordinator with a mistake: hooks replace single steps.
type broken struct {
	*memlock.Coordinator
	acquire func(ctx context.Context, r piton.Request) (piton.Grant, error)
	renew   func(ctx context.Context, g piton.Grant) (piton.Grant, error)
	release func(ctx context.Context, g piton.Grant) error
	watch   func(ctx context.Context, lock string) (<-chan struct{}, func(), error)
	batch   func(ctx context.Context, grants []piton.Grant) []piton.RenewResult
	list    func(ctx context.Context, prefix string, limit int) ([]piton.Held, error)
	get     func(ctx context.Context, lock string) (piton.Held, bool, error)
	breaks  func(ctx context.Context, lock string, token piton.Token) (bool, error)
}

func (b *broken) Acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	if b.acquire != nil {
		return b.acquire(ctx, r)
	}
	return b.Coordinator.Acquire(ctx, r)
}

func (b *broken) Renew(ctx context.Context, g piton.Grant) (piton.Grant, error) {
	if b.renew != nil {
		return b.renew(ctx, g)
	}
	return b.Coordinator.Renew(ctx, g)
}

func (b *broken) Release(ctx context.Context, g piton.Grant) error {
	if b.release != nil {
		return b.release(ctx, g)
	}
	return b.Coordinator.Release(ctx, g)
}

func (b *broken) Watch(ctx context.Context, lock string) (<-chan struct{}, func(), error) {
	if b.watch != nil {
		return b.watch(ctx, lock)
	}
	return b.Coordinator.Watch(ctx, lock)
}

func (b *broken) RenewBatch(ctx context.Context, grants []piton.Grant) []piton.RenewResult {
	if b.batch != nil {
		return b.batch(ctx, grants)
	}
	results := make([]piton.RenewResult, len(grants))
	for i, g := range grants {
		results[i].Grant, results[i].Err = b.Renew(ctx, g)
	}
	return results
}

func (b *broken) List(ctx context.Context, prefix string, limit int) ([]piton.Held, error) {
	if b.list != nil {
		return b.list(ctx, prefix, limit)
	}
	return b.Coordinator.List(ctx, prefix, limit)
}

func (b *broken) Get(ctx context.Context, lock string) (piton.Held, bool, error) {
	if b.get != nil {
		return b.get(ctx, lock)
	}
	return b.Coordinator.Get(ctx, lock)
}

func (b *broken) Break(ctx context.Context, lock string, token piton.Token) (bool, error) {
	if b.breaks != nil {
		return b.breaks(ctx, lock, token)
	}
	return b.Coordinator.Break(ctx, lock, token)
}

// leaks ends the goroutines that a mistake leaves behind.
var leaks leaked

type leaked struct {
	mu  sync.Mutex
	all []chan struct{}
}

func (l *leaked) add(c chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, c)
}

func (l *leaked) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.all {
		close(c)
	}
	l.all = nil
}

func harness(c piton.Coordinator) locktest.Harness {
	return locktest.Harness{
		New:    func(context.Context) (piton.Coordinator, error) { return c, nil },
		Forget: func(context.Context) error { return nil },
		Left:   func(context.Context, string) (int, error) { return 0, nil },
		TTL:    100 * time.Millisecond,
	}
}

// Each law finds the mistakes that it is there for, and says what they are.
func TestLawsFindMistakes(t *testing.T) {
	for _, m := range mistakes {
		t.Run(m.law+": "+m.mistake, func(t *testing.T) {
			if m.law == "NothingLeft" {
				defer leaks.end()
			} else {
				t.Parallel() // nothing else counts goroutines
			}
			c := memlock.New()
			b := &broken{Coordinator: c}
			m.spoil(b, c)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			err := locktest.CheckLaw(ctx, law(t, m.law), harness(b)).Err
			if err == nil {
				t.Fatal("the law is said to be kept")
			}
			if !strings.Contains(err.Error(), m.says) {
				t.Errorf("got: %v; want it to say %q", err, m.says)
			}
		})
	}
}

func law(t *testing.T, name string) locktest.Law {
	t.Helper()
	for _, law := range locktest.Laws {
		if law.Name == name {
			return law
		}
	}
	t.Fatalf("there is no law %s", name)
	return locktest.Law{}
}

// plain is a coordinator that offers no more than it has to, and can forget.
type plain struct {
	atomic.Pointer[memlock.Coordinator]
}

func (p *plain) Acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	return p.Load().Acquire(ctx, r)
}

func (p *plain) Renew(ctx context.Context, g piton.Grant) (piton.Grant, error) {
	return p.Load().Renew(ctx, g)
}

func (p *plain) Release(ctx context.Context, g piton.Grant) error { return p.Load().Release(ctx, g) }

func TestOptionalInterfacesAreOptional(t *testing.T) {
	p := &plain{}
	p.Store(memlock.New())
	h := harness(p)
	h.Forget = func(context.Context) error { p.Store(memlock.New()); return nil }
	locktest.Run(t, h)
}

func TestWhatIsLeftIsReported(t *testing.T) {
	h := harness(memlock.New())
	for _, test := range []struct {
		left int
		err  error
		want string
	}{
		{0, nil, ""},
		{1, nil, "left 1 for ever"},
		{0, io.ErrUnexpectedEOF, "unexpected EOF"},
	} {
		h.Left = func(context.Context, string) (int, error) { return test.left, test.err }
		err := locktest.CheckLaw(t.Context(), law(t, "NothingLeft"), h).Err
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%d, %v: got %v; want %q", test.left, test.err, err, test.want)
		}
	}
}

// Without Forget, as on servers that others use, one law is not shown.
func TestWithoutForget(t *testing.T) {
	h := harness(memlock.New())
	h.Forget = nil
	for _, r := range locktest.Check(t.Context(), h) {
		switch {
		case r.Took < 0 || r.Law.Name == "":
			t.Errorf("%+v", r)
		case r.Law.Name == "TokenHeals":
			if !errors.Is(r.Err, locktest.ErrNotShown) {
				t.Errorf("%s: %v; want ErrNotShown", r.Law.Name, r.Err)
			}
		case r.Err != nil:
			t.Errorf("%s: %v", r.Law.Name, r.Err)
		}
	}
}

func TestCheckNeedsAWholeHarness(t *testing.T) {
	for _, r := range locktest.Check(t.Context(), locktest.Harness{}) {
		if r.Err == nil || !strings.Contains(r.Err.Error(), "incomplete") {
			t.Errorf("%s: %v", r.Law.Name, r.Err)
		}
	}
	h := harness(memlock.New())
	h.New = func(context.Context) (piton.Coordinator, error) { return nil, io.ErrUnexpectedEOF }
	for _, r := range locktest.Check(t.Context(), h) {
		if !errors.Is(r.Err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", r.Law.Name, r.Err)
		}
	}
}

// Every law is there for a mistake that somebody can make.
func TestEveryLawHasAMistake(t *testing.T) {
	for _, law := range locktest.Laws {
		found := law.Name == "SealedBeforeUse" // kept by piton itself, see its tests
		for _, m := range mistakes {
			found = found || m.law == law.Name
		}
		found = found || law.Name == "FirstComeFirstServed" // TestQueuesThatAreUnfair
		if !found || law.Text == "" {
			t.Errorf("no mistake shows that %s is checked", law.Name)
		}
	}
}
