// Package memlock is a coordinator within one process: for tests, and for work
// that only goroutines of one program contend for. It needs no server and keeps
// nothing when the program ends; with a guard attached the tokens heal on the
// first acquisition afterwards, as after any coordinator's loss of memory.
//
// Time is Go's monotonic clock, and that of the bubble within testing/synctest.
// It stands still while the machine sleeps; leases, whose clock goes on, end first.
//
// All locks share one counter, so that a free lock needs no entry: what is kept
// are the held locks, and those that ended unreleased until the next clean-up,
// at most as many again. Only a lock whose token a floor of 2^52 or more demanded
// is remembered for ever: as the counter of all it would use up the numbers.
package memlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/clock"
)

// Coordinator grants leases within this process. It implements
// [piton.Coordinator], [piton.Waiter], [piton.Inspector] and [piton.Breaker]. Its
// methods never block, so that they look at their context once, at the start.
type Coordinator struct {
	clock *clock.Clock

	mu       sync.Mutex
	last     piton.Token            // the greatest token of any lock, but for
	far      map[string]piton.Token // those far above all others
	locks    map[string]entry
	cleanAt  int // clean up when so many are kept
	watchers map[string]map[chan struct{}]struct{}
}

type entry struct {
	holder, owner string
	token         piton.Token
	end           time.Duration
}

const (
	longestTTL = 100 * 365 * 24 * time.Hour

	fewLocks = 64 // below it nothing is cleaned up
	farToken = piton.Token(1) << 52
)

// New returns a coordinator without any lock held.
func New() *Coordinator {
	return &Coordinator{
		clock: clock.NewWith(nil), locks: map[string]entry{}, far: map[string]piton.Token{},
		watchers: map[string]map[chan struct{}]struct{}{}, cleanAt: fewLocks,
	}
}

// Acquire implements [piton.Coordinator].
func (c *Coordinator) Acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	if err := piton.ValidateLock(r.Lock); err != nil {
		return piton.Grant{}, err
	}
	if r.Holder == "" || r.TTL <= 0 {
		return piton.Grant{}, fmt.Errorf("memlock: holder %q and TTL %v; want a holder and a TTL above 0", r.Holder, r.TTL)
	}
	if r.TTL > longestTTL {
		return piton.Grant{}, fmt.Errorf("memlock: TTL %v is too long; want at most %v", r.TTL, longestTTL)
	}
	if r.Floor >= piton.MaxToken {
		return piton.Grant{}, fmt.Errorf("memlock: no token above the floor %d is left; want a floor below %d", r.Floor, piton.MaxToken)
	}
	if err := ctx.Err(); err != nil {
		return piton.Grant{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	e, held := c.get(r.Lock, now)
	if held && e.holder != r.Holder {
		return piton.Grant{}, &piton.HeldError{Lock: r.Lock, Owner: e.owner, Token: e.token, Remaining: e.end - now}
	}
	if !held || e.token <= r.Floor {
		next := max(c.last, c.far[r.Lock], r.Floor) + 1
		switch {
		case next > piton.MaxToken:
			return piton.Grant{}, fmt.Errorf("memlock: no token above %d is left; want a floor below %d", next-1, piton.MaxToken)
		case next > farToken:
			c.far[r.Lock] = next
		default:
			c.last = next
		}
		e.token = next
	}
	e.holder, e.owner, e.end = r.Holder, r.Owner, now+r.TTL
	c.locks[r.Lock] = e
	c.clean(now)
	return grant(r.Lock, e, r.TTL), nil
}

func grant(lock string, e entry, ttl time.Duration) piton.Grant {
	return piton.Grant{Fence: piton.Fence{Lock: lock, Token: e.token, Holder: e.holder}, TTL: ttl}
}

// get returns the entry of a lock that is held now.
func (c *Coordinator) get(lock string, now time.Duration) (entry, bool) {
	e, ok := c.locks[lock]
	if ok && e.end <= now {
		delete(c.locks, lock)
		return entry{}, false
	}
	return e, ok
}

// clean drops entries that ended, when there are twice as many as after the last
// time, so that its cost is constant per acquisition.
func (c *Coordinator) clean(now time.Duration) {
	if len(c.locks) < c.cleanAt {
		return
	}
	for lock, e := range c.locks {
		if e.end <= now {
			delete(c.locks, lock)
		}
	}
	c.cleanAt = max(fewLocks, 2*len(c.locks))
}

// Renew implements [piton.Coordinator].
func (c *Coordinator) Renew(ctx context.Context, g piton.Grant) (piton.Grant, error) {
	if err := ctx.Err(); err != nil {
		return piton.Grant{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	e, held := c.get(g.Lock, now)
	switch {
	case !held:
		return piton.Grant{}, lost(g, piton.ReasonExpired, 0)
	case e.holder != g.Holder:
		return piton.Grant{}, lost(g, piton.ReasonTaken, e.token)
	case e.token != g.Token:
		return piton.Grant{}, lost(g, piton.ReasonReplaced, e.token)
	}
	e.end = now + g.TTL
	c.locks[g.Lock] = e
	return grant(g.Lock, e, g.TTL), nil
}

func lost(g piton.Grant, why piton.Reason, by piton.Token) error {
	return &piton.LostError{Lock: g.Lock, Token: g.Token, Holder: g.Holder, Reason: why, By: by}
}

// Release implements [piton.Coordinator].
func (c *Coordinator) Release(ctx context.Context, g piton.Grant) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e, held := c.get(g.Lock, c.clock.Now())
	switch {
	case !held:
		return nil
	case e.holder != g.Holder:
		return lost(g, piton.ReasonTaken, e.token)
	case g.Token != 0 && e.token != g.Token:
		return lost(g, piton.ReasonReplaced, e.token)
	}
	c.end(g.Lock)
	return nil
}

// end frees a lock and tells who watches it.
func (c *Coordinator) end(lock string) {
	delete(c.locks, lock)
	for hint := range c.watchers[lock] {
		select {
		case hint <- struct{}{}:
		default:
		}
	}
}

// Watch implements [piton.Waiter]. It hints at releases; expiry is for the caller
// to foresee.
func (c *Coordinator) Watch(ctx context.Context, lock string) (<-chan struct{}, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	hint := make(chan struct{}, 1)
	if c.watchers[lock] == nil {
		c.watchers[lock] = map[chan struct{}]struct{}{}
	}
	c.watchers[lock][hint] = struct{}{}
	return hint, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watchers[lock], hint)
		if len(c.watchers[lock]) == 0 {
			delete(c.watchers, lock)
		}
	}, nil
}

// Get implements [piton.Inspector].
func (c *Coordinator) Get(ctx context.Context, lock string) (piton.Held, bool, error) {
	if err := ctx.Err(); err != nil {
		return piton.Held{}, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	e, held := c.get(lock, now)
	if !held {
		return piton.Held{}, false, nil
	}
	return describe(lock, e, now), true, nil
}

// List implements [piton.Inspector].
func (c *Coordinator) List(ctx context.Context, prefix string, limit int) ([]piton.Held, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	var list []piton.Held
	for lock, e := range c.locks {
		if e.end > now && strings.HasPrefix(lock, prefix) {
			list = append(list, describe(lock, e, now))
		}
	}
	slices.SortFunc(list, func(a, b piton.Held) int { return strings.Compare(a.Lock, b.Lock) })
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	return list, nil
}

func describe(lock string, e entry, now time.Duration) piton.Held {
	return piton.Held{Lock: lock, Token: e.token, Owner: e.owner, Remaining: e.end - now}
}

// Break implements [piton.Breaker].
func (c *Coordinator) Break(ctx context.Context, lock string, token piton.Token) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	e, held := c.get(lock, now)
	switch {
	case !held:
		return false, nil
	case e.token != token:
		return false, &piton.HeldError{Lock: lock, Owner: e.owner, Token: e.token, Remaining: e.end - now}
	}
	c.end(lock)
	return true, nil
}
