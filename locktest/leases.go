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
		for _, l := range l {
			_ = l.Close(ctx) // a law is about leases
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
	lock := name("sealed")
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
	s := &storage{}
	l, done, err := h.lockers(ctx, 2, piton.WithGuards(s))
	if err != nil {
		return err
	}
	defer done()
	lock := name("heals")
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
	lock := name("unknown")
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
	// No reply comes at all, and the caller gives up.
	silent := tap{Coordinator: c[0]}
	silent.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
		if _, err := c[0].Acquire(context.WithoutCancel(ctx), r); err != nil {
			return piton.Grant{}, err
		}
		return piton.Grant{}, errLost
	}
	quiet, err := piton.New(silent)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := quiet.Acquire(short, lock); err == nil || errors.Is(err, piton.ErrHeld) {
		return fmt.Errorf("without any reply: %v; want the outage or the caller's end", err)
	}
	second := name("unknown")
	if _, err := quiet.TryAcquire(ctx, second); !errors.Is(err, piton.ErrUnavailable) || errors.Is(err, piton.ErrHeld) {
		return fmt.Errorf("without any reply, not waiting: %v; want ErrUnavailable", err)
	}
	if err := errors.Join(l.Close(ctx), quiet.Close(ctx)); err != nil { // waits for the clean-up
		return err
	}
	return errors.Join(wantHolder(ctx, c[1], lock, piton.Grant{}), wantHolder(ctx, c[1], second, piton.Grant{}))
}
