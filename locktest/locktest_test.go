package locktest_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
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

// mistakes are coordinators that break one law each, at least.
var mistakes = []struct {
	law, mistake string
	spoil        func(b *broken, c *memlock.Coordinator)
}{
	{"IdempotentPerHolder", "the holder itself is told that the lock is held", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if held, ok, _ := c.Get(ctx, r.Lock); ok {
				return piton.Grant{}, &piton.HeldError{Lock: r.Lock, Token: held.Token, Remaining: held.Remaining}
			}
			return c.Acquire(ctx, r)
		}
	}},
	{"IdempotentPerHolder", "a floor does not lift the token of who holds", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if _, held, _ := c.Get(ctx, r.Lock); held {
				r.Floor = 0
			}
			return c.Acquire(ctx, r)
		}
	}},
	{"TokenGrows", "tokens restart with each grant", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			g, err := c.Acquire(ctx, r)
			g.Token = r.Floor + 1
			return g, err
		}
	}},
	{"FloorIsHonoured", "the floor is not looked at", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			r.Floor = 0
			return c.Acquire(ctx, r)
		}
	}},
	{"RenewOnlyOwn", "a renewal revives", func(b *broken, c *memlock.Coordinator) {
		b.renew = func(ctx context.Context, g piton.Grant) (piton.Grant, error) {
			return c.Acquire(ctx, piton.Request{Lock: g.Lock, Holder: g.Holder, TTL: g.TTL})
		}
	}},
	{"RenewOnlyOwn", "the token is not compared", func(b *broken, c *memlock.Coordinator) {
		b.renew = func(ctx context.Context, g piton.Grant) (piton.Grant, error) {
			if held, ok, _ := c.Get(ctx, g.Lock); ok {
				g.Token = held.Token
			}
			return c.Renew(ctx, g)
		}
	}},
	{"ReleaseOnlyOwn", "release does not compare", func(b *broken, c *memlock.Coordinator) {
		b.release = func(ctx context.Context, g piton.Grant) error {
			if held, ok, _ := c.Get(ctx, g.Lock); ok {
				_, err := c.Break(ctx, g.Lock, held.Token)
				return err
			}
			return nil
		}
	}},
	{"ReleaseOnlyOwn", "a repeated release is an error", func(b *broken, c *memlock.Coordinator) {
		b.release = func(ctx context.Context, g piton.Grant) error {
			if _, ok, _ := c.Get(ctx, g.Lock); !ok {
				return errors.New("not held")
			}
			return c.Release(ctx, g)
		}
	}},
	{"NoSharedClock", "grants end early", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			ttl := r.TTL
			r.TTL = ttl * 9 / 10
			g, err := c.Acquire(ctx, r)
			g.TTL = ttl
			return g, err
		}
	}},
	{"NoSharedClock", "grants never end by themselves", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			ttl := r.TTL
			r.TTL = time.Hour
			g, err := c.Acquire(ctx, r)
			g.TTL = ttl
			return g, err
		}
	}},
	{"OddNames", "names are compared without case", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			lock := r.Lock
			r.Lock = strings.ToLower(lock)
			g, err := c.Acquire(ctx, r)
			g.Lock = lock
			return g, err
		}
	}},
	{"OddNames", "any name is accepted", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if piton.ValidateLock(r.Lock) != nil {
				return piton.Grant{Fence: piton.Fence{Lock: r.Lock, Token: 1, Holder: r.Holder}, TTL: r.TTL}, nil
			}
			return c.Acquire(ctx, r)
		}
	}},
	{"OneHolder", "everybody is granted", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if held, ok, _ := c.Get(ctx, r.Lock); ok {
				_, _ = c.Break(ctx, r.Lock, held.Token)
			}
			return c.Acquire(ctx, r)
		}
	}},
	{"WakeUp", "nobody is told", func(b *broken, _ *memlock.Coordinator) {
		b.watch = func(context.Context, string) (<-chan struct{}, func(), error) {
			return make(chan struct{}), func() {}, nil
		}
	}},
	{"TokenHeals", "the floor of a repair is not looked at", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			r.Floor = 0
			return c.Acquire(ctx, r)
		}
	}},
	{"UnknownIsNotNo", "release of token 0 does nothing", func(b *broken, c *memlock.Coordinator) {
		b.release = func(ctx context.Context, g piton.Grant) error {
			if g.Token == 0 {
				return nil
			}
			return c.Release(ctx, g)
		}
	}},
	{"LostBeforeExpired", "more is promised than is kept", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			ttl := r.TTL
			r.TTL = ttl / 2
			g, err := c.Acquire(ctx, r)
			g.TTL = ttl
			return g, err
		}
	}},
	{"LostIsFinal", "tokens repeat", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			g, err := c.Acquire(ctx, r)
			g.Token = r.Floor + 1
			return g, err
		}
	}},
	{"ReleaseAfterWork", "a lock ends when a contender looks", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			g, err := c.Acquire(ctx, r)
			if err == nil {
				_ = c.Release(ctx, g)
			}
			return g, err
		}
	}},
	{"NothingLeft", "a watcher is never forgotten", func(b *broken, c *memlock.Coordinator) {
		b.watch = func(ctx context.Context, lock string) (<-chan struct{}, func(), error) {
			hints, stop, err := c.Watch(ctx, lock)
			stuck := make(chan struct{})
			leaks.add(stuck)
			go func() { <-stuck }()
			return hints, stop, err
		}
	}},
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

// Each law finds the mistakes that it is there for.
func TestLawsFindMistakes(t *testing.T) {
	for _, m := range mistakes {
		t.Run(m.law+": "+m.mistake, func(t *testing.T) {
			defer leaks.end()
			c := memlock.New()
			b := &broken{Coordinator: c}
			m.spoil(b, c)
			for _, law := range locktest.Laws {
				if law.Name != m.law {
					continue
				}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				if err := law.Check(ctx, harness(b)); err == nil {
					t.Error("the law is said to be kept")
				} else {
					t.Log(err)
				}
				return
			}
			t.Error("there is no such law")
		})
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
		if !found || law.Text == "" {
			t.Errorf("no mistake shows that %s is checked", law.Name)
		}
	}
}
