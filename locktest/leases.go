package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pitonlock/piton"
)

// storage is a guard in memory, for the laws of leases; guardtest has those of guards.
type storage struct {
	mu    sync.Mutex
	marks map[string]piton.Fence
}

func (s *storage) Seal(_ context.Context, f piton.Fence) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.marks == nil {
		s.marks = map[string]piton.Fence{}
	}
	if mark := s.marks[f.Lock]; f.Token <= mark.Token && f != mark {
		return &piton.StaleError{Fence: f, Mark: mark}
	}
	s.marks[f.Lock] = f
	return nil
}

func (s *storage) mark(lock string) piton.Fence {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.marks[lock]
}

// tap sits between a Locker and a coordinator; a nil hook passes calls on. It
// hides the optional interfaces.
type tap struct {
	piton.Coordinator
	acquire func(ctx context.Context, r piton.Request) (piton.Grant, error)
	renew   func(ctx context.Context, g piton.Grant) (piton.Grant, error)
}

func (t tap) Acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	if t.acquire != nil {
		return t.acquire(ctx, r)
	}
	return t.Coordinator.Acquire(ctx, r)
}

func (t tap) Renew(ctx context.Context, g piton.Grant) (piton.Grant, error) {
	if t.renew != nil {
		return t.renew(ctx, g)
	}
	return t.Coordinator.Renew(ctx, g)
}

var errLost = errors.New("the answer was lost")

// lockers is a Locker for each client.
func (h Harness) lockers(ctx context.Context, n int, opts ...piton.Option) (l []*piton.Locker, done func(), err error) {
	c, closeAll, err := h.clients(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range c {
		locker, err := piton.New(c, opts...)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		l = append(l, locker)
	}
	return l, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel() // a law that failed may have leases left, whose end is not waited for
		for _, l := range l {
			_ = l.Close(ctx)
		}
		closeAll()
	}, nil
}

func sealedBeforeUse(ctx context.Context, h Harness) error {
	first, second := &storage{}, &storage{}
	l, done, err := h.lockers(ctx, 2, piton.WithGuards(first, second))
	if err != nil {
		return err
	}
	defer done()
	lock := h.name("sealed")
	for n := range 6 {
		lease, err := l[n%2].Acquire(ctx, lock)
		if err != nil {
			return err
		}
		for _, s := range []*storage{first, second} {
			if mark := s.mark(lock); mark != lease.Fence() {
				return fmt.Errorf("Acquire returned %v while a guard had recorded %v", lease.Fence(), mark)
			}
		}
		if err := lease.Release(ctx); err != nil {
			return err
		}
	}
	return nil
}

func tokenHeals(ctx context.Context, h Harness) error {
	if h.Forget == nil {
		return fmt.Errorf("%w: the harness has no Forget", ErrNotShown)
	}
	s := &storage{}
	l, done, err := h.lockers(ctx, 2, piton.WithGuards(s))
	if err != nil {
		return err
	}
	defer done()
	lock := h.name("heals")
	old, err := l[0].Acquire(ctx, lock)
	if err != nil {
		return err
	}
	// Far above any counter and any clock: nothing but the storage knows it.
	high := piton.Fence{Lock: lock, Token: old.Token() + 1<<45, Holder: random(16)}
	if err := s.Seal(ctx, high); err != nil {
		return err
	}
	for round := range 2 {
		if err := h.Forget(ctx); err != nil {
			return fmt.Errorf("forget: %w", err)
		}
		next, err := l[1].Acquire(ctx, lock)
		if err != nil {
			return fmt.Errorf("after the loss of memory: %w", err)
		}
		if next.Token() <= high.Token || s.mark(lock) != next.Fence() {
			return fmt.Errorf("round %d: token %d, mark %v; the storage had seen %d", round, next.Token(), s.mark(lock), high.Token)
		}
		if err := s.Seal(ctx, old.Fence()); !errors.Is(err, piton.ErrStale) {
			return fmt.Errorf("the old holder's seal: %w", err)
		}
		high = next.Fence()
		if err := next.Release(ctx); err != nil {
			return err
		}
	}
	_ = old.Release(ctx) // its grant was forgotten
	return nil
}

func unknownIsNotNo(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	// The reply to the first attempt of each acquisition is lost.
	holders := map[string]bool{}
	lossy := tap{Coordinator: c[0]}
	lossy.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
		g, err := c[0].Acquire(ctx, r)
		if !holders[r.Holder] {
			holders[r.Holder] = true
			return piton.Grant{}, errLost
		}
		return g, err
	}
	l, err := piton.New(lossy)
	if err != nil {
		return err
	}
	lock := h.name("unknown")
	for n, take := range []func(context.Context, string) (*piton.Lease, error){l.Acquire, l.TryAcquire} {
		lease, err := take(ctx, lock)
		if err != nil {
			return fmt.Errorf("the reply was lost, the lock is free for others: %w", err)
		}
		if len(holders) != n+1 {
			return fmt.Errorf("%d holder ids for %d acquisitions", len(holders), n+1)
		}
		if err := lease.Release(ctx); err != nil {
			return err
		}
	}
	if err := l.Close(ctx); err != nil {
		return err
	}
	return noReplyAtAll(ctx, h, c[0], c[1])
}

// noReplyAtAll lets callers give up whose every attempt is granted without a word.
func noReplyAtAll(ctx context.Context, h Harness, c, contender piton.Coordinator) error {
	law := make(chan struct{})
	defer close(law)
	const long = time.Minute // only a clean-up ends such a grant within the law's time
	for _, lost := range []struct {
		how  string
		ttl  time.Duration
		call func(context.Context)
	}{
		{"fail", long, func(context.Context) {}},
		{"hang until their context ends", long, func(ctx context.Context) { <-ctx.Done() }},
		{"hang without heeding their context", h.TTL, func(context.Context) { <-law }},
	} {
		silent := tap{Coordinator: c}
		silent.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if _, err := c.Acquire(context.WithoutCancel(ctx), r); err != nil {
				return piton.Grant{}, err
			}
			lost.call(ctx)
			return piton.Grant{}, errLost
		}
		l, err := piton.New(silent, piton.WithTTL(lost.ttl))
		if err != nil {
			return err
		}
		locks := []string{h.name("unknown")}
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		_, err = l.Acquire(short, locks[0])
		cancel()
		if err == nil || errors.Is(err, piton.ErrHeld) {
			return fmt.Errorf("when attempts %s: %v; want the outage or the caller's end", lost.how, err)
		}
		if lost.how == "fail" {
			locks = append(locks, h.name("unknown"))
			if _, err := l.TryAcquire(ctx, locks[1]); !errors.Is(err, piton.ErrUnavailable) || errors.Is(err, piton.ErrHeld) {
				return fmt.Errorf("when attempts %s, not waiting: %v; want ErrUnavailable", lost.how, err)
			}
		}
		if err := l.Close(ctx); err != nil { // waits for the clean-up
			return err
		}
		for _, lock := range locks {
			if err := wantHolder(ctx, contender, lock, piton.Grant{}); err != nil {
				return fmt.Errorf("when attempts %s, after the clean-up: %w", lost.how, err)
			}
		}
	}
	return nil
}
