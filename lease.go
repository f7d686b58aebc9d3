package piton

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// releaseBound limits how long one release keeps trying. What is not released
// ends by itself within its TTL.
const releaseBound = 6 * time.Second

// Lease is a lock that was handed out. Its heartbeat renews it until it is
// released or lost. A Lease is safe for concurrent use.
type Lease struct {
	locker *Locker
	grant  atomic.Pointer[Grant]
	end    atomic.Int64 // trusted end, by the Locker's clock
	ctx    context.Context
	cancel context.CancelCauseFunc
	gone   func() // what was counted for Close is done; once

	beat beat // guarded by the scheduler's mutex

	releasing sync.Mutex
	released  bool  // the coordinator has answered
	doubtful  bool  // a release without an answer may have been carried out
	outcome   error // what it answered: nil or a *LostError
}

type leaseKey struct{}

func leaseFromContext(ctx context.Context) (*Lease, bool) {
	l, ok := ctx.Value(leaseKey{}).(*Lease)
	return l, ok
}

// TimeLeft returns how long the lease that ctx belongs to is still trusted if it
// is not renewed: at most the TTL, 0 or less when it is over. ok is false when
// ctx belongs to no lease (see [FenceFromContext]).
func TimeLeft(ctx context.Context) (left time.Duration, ok bool) {
	l, ok := leaseFromContext(ctx)
	if !ok {
		return 0, false
	}
	return l.left(), true
}

// Fence returns the proof that travels with each write. It stays the same for
// the whole life of the lease.
func (l *Lease) Fence() Fence { return l.grant.Load().Fence }

// Token returns the fencing token.
func (l *Lease) Token() Token { return l.grant.Load().Token }

// Context returns a context that carries the values of the context of the
// acquisition, not its end. It is cancelled when the lease ends, before the
// coordinator can grant the lock to another; context.Cause is then a *[LostError],
// [ErrReleased] or [ErrClosed].
func (l *Lease) Context() context.Context { return l.ctx }

// Done is closed when the lease ends: Context().Done().
func (l *Lease) Done() <-chan struct{} { return l.ctx.Done() }

// Err returns nil while the lease is trusted, and why it ended afterwards: a
// *[LostError], [ErrReleased], or [ErrClosed] when the [Locker] was closed. It
// reads the clocks itself and does not depend on timers having fired.
//
// It is advice for stopping early, never a licence to skip the guard: between
// Err and a write there is always room for a pause.
func (l *Lease) Err() error {
	if l.ctx.Err() == nil && l.left() <= 0 {
		l.locker.beats.expire(l)
	}
	if l.ctx.Err() != nil {
		return context.Cause(l.ctx)
	}
	return nil
}

// Until returns the end of the trusted time as it is now; each renewal moves it
// on. It is derived from the monotonic clock and rendered by the wall clock.
func (l *Lease) Until() time.Time { return time.Now().Add(l.left()) }

func (l *Lease) left() time.Duration {
	return time.Duration(l.end.Load()) - l.locker.clock.Now()
}

// Release stops the heartbeat, ends the lease's context with [ErrReleased] and
// gives the lock back. Call it when the work has ended, not before: a storage
// admits the fence of a released lease until it is sealed for the next holder.
// ctx bounds only the waiting: the release is sent even if ctx has ended.
//
// nil means that the coordinator no longer has this grant; a repeated call is
// harmless. A *[LostError] says that the lease had been lost before, and with
// [ReasonTaken] that another holder has the lock now: its work may overlap.
// Otherwise the answer is missing: the error is [ErrUnavailable] with the driver's error,
// or [ErrUnknown] when ctx ended first. The lock then becomes free within its TTL
// at the latest, and a further call tries again.
func (l *Lease) Release(ctx context.Context) error {
	lost := l.Err()
	l.locker.beats.end(l, ErrReleased)
	answer := make(chan error, 1)
	l.locker.background(func() { answer <- l.release(ctx) })
	select {
	case err := <-answer:
		if asLost(lost) != nil && err == nil {
			return lost
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("piton: release of %v was sent, the answer is missing: %w: %w", l.Fence(), ErrUnknown, context.Cause(ctx))
	}
}

// release sends the grant back, at most one at a time, trying again while the
// answer is unknown.
func (l *Lease) release(ctx context.Context) error {
	event, err := l.releaseOnce(ctx)
	if event.Kind != "" {
		l.locker.emit(event) // when releasing is free again: an observer may try once more
	}
	return err
}

func (l *Lease) releaseOnce(ctx context.Context) (Event, error) {
	l.releasing.Lock()
	defer l.releasing.Unlock()
	if l.released {
		return Event{}, l.outcome
	}
	grant := *l.grant.Load()
	event := Event{Kind: EventReleased, Lock: grant.Lock, Token: grant.Token, Holder: grant.Holder}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(releaseBound, l.locker.ttl))
	defer cancel()
	doubtful, err := l.locker.giveBack(ctx, grant)
	l.doubtful = l.doubtful || doubtful
	if err == nil || errors.Is(err, ErrLost) {
		if l.doubtful && asLost(context.Cause(l.ctx)) == nil {
			// It was trusted until its release, which has been carried out, or the lease
			// ended without a work: whoever has the lock now came after it.
			err = nil
		}
		l.released, l.outcome, event.Err = true, err, err
		l.gone()
		l.locker.queue.poke(grant.Lock)
		return event, err
	}
	time.AfterFunc(l.left(), l.gone) // if nobody tries again, it ends by itself
	event.Kind, event.Err = EventReleaseFailed, fmt.Errorf("piton: release of %v: %w: %w", grant.Fence, ErrUnavailable, err)
	return event, event.Err
}

func asLost(err error) *LostError {
	var lost *LostError
	errors.As(err, &lost)
	return lost
}
