package piton

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"
)

const (
	// A coordinator that has not answered at all is given up after this many
	// tries, or after two when they took this long.
	triesUnanswered = 3
	timeUnanswered  = 2 * time.Second
	longestTry      = 5 * time.Second // of one call of Acquire
)

// acquisition is one call of Acquire.
type acquisition struct {
	*Locker
	lock  string
	wait  bool
	start time.Duration
	turn  *turn

	answered bool              // the coordinator has answered in this call
	silence  error             // why the last attempt had no answer, if ctx was not why
	unheard  []<-chan struct{} // attempts without an answer: each closed when the driver has returned
	told     bool              // EventWaiting was emitted
	held     *HeldError
	waiting  waiting
}

func (l *Locker) acquire(ctx context.Context, lock string, wait bool) (*Lease, error) {
	if err := ValidateLock(lock); err != nil {
		return nil, err
	}
	leave, err := l.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	values := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.closing, func() { cancel(ErrClosed) })()

	a := &acquisition{Locker: l, lock: lock, wait: wait, start: l.clock.Now()}
	if ctx.Err() != nil {
		return nil, a.ended(ctx)
	}
	if wait {
		if a.turn, err = l.queue.join(ctx, lock); err != nil {
			return nil, a.ended(ctx)
		}
		defer l.queue.leave(a.turn)
	}
	for {
		lease, err := a.once(ctx, values)
		if err == nil {
			l.emit(Event{Kind: EventAcquired, Lock: lock, Token: lease.Token(), Holder: lease.Fence().Holder, Took: l.clock.Now() - a.start})
			return lease, nil
		}
		if again := errors.Is(err, ErrLost) && wait && ctx.Err() == nil; !again {
			return nil, err
		}
	}
}

// once makes one acquisition under one holder id: the grant, then the seals.
func (a *acquisition) once(ctx, values context.Context) (*Lease, error) {
	holder := newHolder()
	grant, sent, err := a.granted(ctx, holder)
	if err != nil {
		return nil, err
	}
	lease := a.keep(values, grant, sent)
	a.watchLate(lease)
	if err := a.seal(ctx, lease); err != nil {
		a.beats.end(lease, err)
		a.discard(ctx, lease)
		return nil, err
	}
	return lease, nil
}

func newHolder() string {
	var id [16]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// keep makes a lease of a grant; its heartbeat runs from here on.
func (l *Locker) keep(values context.Context, g Grant, sent time.Duration) *Lease {
	lease := &Lease{locker: l}
	lease.grant.Store(&g)
	ctx := context.WithValue(context.WithoutCancel(values), leaseKey{}, lease)
	lease.ctx, lease.cancel = context.WithCancelCause(ctx)
	l.mu.Lock()
	lease.gone = l.count()
	l.mu.Unlock()
	l.beats.add(lease, sent)
	l.mu.Lock()
	closed := l.closed // read after add: Close ends what it finds kept
	l.mu.Unlock()
	if closed {
		l.beats.stopAll(ErrClosed)
	}
	return lease
}

// discard gives back a lease that was not handed out. It waits for the answer,
// so that whoever gets the error finds the lock free, but not longer than ctx.
func (a *acquisition) discard(ctx context.Context, lease *Lease) {
	done := make(chan struct{})
	a.background(func() {
		defer close(done)
		_ = lease.release(ctx)
		lease.gone()
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// granted asks until the coordinator grants the lock to holder.
func (a *acquisition) granted(ctx context.Context, holder string) (Grant, time.Duration, error) {
	r := Request{Lock: a.lock, Holder: holder, Owner: a.owner, TTL: a.ttl}
	defer a.stopWaiting()
	for {
		grant, sent, err := a.ask(ctx, r)
		var held *HeldError
		switch {
		case err == nil:
			return grant, sent, nil
		case !errors.Is(err, ErrHeld) || !a.wait:
			a.cleanUp(ctx, r)
			return Grant{}, 0, err
		}
		errors.As(err, &held)
		if held == nil {
			held = &HeldError{Lock: a.lock}
		}
		a.held = held
		if !a.told {
			a.told = true
			a.emit(Event{Kind: EventWaiting, Lock: a.lock, Holder: holder, Err: held})
		}
		a.subscribe(ctx, holder)
		if err := a.pause(ctx, held.Remaining); err != nil {
			a.cleanUp(ctx, r)
			return Grant{}, 0, err
		}
	}
}

// ended is the error of an acquisition whose context has ended.
func (a *acquisition) ended(ctx context.Context) error {
	if a.held != nil {
		return fmt.Errorf("piton: waiting for lock %q (%s): %w", a.lock, a.held.Error(), context.Cause(ctx))
	}
	// An outage is another answer than a wait in vain. Who cancels at once, before
	// any attempt failed, has not found out.
	late := len(a.unheard) > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded)
	switch {
	case a.answered:
	case a.silence != nil:
		return fmt.Errorf("piton: acquiring lock %q: %w (%w: %w)", a.lock, context.Cause(ctx), ErrUnavailable, a.silence)
	case late:
		return fmt.Errorf("piton: acquiring lock %q: %w (%w: no answer until then)", a.lock, context.Cause(ctx), ErrUnavailable)
	}
	return fmt.Errorf("piton: acquiring lock %q: %w", a.lock, context.Cause(ctx))
}

func (a *acquisition) patience() time.Duration { return min(a.ttl/3, longestTry) }

// ask asks for one grant until there is an answer: granted or held. An attempt
// without an answer may have been granted, or may be yet, so it is repeated under
// the same holder id; whoever gives that up calls cleanUp.
func (a *acquisition) ask(ctx context.Context, r Request) (Grant, time.Duration, error) {
	began := a.clock.Now()
	pause := 5 * time.Millisecond
	for tries := 1; ; tries++ {
		grant, sent, settled, err := a.send(ctx, r)
		if err == nil {
			if err = checkGrant(grant, r); err == nil {
				a.answered = true
				return grant, sent, nil
			}
		}
		if errors.Is(err, ErrHeld) {
			a.answered = true
			return Grant{}, 0, err
		}
		a.unheard = append(a.unheard, settled)
		if ctx.Err() != nil {
			return Grant{}, 0, a.ended(ctx)
		}
		a.silence = err
		if a.givesUp(tries, a.clock.Now()-began) {
			return Grant{}, 0, fmt.Errorf("piton: acquiring lock %q: %w: %w", r.Lock, ErrUnavailable, err)
		}
		select {
		case <-time.After(pause/2 + mathrand.N(pause)):
			pause = min(pause*8, time.Second)
		case <-ctx.Done():
			return Grant{}, 0, a.ended(ctx)
		}
	}
}

func (a *acquisition) givesUp(tries int, took time.Duration) bool {
	switch {
	case !a.wait:
		return tries >= 2
	case a.answered:
		return took >= a.ttl
	default:
		return tries >= triesUnanswered || tries >= 2 && took >= timeUnanswered
	}
}

// send makes one call that returns when ctx ends, whether or not the driver heeds
// it. settled is closed when the driver has returned.
func (a *acquisition) send(ctx context.Context, r Request) (g Grant, sent time.Duration, settled <-chan struct{}, err error) {
	type reply struct {
		grant Grant
		err   error
	}
	ctx, cancel := context.WithTimeout(ctx, a.patience())
	defer cancel()
	answer, done := make(chan reply, 1), make(chan struct{})
	attempt := a.coord.Acquire
	if a.waiting.queuer != nil {
		attempt = a.waiting.queuer.Queue
	}
	sent = a.clock.Now()
	go func() {
		defer close(done)
		g, err := attempt(ctx, r)
		answer <- reply{g, err}
	}()
	select {
	case got := <-answer:
		return got.grant, sent, done, got.err
	case <-ctx.Done():
		return Grant{}, sent, done, context.Cause(ctx)
	}
}

// cleanUp gives back a place in the coordinator's queue, and what attempts without an
// answer, if there were any, may have been granted, after they have settled, or after
// a TTL when one never does.
func (a *acquisition) cleanUp(ctx context.Context, r Request) {
	unheard := a.unheard
	a.unheard = nil
	if len(unheard) == 0 && a.waiting.queuer == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	a.background(func() {
		a.settle(unheard)
		a.forgo(ctx, r.Lock, r.Holder)
	})
}

// watchLate gives back what an attempt that had no answer is granted when its lease,
// by a later attempt of the same holder, has been given back already.
func (a *acquisition) watchLate(lease *Lease) {
	unheard := a.unheard
	a.unheard = nil
	if len(unheard) == 0 {
		return
	}
	a.background(func() {
		a.settle(unheard)
		if f := lease.Fence(); lease.ctx.Err() != nil {
			a.forgo(context.Background(), f.Lock, f.Holder)
		}
	})
}

// settle waits until the driver has returned from each attempt, for a TTL at most.
func (a *acquisition) settle(attempts []<-chan struct{}) {
	timer := time.NewTimer(a.ttl)
	defer timer.Stop()
	for _, settled := range attempts {
		select {
		case <-settled:
		case <-timer.C:
			return
		}
	}
}

// forgo gives back whatever holder has.
func (a *acquisition) forgo(ctx context.Context, lock, holder string) {
	ctx, cancel := context.WithTimeout(ctx, min(releaseBound, a.ttl))
	defer cancel()
	_, err := a.giveBack(ctx, Grant{Fence: Fence{Lock: lock, Holder: holder}})
	if err != nil && !errors.Is(err, ErrLost) {
		a.emit(Event{Kind: EventReleaseFailed, Lock: lock, Holder: holder, Err: err})
	}
	a.queue.poke(lock)
}

// checkGrant refuses what no coordinator may grant: a lease on such an answer
// would be none.
func checkGrant(g Grant, r Request) error {
	switch {
	case g.Lock != r.Lock || g.Holder != r.Holder:
		return fmt.Errorf("piton: the coordinator granted %v for a request of holder %s on %q", g.Fence, r.Holder, r.Lock)
	case g.Token <= r.Floor || g.Token > MaxToken:
		return fmt.Errorf("piton: the coordinator granted token %d; want %d to %d", g.Token, r.Floor+1, MaxToken)
	case g.TTL <= margin(g.TTL):
		return fmt.Errorf("piton: the coordinator granted a TTL of %v, which leaves no time to use it", g.TTL)
	}
	return nil
}
