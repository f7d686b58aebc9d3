package piton

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/pitonlock/piton/internal/clock"
)

const (
	never = time.Duration(math.MaxInt64)
	// lookAgain is how often the clock is read while leases are held, since
	// timers do not see that the machine slept.
	lookAgain = 500 * time.Millisecond
	// longestRetry is the longest first pause between tries within one heartbeat.
	longestRetry = time.Second
)

// heartbeats keeps the leases of one Locker: one heap of what is due next, one
// timer, and renewals that run beside it, so that no answer that is late can hold up
// the end of a lease. There is no goroutine per lease, and none at all while nothing is due.
//
// A heartbeat is one attempt of the design's rule "two failed attempts in a row end
// the lease". Within it a failed try is repeated while there is time, which makes
// a coordinator that restarts in a second no failure.
type heartbeats struct {
	config *config
	clock  *clock.Clock
	coord  Coordinator
	batch  BatchRenewer // nil: one call for each lease

	mu       sync.Mutex
	leases   beatHeap
	timer    *time.Timer
	armed    time.Duration  // when the timer will fire, never when it is not set
	waiting  []*renewal     // due, not sent yet
	calls    []*renewalCall // out, oldest first
	senders  int            // calls that count against mostSenders
	finished []func()       // what to tell when mu is free again
}

// beat is the state of one lease, guarded by heartbeats.mu.
type beat struct {
	at       int // place in the heap, -1 when the lease is not kept
	wake     time.Duration
	interval time.Duration
	anchored time.Duration // when the request was sent from which the time counts
	due      time.Duration // when the present heartbeat began or will begin
	next     time.Duration // when the next try is to be sent, never: not at all
	pause    time.Duration // until the try after a failed one
	missed   bool          // the heartbeat before this one failed
	stopped  bool          // no renewal any more
	repair   bool          // Acquire is asking for a higher token, renewals wait
	running  *renewal      // the try that is out, or nil
	lastErr  error
}

// add keeps a lease from now on. sent is when its grant was asked for.
func (h *heartbeats) add(l *Lease, sent time.Duration) {
	h.mu.Lock()
	defer h.unlock()
	l.beat.at = -1
	h.anchor(l, *l.grant.Load(), sent)
	heap.Push(&h.leases, l)
}

// anchor starts the lease's time anew from when the request was sent. Of several
// answers that of the latest request counts, also when it grants less time.
func (h *heartbeats) anchor(l *Lease, g Grant, sent time.Duration) {
	b := &l.beat
	if sent < b.anchored {
		h.schedule(l)
		return
	}
	b.anchored = sent
	l.grant.Store(&g)
	l.end.Store(int64(sent + g.TTL - margin(g.TTL)))
	b.interval = h.config.interval(g.TTL)
	b.due, b.missed, b.lastErr = sent+b.interval, false, nil
	b.next, b.pause = b.due, min(longestRetry, b.interval/4)
	h.schedule(l)
}

// schedule computes when the lease needs attention next.
func (h *heartbeats) schedule(l *Lease) {
	b := &l.beat
	b.wake = time.Duration(l.end.Load())
	switch {
	case b.running != nil:
		b.wake = min(b.wake, b.running.bound)
	case !b.stopped && !b.repair:
		b.wake = min(b.wake, b.next)
	}
	if b.at >= 0 {
		heap.Fix(&h.leases, b.at)
	}
}

// unlock sets the timer for what is due next, frees the mutex and then tells
// those who are to know.
func (h *heartbeats) unlock() {
	if len(h.leases) > 0 {
		now := h.clock.Now()
		wake := h.leases[0].beat.wake
		if len(h.waiting) > 0 && len(h.calls) > 0 {
			wake = min(wake, h.calls[0].slow)
		}
		if h.clock.CountsSleep() {
			wake = min(wake, now+lookAgain)
		}
		if wake < h.armed || h.armed <= now {
			h.armed = wake
			if h.timer == nil {
				h.timer = time.AfterFunc(wake-now, h.tick)
			} else {
				h.timer.Reset(wake - now)
			}
		}
	} else if h.timer != nil {
		h.timer.Stop()
		h.armed = never
	}
	tell := h.finished
	h.finished = nil
	h.mu.Unlock()
	for _, f := range tell {
		f()
	}
}

// tick does what is due. It never waits for anything.
func (h *heartbeats) tick() {
	h.mu.Lock()
	defer h.unlock()
	h.armed = 0
	now := h.clock.Now()
	for len(h.leases) > 0 {
		l := h.leases[0]
		if l.beat.wake > now+h.slack(l) {
			break
		}
		switch b := &l.beat; {
		case now >= time.Duration(l.end.Load()):
			h.lose(l, &LostError{Reason: ReasonExpired, Err: b.lastErr})
		case b.running != nil:
			late := b.running
			h.recall(l)
			h.failed(l, now, late, context.DeadlineExceeded)
		default:
			h.try(l, now)
		}
	}
	h.freeSlow(now)
	h.send()
}

// slack lets heartbeats that are nearly due go with those that are, where the
// driver can renew many in one round trip. Ends are never moved.
func (h *heartbeats) slack(l *Lease) time.Duration {
	b := &l.beat
	if h.batch == nil || b.running != nil || b.stopped || b.repair || b.wake != b.next {
		return 0
	}
	return b.interval / 16
}

// expire ends a lease whose trusted time is over and which the timer has not
// come to yet.
func (h *heartbeats) expire(l *Lease) {
	h.mu.Lock()
	defer h.unlock()
	if l.beat.at >= 0 && l.left() <= 0 {
		h.lose(l, &LostError{Reason: ReasonExpired, Err: l.beat.lastErr})
	}
}

// lose ends a lease for good. The context is cancelled here, under the mutex,
// so that nothing can come before it.
func (h *heartbeats) lose(l *Lease, why *LostError) {
	g := l.grant.Load()
	why.Lock, why.Token, why.Holder = g.Lock, g.Token, g.Holder
	h.forget(l)
	alreadyOver := l.ctx.Err() != nil
	l.cancel(why)
	h.finished = append(h.finished, func() {
		l.gone()
		l.locker.queue.poke(g.Lock)
		if !alreadyOver {
			h.config.emit(Event{Kind: EventLost, Lock: g.Lock, Token: g.Token, Holder: g.Holder, Err: why})
		}
	})
}

func (h *heartbeats) forget(l *Lease) {
	if l.beat.at >= 0 {
		heap.Remove(&h.leases, l.beat.at)
	}
	h.recall(l)
}

// end stops keeping a lease that its user gives back.
func (h *heartbeats) end(l *Lease, why error) {
	h.mu.Lock()
	defer h.unlock()
	h.forget(l)
	l.cancel(why)
}

// stop ends the renewal of a lease. It stays trusted until its time is over.
func (h *heartbeats) stop(l *Lease) {
	h.mu.Lock()
	defer h.unlock()
	l.beat.stopped = true
	h.recall(l)
	h.schedule(l)
}

// recall gives up the try that is out, if there is one, without counting it.
func (h *heartbeats) recall(l *Lease) {
	if r := l.beat.running; r != nil {
		l.beat.running = nil
		h.abandon(r)
	}
}

// stopAll is stop for every lease, with the cause by which its context ends now.
func (h *heartbeats) stopAll(why error) {
	h.mu.Lock()
	defer h.unlock()
	for _, l := range slices.Clone(h.leases) {
		l.beat.stopped = true
		l.cancel(why)
		h.recall(l)
		h.schedule(l)
	}
}

// names lists the locks that are kept, for Close.
func (h *heartbeats) names() []string {
	h.mu.Lock()
	defer h.unlock()
	var names []string
	for _, l := range h.leases {
		names = append(names, l.Fence().Lock)
	}
	return names
}

// pause holds renewals up while the token is being repaired.
func (h *heartbeats) pause(l *Lease) {
	h.mu.Lock()
	defer h.unlock()
	l.beat.repair = true
	h.recall(l)
	h.schedule(l)
}

// repaired goes on with what the repair granted.
func (h *heartbeats) repaired(l *Lease, g Grant, sent time.Duration) {
	h.mu.Lock()
	defer h.unlock()
	l.beat.repair = false
	if l.beat.at < 0 {
		l.grant.Store(&g) // the lease is over; its release is to end what there is now
		return
	}
	h.anchor(l, g, sent)
}

// failed notes that a try came to nothing: another one within this heartbeat, or
// the next heartbeat, or the end.
func (h *heartbeats) failed(l *Lease, now time.Duration, r *renewal, err error) {
	b := &l.beat
	b.lastErr = err
	if b.missed {
		h.lose(l, &LostError{Reason: ReasonRenewal, Err: err})
		return
	}
	h.finished = append(h.finished, func() {
		h.config.emit(Event{Kind: EventRenewalFailed, Lock: r.grant.Lock, Token: r.grant.Token, Holder: r.grant.Holder, Took: now - r.sent, Err: err})
	})
	b.next = now + b.pause
	b.pause *= 2
	if nextBeat := b.due + b.interval; b.next >= nextBeat {
		b.missed = true
		b.due, b.next = max(now, nextBeat), max(now, nextBeat)
	}
	h.schedule(l)
}

// succeeded takes over what a renewal was granted.
func (h *heartbeats) succeeded(l *Lease, g Grant, r *renewal) {
	h.anchor(l, g, r.sent)
	took := h.clock.Now() - r.sent
	h.finished = append(h.finished, func() {
		h.config.emit(Event{Kind: EventRenewed, Lock: g.Lock, Token: g.Token, Holder: g.Holder, Took: took})
	})
}

// answered takes the answer to a renewal, however late it comes.
func (h *heartbeats) answered(r *renewal, g Grant, err error) {
	l := r.lease
	b := &l.beat
	current := b.running == r
	if current {
		b.running = nil
	}
	g.Fence = r.grant.Fence // what is renewed stays what it is
	if err == nil && g.TTL <= margin(g.TTL) {
		err = fmt.Errorf("piton: the coordinator renewed for %v, which leaves no time to use it", g.TTL)
	}
	switch {
	case b.at < 0 || b.repair || l.grant.Load().Token != r.grant.Token:
		// The lease is over, or the token that was renewed is no longer its own.
	case err == nil && !b.stopped:
		h.succeeded(l, g, r)
		return
	case errors.Is(err, ErrLost):
		why := &LostError{Reason: ReasonExpired}
		if lost := asLost(err); lost != nil {
			why.Reason, why.By, why.Err = lost.Reason, lost.By, lost.Err
		}
		if why.Reason == ReasonExpired && l.left() > 0 {
			why.Reason = ReasonMissing // a driver sees no difference, the lease's own clock does
		}
		h.lose(l, why)
		return
	case err != nil && current && !b.stopped:
		h.failed(l, h.clock.Now(), r, err)
		return
	}
	if current && b.at >= 0 {
		h.schedule(l)
	}
}

// beatHeap is a container/heap of leases by when they need attention.
type beatHeap []*Lease

func (q beatHeap) Len() int           { return len(q) }
func (q beatHeap) Less(i, j int) bool { return q[i].beat.wake < q[j].beat.wake }
func (q beatHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].beat.at, q[j].beat.at = i, j
}

func (q *beatHeap) Push(x any) {
	l := x.(*Lease)
	l.beat.at = len(*q)
	*q = append(*q, l)
}

func (q *beatHeap) Pop() any {
	old := *q
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	l.beat.at = -1
	return l
}
