package piton

import (
	"context"
	mathrand "math/rand/v2"
	"time"
)

const (
	shortestPoll = 10 * time.Millisecond
	longestPoll  = 200 * time.Millisecond
	unknownLeft  = time.Second // look again when the coordinator does not tell how long
	hintsMayFail = 5 * time.Second
)

// waiting is how one holder id waits for the end of another's lease: in the
// coordinator's queue, by hints, or, with the zero value, by polling.
type waiting struct {
	queuer Queuer               // nil: not in a queue
	looks  <-chan time.Duration // of the queuer
	hints  <-chan struct{}      // of a Waiter
	stop   func()               // nil: no subscription

	poll    time.Duration       // before the next look, without a subscription
	pending <-chan subscription // asked for, not confirmed yet; nil: none
	again   time.Time           // not to be asked for before
}

// subscription is the answer to a Waiter's or Queuer's subscribing.
type subscription struct {
	waiting
	err error
}

// subscribe asks for push beside the polling, which goes on until it is confirmed.
func (a *acquisition) subscribe(ctx context.Context, holder string) {
	w := &a.waiting
	if w.stop != nil || w.pending != nil || time.Now().Before(w.again) {
		return
	}
	var subscribe func(ctx context.Context) subscription
	switch c := a.coord.(type) {
	case Queuer:
		subscribe = func(ctx context.Context) (s subscription) {
			s.queuer = c
			s.looks, s.stop, s.err = c.Turns(ctx, a.lock, holder)
			return s
		}
	case Waiter:
		subscribe = func(ctx context.Context) (s subscription) {
			s.hints, s.stop, s.err = c.Watch(ctx, a.lock)
			return s
		}
	default:
		return
	}
	answer := make(chan subscription, 1)
	w.pending, w.again = answer, time.Now().Add(hintsMayFail)
	ctx, cancel := context.WithTimeout(ctx, a.patience())
	go func() {
		defer cancel()
		answer <- subscribe(ctx)
	}()
}

// stopWaiting ends the subscription, also one that is still being asked for.
func (a *acquisition) stopWaiting() {
	w := a.waiting
	a.waiting = waiting{}
	if w.stop != nil {
		w.stop()
	}
	if w.pending != nil {
		go func() {
			if s := <-w.pending; s.err == nil {
				s.stop()
			}
		}()
	}
}

// pause waits until a look may pay: at most until the lease that is waited for can
// be over. A Waiter whose connection is gone may not know it, so that waiting for its
// hints is bounded, too.
func (a *acquisition) pause(ctx context.Context, left time.Duration) error {
	if left <= 0 {
		left = unknownLeft
	}
	w := &a.waiting
	d := max(left, shortestPoll)
	switch {
	case w.stop == nil:
		w.poll = max(w.poll, shortestPoll)
		d = min(d, w.poll/2+mathrand.N(w.poll))
		w.poll = min(longestPoll, w.poll*3/2)
	case w.hints != nil:
		d = min(d, hintsMayFail)
	}
	poke := a.turn.poke
	if w.queuer != nil {
		poke = nil // who is next is told
	}
	end := time.Now().Add(d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case s := <-w.pending:
			w.pending = nil
			if s.err == nil {
				a.waiting = s.waiting
				return nil // the lock may have ended before the subscription
			}
		case <-w.hints:
			return nil
		case look := <-w.looks:
			if look <= 0 {
				return nil
			}
			timer.Reset(min(look, time.Until(end)))
		case <-poke:
			return nil
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return a.ended(ctx)
		}
	}
}
