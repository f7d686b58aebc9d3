package locktest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pitonlock/piton"
)

// firstComeFirstServed holds for coordinators with a queue of their own.
func firstComeFirstServed(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 1)
	if err != nil {
		return err
	}
	defer done()
	if _, ok := c[0].(piton.Queuer); !ok {
		return nil // whoever asks first after the end is next
	}
	for _, part := range []struct {
		name  string
		check func(context.Context, Harness) error
	}{
		{"in order", servedInOrder},
		{"a frozen waiter", frozenWaiter},
		{"a crashed holder", crashWithWaiters},
	} {
		if err := part.check(ctx, h); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// place is a waiter in the queue of a lock.
type place struct {
	queuer piton.Queuer
	client piton.Coordinator
	r      piton.Request
	looks  <-chan time.Duration
	stop   func()
}

// held takes the lock by the first of n+1 clients and queues the others in order.
func held(ctx context.Context, h Harness, n int, ttl time.Duration) (first piton.Coordinator, g piton.Grant, places []*place, done func(), err error) {
	c, closeAll, err := h.clients(ctx, n+1)
	if err != nil {
		return nil, piton.Grant{}, nil, nil, err
	}
	done = func() {
		for _, p := range places {
			p.stop()
		}
		closeAll()
	}
	r := request(h.name("queue"))
	r.TTL = ttl
	g, err = take(ctx, c[0], r)
	for i := 1; err == nil && i <= n; i++ {
		p := &place{queuer: c[i].(piton.Queuer), client: c[i], r: request(r.Lock)}
		p.looks, p.stop, err = p.queuer.Turns(ctx, r.Lock, p.r.Holder)
		if err != nil {
			err = fmt.Errorf("turns: %w", err)
			break
		}
		places = append(places, p)
		_, err = p.queuer.Queue(ctx, p.r)
		err = wantHeld(fmt.Sprintf("waiter %d at its arrival", i), err, g.Token)
	}
	if err != nil {
		done()
	}
	return c[0], g, places, done, err
}

// turn waits until p is told that its turn has come and takes the grant.
func (p *place) turn(ctx context.Context, what string, after piton.Grant) (piton.Grant, error) {
	for {
		look, err := p.told(ctx, what)
		if err != nil {
			return piton.Grant{}, err
		}
		if look <= 0 {
			break
		}
	}
	g, err := p.queuer.Queue(ctx, p.r)
	switch {
	case err != nil:
		return g, fmt.Errorf("%s was told that its turn had come: %w", what, err)
	case g.Token <= after.Token:
		return g, fmt.Errorf("%s: token %d after %d", what, g.Token, after.Token)
	}
	return g, checkGrant(g, p.r)
}

func (p *place) told(ctx context.Context, what string) (time.Duration, error) {
	select {
	case look := <-p.looks:
		return look, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s was not told", what)
	}
}

// wantWaiting demands that p, whose turn has not come, is not served.
func (p *place) wantWaiting(ctx context.Context, what string) error {
	_, err := p.queuer.Queue(ctx, p.r)
	return wantHeld(what, err, 0)
}

func servedInOrder(ctx context.Context, h Harness) error {
	first, g, p, done, err := held(ctx, h, 4, time.Minute)
	if err != nil {
		return err
	}
	defer done()
	if err := first.Release(ctx, g); err != nil {
		return err
	}
	_, err = first.Acquire(ctx, request(g.Lock))
	if err := errors.Join(wantHeld("a late-comer after the release", err, 0), p[3].wantWaiting(ctx, "the last after the release")); err != nil {
		return err
	}
	second, err := p[0].turn(ctx, "the first", g)
	if err != nil {
		return err
	}
	// The next gives up, the one behind it goes away.
	giveUp := piton.Grant{Fence: piton.Fence{Lock: g.Lock, Holder: p[1].r.Holder}}
	if err := p[1].client.Release(ctx, giveUp); err != nil && !errors.Is(err, piton.ErrLost) {
		return fmt.Errorf("giving up a place: %w", err)
	}
	p[2].stop()
	_ = h.Close(p[2].client)
	if err := p[0].client.Release(ctx, second); err != nil {
		return err
	}
	// Who went away may count as there until the coordinator has noticed.
	third, err := p[3].served(ctx, "the last", second)
	if err != nil {
		return err
	}
	return p[3].client.Release(ctx, third)
}

// served asks when told, and when the lease in between can be over, until the turn has come.
func (p *place) served(ctx context.Context, what string, after piton.Grant) (piton.Grant, error) {
	look, err := p.told(ctx, what)
	for err == nil {
		pass(ctx, look)
		var g piton.Grant
		g, err = p.queuer.Queue(ctx, p.r)
		if err == nil {
			if g.Token <= after.Token {
				err = fmt.Errorf("%s: token %d after %d", what, g.Token, after.Token)
			}
			return g, err
		}
		err = wantHeld(what, err, 0)
		var h *piton.HeldError
		if err == nil && errors.As(err, &h) {
			look = h.Remaining
		}
		look = max(look, time.Millisecond)
		if ctx.Err() != nil {
			return piton.Grant{}, fmt.Errorf("%s was not served", what)
		}
	}
	return piton.Grant{}, err
}

func frozenWaiter(ctx context.Context, h Harness) error {
	first, g, p, done, err := held(ctx, h, 2, time.Minute)
	if err != nil {
		return err
	}
	defer done()
	if err := first.Release(ctx, g); err != nil {
		return err
	}
	next, err := p[1].served(ctx, "the one behind it", g)
	if err != nil {
		return err
	}
	return errors.Join(p[0].wantWaiting(ctx, "the frozen one, awake again"), p[1].client.Release(ctx, next))
}

func crashWithWaiters(ctx context.Context, h Harness) error {
	_, g, p, done, err := held(ctx, h, 2, h.TTL)
	if err != nil {
		return err
	}
	defer done()
	// The last looks first when the lease is over, which must not serve it.
	err = until(ctx, "the turn of the first after a crash", func() (bool, error) {
		if err := p[1].wantWaiting(ctx, "the last after the crash"); err != nil {
			return false, err
		}
		return len(p[0].looks) > 0, nil
	})
	if err != nil {
		return err
	}
	next, err := p[0].turn(ctx, "the first", g)
	if err != nil {
		return err
	}
	return p[0].client.Release(ctx, next)
}
