package piton

import (
	"context"
	"errors"
	"fmt"
)

const (
	// mostRepairs bounds the repairs of one acquisition. One is enough unless the
	// coordinator loses its memory again meanwhile.
	mostRepairs = 3
	// floorRoom is how many tokens must be left above a mark for a repair: a mark
	// beyond it was not written by Piton, and following it would use the tokens up.
	floorRoom = 1 << 32
)

// seal raises the mark of every guard to the lease's fence, in order. A guard that
// knows a newer fence shows that the coordinator lost its counter: the holder, who
// still holds, then asks for a token above that mark and seals all guards anew.
func (a *acquisition) seal(ctx context.Context, lease *Lease) error {
	sealCtx, cancel := context.WithCancelCause(lease.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	for repairs := 0; ; repairs++ {
		err := a.sealAll(sealCtx, lease)
		var stale *StaleError
		switch {
		case lease.Err() != nil:
			return lease.Err()
		case ctx.Err() != nil:
			return a.ended(ctx)
		case err == nil:
			return nil
		case !errors.As(err, &stale):
			return fmt.Errorf("piton: sealing the storage for lock %q: %w", a.lock, err)
		case repairs == mostRepairs:
			return fmt.Errorf("piton: lock %q: %d repairs were not enough: %w", a.lock, repairs, err)
		}
		if err := a.repair(ctx, lease, stale); err != nil {
			return err
		}
	}
}

func (a *acquisition) sealAll(ctx context.Context, lease *Lease) error {
	for _, g := range a.guards {
		answer := make(chan error, 1)
		f := lease.Fence()
		go func() { answer <- g.Seal(ctx, f) }()
		select {
		case err := <-answer:
			if err != nil {
				return err
			}
		case <-ctx.Done(): // a guard may not heed its context
			return context.Cause(ctx)
		}
	}
	return nil
}

// repair lifts the lease's token above the mark.
func (a *acquisition) repair(ctx context.Context, lease *Lease, stale *StaleError) error {
	if stale.Mark.Token > MaxToken-floorRoom {
		return fmt.Errorf("piton: the storage's mark of lock %q has token %d, which no coordinator can have granted: look for what wrote it, then set it to the token of the latest lease (in SQL: UPDATE piton_marks SET token = ... WHERE \"lock\" = ...): %w", a.lock, stale.Mark.Token, stale)
	}
	old := *lease.grant.Load()
	a.beats.pause(lease)
	r := Request{Lock: a.lock, Holder: old.Holder, Owner: a.owner, TTL: a.ttl, Floor: stale.Mark.Token}
	grant, sent, err := a.ask(ctx, r)
	if err != nil {
		a.cleanUp(ctx, r)
	}
	var held *HeldError
	switch {
	case errors.As(err, &held):
		lost := &LostError{Lock: a.lock, Token: old.Token, Holder: old.Holder, Reason: ReasonTaken, By: held.Token, Err: err}
		a.beats.end(lease, lost)
		if !a.wait {
			return err
		}
		return lost
	case err != nil:
		return err
	}
	a.beats.repaired(lease, grant, sent)
	a.emit(Event{Kind: EventRepaired, Lock: a.lock, Token: grant.Token, Holder: grant.Holder, Err: stale})
	return nil
}
