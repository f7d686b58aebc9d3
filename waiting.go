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
)

// waiting is how one holder id waits for the end of another's lease: in the
// coordinator's queue, by hints, or, with the zero value, by polling.
type waiting struct {
	queuer Queuer               // nil: not in a queue
	looks  <-chan time.Duration // of the queuer
	hints  <-chan struct{}      // of a Waiter
	stop   func()               // nil: no subscription
	poll   time.Duration        // before the next look, without a subscription
}

// subscribe makes the next waiting one by push, if the coordinator can do that and
// it has not been done; then it is true.
func (a *acquisition) subscribe(ctx context.Context, holder string) bool {
	var subscribe func(ctx context.Context) (waiting, error)
	switch c := a.coord.(type) {
	case Queuer:
		subscribe = func(ctx context.Context) (w waiting, err error) {
			w.queuer = c
			w.looks, w.stop, err = c.Turns(ctx, a.lock, holder)
			return w, err
		}
	case Waiter:
		subscribe = func(ctx context.Context) (w waiting, err error) {
			w.hints, w.stop, err = c.Watch(ctx, a.lock)
			return w, err
		}
	}
	if subscribe == nil || a.waiting.stop != nil {
		return false
	}
	type answer struct {
		waiting
		err error
	}
	ctx, cancel := context.WithTimeout(ctx, a.patience())
	defer cancel()
	answers := make(chan answer, 1)
	go func() {
		w, err := subscribe(ctx)
		answers <- answer{w, err}
	}()
	select {
	case got := <-answers:
		if got.err != nil {
			return false // polling, and another try after each look
		}
		a.waiting = got.waiting
		return true
	case <-ctx.Done():
		go func() {
			if got := <-answers; got.err == nil {
				got.stop()
			}
		}()
		return false
	}
}

func (a *acquisition) stopWaiting() {
	if a.waiting.stop != nil {
		a.waiting.stop()
	}
	a.waiting = waiting{}
}

// pause waits until a look may pay: at most until the lease that is waited for can
// be over.
func (a *acquisition) pause(ctx context.Context, left time.Duration) error {
	if left <= 0 {
		left = unknownLeft
	}
	w := &a.waiting
	d := max(left, shortestPoll)
	if w.stop == nil {
		w.poll = max(w.poll, shortestPoll)
		d = min(d, w.poll/2+mathrand.N(w.poll))
		w.poll = min(longestPoll, w.poll*3/2)
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
