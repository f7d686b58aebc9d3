package piton_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pitonlock/piton"
)

// holders knows every lease that was handed out and not given back.
type holders struct {
	mu     sync.Mutex
	leases map[string][]*piton.Lease
	last   map[string]piton.Token
	lost   map[*piton.Lease]error
}

// enter demands that nobody else trusts a lease on the lock.
func (h *holders) enter(lease *piton.Lease) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := lease.Fence()
	for _, other := range h.leases[f.Lock] {
		if other.Err() == nil && lease.Err() == nil {
			return fmt.Errorf("tokens %d and %d of %q are trusted at the same time", other.Token(), f.Token, f.Lock)
		}
	}
	if f.Token <= h.last[f.Lock] {
		return fmt.Errorf("token %d of %q after %d", f.Token, f.Lock, h.last[f.Lock])
	}
	h.last[f.Lock] = f.Token
	h.leases[f.Lock] = append(h.leases[f.Lock], lease)
	return nil
}

// look demands that what was lost stays lost.
func (h *holders) look(lease *piton.Lease) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := lease.Err()
	if before := h.lost[lease]; before != nil && err != before {
		return fmt.Errorf("token %d was lost (%w), and is %v now", lease.Token(), before, err)
	}
	if err != nil {
		h.lost[lease] = err
	}
	return nil
}

// trouble makes a coordinator's calls fail, hang and lose their answers.
func trouble(c *tap, seed uint64, start time.Time) {
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(seed, 1))
	roll := func() (kind int, d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if int(time.Since(start)/(40*time.Second))%2 == 0 { // good and bad times take turns
			return dice.IntN(40), time.Duration(dice.IntN(50)) * time.Millisecond
		}
		return dice.IntN(6), time.Duration(dice.IntN(20)) * time.Second
	}
	spoil := func(call func() error) error {
		kind, d := roll()
		switch kind {
		case 0:
			return errNetwork
		case 1: // carried out, answer lost
			_ = call()
			return errNetwork
		case 2: // late, and carried out
			hang(d)
			return call()
		case 3: // carried out, late answer
			err := call()
			hang(d)
			return err
		}
		return call()
	}
	c.onAcquire = func(ctx context.Context, _ int, _ piton.Request, call acquireCall) (g piton.Grant, err error) {
		err = spoil(func() (err error) { g, err = call(context.WithoutCancel(ctx)); return err })
		return g, err
	}
	c.onRenew = func(ctx context.Context, _ int, _ piton.Grant, call renewCall) (g piton.Grant, err error) {
		err = spoil(func() (err error) { g, err = call(context.WithoutCancel(ctx)); return err })
		return g, err
	}
	c.onRelease = func(ctx context.Context, _ int, _ piton.Grant, call releaseCall) error {
		return spoil(func() error { return call(context.WithoutCancel(ctx)) })
	}
}

// Whatever the coordinator's calls do: one trusts a lock at a time, tokens grow,
// the lost stays lost, callers that end return, and Close returns.
func TestRandomTrouble(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { randomTrouble(t, seed) })
		})
	}
}

func randomTrouble(t *testing.T, seed uint64) {
	h := &holders{leases: map[string][]*piton.Lease{}, last: map[string]piton.Token{}, lost: map[*piton.Lease]error{}}
	memory := newTap().Coordinator
	start := time.Now()
	var all sync.WaitGroup
	var lockers []*piton.Locker
	for n := range 3 {
		c := &tap{Coordinator: memory}
		trouble(c, seed*10+uint64(n), start)
		l, err := piton.New(c, piton.WithBootClock(nil), piton.WithTTL([]time.Duration{3, 10, 30}[n]*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		lockers = append(lockers, l)
	}
	for worker := range 9 {
		all.Go(func() {
			dice := rand.New(rand.NewPCG(seed, uint64(100+worker)))
			for time.Since(start) < 5*time.Minute {
				if err := oneTurn(h, lockers[worker%3], dice); err != nil {
					t.Errorf("worker %d: %v", worker, err)
					return
				}
			}
		})
	}
	all.Wait()
	for _, l := range lockers {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		if err := l.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		cancel()
	}
}

func oneTurn(h *holders, l *piton.Locker, dice *rand.Rand) error {
	limit := time.Duration(dice.IntN(20_000)) * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	take := l.Acquire
	if dice.IntN(4) == 0 {
		take = l.TryAcquire
	}
	asked := time.Now()
	lease, err := take(ctx, fmt.Sprint("lock ", dice.IntN(2)))
	if late := time.Since(asked) - limit; late > 50*time.Millisecond {
		return fmt.Errorf("returned %v after its context ended", late)
	}
	if err != nil {
		if !errors.Is(err, piton.ErrHeld) && !errors.Is(err, piton.ErrUnavailable) && !errors.Is(err, piton.ErrLost) && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		pass(time.Duration(dice.IntN(500)) * time.Millisecond)
		return nil
	}
	if err := h.enter(lease); err != nil {
		return err
	}
	for range dice.IntN(6) {
		pass(time.Duration(dice.IntN(3000)) * time.Millisecond)
		if err := h.look(lease); err != nil {
			return err
		}
	}
	if dice.IntN(25) > 0 { // the others are forgotten by their users
		releasing, cancel := context.WithTimeout(context.Background(), time.Duration(dice.IntN(8000))*time.Millisecond)
		defer cancel()
		_ = lease.Release(releasing)
		return h.look(lease)
	}
	return nil
}
