package locktest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pitonlock/piton"
)

func idempotentPerHolder(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	r := request(h.name("idempotent"))
	r.TTL = h.TTL
	first, err := take(ctx, c[0], r)
	if err != nil {
		return err
	}
	pass(ctx, h.TTL/2)
	asked := time.Now()
	again, err := take(ctx, c[1], r)
	switch {
	case err != nil:
		return fmt.Errorf("the same holder again: %w", err)
	case again.Fence != first.Fence:
		return fmt.Errorf("the same holder got %v, then %v", first.Fence, again.Fence)
	}
	for time.Since(asked) < h.TTL*3/4 { // past the end of the first time
		_, err := c[1].Acquire(ctx, request(r.Lock))
		if late := time.Since(asked) >= h.TTL*3/4; late {
			break
		}
		if err := wantHeld("a contender while the second time runs", err, again.Token); err != nil {
			return err
		}
		pass(ctx, 5*time.Millisecond)
	}
	long := request(h.name("idempotent"))
	first, err = take(ctx, c[0], long)
	if err != nil {
		return err
	}
	long.Floor = first.Token + 1000
	lifted, err := take(ctx, c[0], long)
	if err != nil {
		return fmt.Errorf("the holder, with a floor above its token: %w", err)
	}
	kept, err := take(ctx, c[0], long)
	switch {
	case err != nil:
		return err
	case kept.Token != lifted.Token:
		return fmt.Errorf("above the floor already, and yet token %d became %d", lifted.Token, kept.Token)
	}
	_, err = c[1].Renew(ctx, first)
	if err := wantLost("renewal of the token before the lift", err, piton.ReasonReplaced, piton.ReasonTaken, piton.ReasonExpired); err != nil {
		return err
	}
	if _, err := c[1].Renew(ctx, kept); err != nil {
		return fmt.Errorf("renewal of the lifted token: %w", err)
	}
	return c[0].Release(ctx, kept)
}

func tokenGrows(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	lock, neighbour := h.name("grows"), h.name("grows")
	last := piton.Token(0)
	next := func(how string, ttl time.Duration, c piton.Coordinator) (piton.Grant, error) {
		r := request(lock)
		r.TTL = ttl
		var g piton.Grant
		err := until(ctx, "a grant after "+how, func() (bool, error) {
			var err error
			g, err = c.Acquire(ctx, r)
			if errors.Is(err, piton.ErrHeld) {
				return false, nil
			}
			return true, err
		})
		if err == nil && g.Token <= last {
			err = fmt.Errorf("after %s: token %d, before it %d", how, g.Token, last)
		}
		last = max(last, g.Token)
		return g, err
	}
	for range 3 {
		for _, client := range c {
			g, err := next("release", time.Minute, client)
			if err != nil {
				return err
			}
			if err := client.Release(ctx, g); err != nil {
				return err
			}
		}
	}
	if _, err := next("release", h.TTL, c[0]); err != nil {
		return err
	}
	g, err := next("expiry", time.Minute, c[1])
	if err != nil {
		return err
	}
	if b, ok := c[0].(piton.Breaker); ok {
		if ok, err := b.Break(ctx, lock, g.Token); !ok || err != nil {
			return fmt.Errorf("break of the present token: %v, %w", ok, err)
		}
	} else if err := c[0].Release(ctx, g); err != nil {
		return err
	}
	if _, err := take(ctx, c[1], request(neighbour)); err != nil {
		return err
	}
	fresh, doneFresh, err := h.clients(ctx, 1)
	if err != nil {
		return err
	}
	defer doneFresh()
	_, err = next("break, by a client that is new", time.Minute, fresh[0])
	return err
}

func floorIsHonoured(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 1)
	if err != nil {
		return err
	}
	defer done()
	for _, floor := range []piton.Token{1, 1 << 40, 1 << 52, piton.MaxToken - 1<<20} {
		r := request(h.name("floor"))
		r.Floor = floor
		g, err := take(ctx, c[0], r)
		if err != nil {
			return fmt.Errorf("floor %d: %w", floor, err)
		}
		if err := c[0].Release(ctx, g); err != nil {
			return err
		}
		next, err := take(ctx, c[0], request(r.Lock))
		if err != nil || next.Token <= g.Token {
			return fmt.Errorf("after a floor of %d: token %d after %d, %v", floor, next.Token, g.Token, err)
		}
	}
	r := request(h.name("floor"))
	r.Floor = piton.MaxToken
	_, err = c[0].Acquire(ctx, r)
	if err == nil || errors.Is(err, piton.ErrHeld) || errors.Is(err, piton.ErrLost) {
		return fmt.Errorf("a floor of MaxToken: %v; want an error of its own", err)
	}
	if err := wantHolder(ctx, c[0], r.Lock, piton.Grant{}); err != nil {
		return fmt.Errorf("after a floor of MaxToken: %w", err)
	}
	r.Floor = 0
	g, err := take(ctx, c[0], r)
	if err != nil {
		return err
	}
	r.Floor = piton.MaxToken
	if lifted, err := c[0].Acquire(ctx, r); err == nil {
		return fmt.Errorf("a floor of MaxToken for who holds: token %d; want an error", lifted.Token)
	}
	if _, err := c[0].Renew(ctx, g); err != nil {
		return fmt.Errorf("the grant of who holds, after a floor of MaxToken: %w", err)
	}
	return c[0].Release(ctx, g)
}

func renewOnlyOwn(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	lock := h.name("renew")
	short := request(lock)
	short.TTL = h.TTL
	old, err := take(ctx, c[0], short)
	if err != nil {
		return err
	}
	again, err := c[0].Renew(ctx, old)
	if err != nil || again.Fence != old.Fence || again.TTL <= 0 || again.TTL > h.TTL {
		return fmt.Errorf("renewal of one's own grant: %v for %v, %v", again.Fence, again.TTL, err)
	}
	pass(ctx, h.TTL+50*time.Millisecond+h.late(h.TTL)-h.Late)
	_, err = c[0].Renew(ctx, old)
	if err := wantLost("renewal of an expired grant", err, piton.ReasonExpired, piton.ReasonTaken); err != nil {
		return err
	}
	if err := wantHolder(ctx, c[1], lock, piton.Grant{}); err != nil {
		return fmt.Errorf("after the renewal of an expired grant: %w", err)
	}
	if err := c[0].Release(ctx, old); err != nil {
		if err := wantLost("release of an expired grant", err, piton.ReasonExpired); err != nil {
			return err
		}
	}
	other := request(lock)
	other.TTL = 3 * h.TTL
	next, err := take(ctx, c[1], other)
	if err != nil {
		return err
	}
	_, err = c[0].Renew(ctx, old)
	if err := wantLost("renewal when another has the lock", err, piton.ReasonTaken); err != nil {
		return err
	}
	if err := renewBatch(ctx, c[0], old, next); err != nil {
		return err
	}
	renewed := time.Now()
	pass(ctx, h.TTL*3/2) // so that a renewal that counts, whatever its TTL, shows
	for what, wrong := range map[string]func(*piton.Grant){
		"another token":  func(g *piton.Grant) { g.Token++ },
		"another holder": func(g *piton.Grant) { g.Holder = old.Holder },
		"a free lock":    func(g *piton.Grant) { g.Lock = h.name("renew") },
	} {
		g := next
		wrong(&g)
		g.TTL = time.Minute
		_, err := c[0].Renew(ctx, g)
		if err := wantLost("renewal with "+what, err, piton.ReasonTaken, piton.ReasonReplaced, piton.ReasonExpired); err != nil {
			return err
		}
		if err := wantHolder(ctx, c[0], lock, next); err != nil {
			return err
		}
	}
	pass(ctx, time.Until(renewed.Add(3*h.TTL+h.late(3*h.TTL))))
	return wantHolder(ctx, c[0], lock, piton.Grant{})
}

// renewBatch checks that many renewals in one call are judged one by one.
func renewBatch(ctx context.Context, c piton.Coordinator, old, own piton.Grant) error {
	b, ok := c.(piton.BatchRenewer)
	if !ok {
		return nil
	}
	missing, wrongToken := own, own
	missing.Lock += "/missing"
	wrongToken.Token++
	batch := []piton.Grant{old, own, missing, wrongToken, own}
	results := b.RenewBatch(ctx, batch)
	if len(results) != len(batch) {
		return fmt.Errorf("a batch of %d renewals has %d results", len(batch), len(results))
	}
	for i, r := range results {
		switch {
		case batch[i] == own && (r.Err != nil || r.Grant.Fence != own.Fence || r.Grant.TTL <= 0 || r.Grant.TTL > own.TTL):
			return fmt.Errorf("renewal %d of a batch, of one's own grant: %v for %v, %v", i, r.Grant.Fence, r.Grant.TTL, r.Err)
		case batch[i] != own:
			what := fmt.Sprintf("renewal %d of a batch, of a grant that is not held", i)
			if err := wantLost(what, r.Err, piton.ReasonTaken, piton.ReasonReplaced, piton.ReasonExpired); err != nil {
				return err
			}
		}
	}
	return nil
}

func releaseOnlyOwn(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	lock := h.name("release")
	if err := c[0].Release(ctx, piton.Grant{Fence: piton.Fence{Lock: lock, Holder: random(16)}}); err != nil {
		return fmt.Errorf("release of whatever an unknown holder has of a free lock: %w", err)
	}
	old, err := take(ctx, c[0], request(lock))
	if err != nil {
		return err
	}
	for range 2 {
		if err := c[0].Release(ctx, old); err != nil {
			return fmt.Errorf("release of one's own grant, or its repetition: %w", err)
		}
	}
	next, err := take(ctx, c[1], request(lock))
	if err != nil {
		return err
	}
	whatever := old
	whatever.Token = 0
	wrongToken := next
	wrongToken.Token++
	for what, g := range map[string]piton.Grant{"an older grant": old, "whatever an older holder has": whatever, "another token": wrongToken} {
		err := c[0].Release(ctx, g)
		if err := wantLost("release of "+what, err, piton.ReasonTaken, piton.ReasonReplaced); err != nil {
			return err
		}
		var lost *piton.LostError
		if errors.As(err, &lost); g == old && lost.By != next.Token {
			return fmt.Errorf("release of %s: taken by token %d; want %d", what, lost.By, next.Token)
		}
		if err := wantHolder(ctx, c[1], lock, next); err != nil {
			return fmt.Errorf("after the release of %s: %w", what, err)
		}
	}
	if err := breakOnlyThis(ctx, c[0], next); err != nil {
		return err
	}
	mine := next
	mine.Token = 0
	if err := c[1].Release(ctx, mine); err != nil {
		return fmt.Errorf("release of whatever the holder has: %w", err)
	}
	return wantHolder(ctx, c[0], lock, piton.Grant{})
}

// breakOnlyThis checks that a break compares the token: g is held, and stays so.
func breakOnlyThis(ctx context.Context, c piton.Coordinator, g piton.Grant) error {
	b, ok := c.(piton.Breaker)
	if !ok {
		return nil
	}
	broken, err := b.Break(ctx, g.Lock, g.Token+1)
	if err := wantHeld("break of another token", err, g.Token); err != nil {
		return err
	}
	if broken {
		return errors.New("break of another token: true beside an error")
	}
	if err := wantHolder(ctx, c, g.Lock, g); err != nil {
		return fmt.Errorf("after the break of another token: %w", err)
	}
	if broken, err := b.Break(ctx, g.Lock+"/free", g.Token); broken || err != nil {
		return fmt.Errorf("break of a free lock: %v, %v; want false and no error", broken, err)
	}
	return nil
}
