package piton

import (
	"context"
	"fmt"
	"time"
)

const (
	mostSenders = 64  // renewal calls at a time
	mostInBatch = 200 // grants in one call of a BatchRenewer
)

// renewal is one try to renew one lease.
type renewal struct {
	lease *Lease
	grant Grant
	bound time.Duration // when it is given up
	sent  time.Duration
	call  *renewalCall // nil while it waits for a sender
	over  bool         // nobody waits for it any more
}

// renewalCall is one call of the driver. It occupies a sender until it returns or
// is abandoned.
type renewalCall struct {
	renewals []*renewal
	abandon  bool
}

// try makes the lease's next renewal due. It is given up when the next heartbeat
// begins or the lease ends.
func (h *heartbeats) try(l *Lease, now time.Duration) {
	b := &l.beat
	bound := min(max(b.due, now)+b.interval, time.Duration(l.end.Load()))
	if b.due+b.interval > now {
		bound = min(bound, b.due+b.interval)
	}
	b.running = &renewal{lease: l, grant: *l.grant.Load(), bound: bound, sent: now}
	h.waiting = append(h.waiting, b.running)
	h.schedule(l)
}

// abandon gives a try up. A driver that ignores its context must not occupy a
// sender for longer.
func (h *heartbeats) abandon(r *renewal) {
	r.over = true
	if r.call == nil || r.call.abandon {
		return
	}
	for _, other := range r.call.renewals {
		if !other.over {
			return
		}
	}
	r.call.abandon = true
	h.senders--
	h.send()
}

// send starts as many senders as there is work for.
func (h *heartbeats) send() {
	for needed := len(h.waiting); needed > 0 && h.senders < mostSenders; needed -= h.atOnce() {
		h.senders++
		go h.sender()
	}
}

func (h *heartbeats) atOnce() int {
	if h.batch == nil {
		return 1
	}
	return mostInBatch
}

// sender makes calls until there is no work for it.
func (h *heartbeats) sender() {
	for {
		h.mu.Lock()
		call, bound := h.take()
		if call == nil {
			h.senders--
			h.unlock()
			return
		}
		h.unlock()

		results := h.renew(call, bound)

		h.mu.Lock()
		for i, r := range call.renewals {
			if r.over && results[i].Err != nil && asLost(results[i].Err) == nil {
				continue
			}
			r.over = true
			h.answered(r, results[i].Grant, results[i].Err)
		}
		abandoned := call.abandon
		h.unlock()
		if abandoned {
			return
		}
	}
}

// take picks the renewals of the next call and how long it may last.
func (h *heartbeats) take() (*renewalCall, time.Duration) {
	call := &renewalCall{}
	now := h.clock.Now()
	var bound time.Duration
	for len(h.waiting) > 0 && len(call.renewals) < h.atOnce() {
		r := h.waiting[0]
		h.waiting[0] = nil
		h.waiting = h.waiting[1:]
		if r.over {
			continue
		}
		r.call, r.sent = call, now
		call.renewals = append(call.renewals, r)
		bound = max(bound, r.bound-now)
	}
	if len(h.waiting) == 0 {
		h.waiting = nil
	}
	if len(call.renewals) == 0 {
		return nil, 0
	}
	return call, bound
}

func (h *heartbeats) renew(call *renewalCall, bound time.Duration) []RenewResult {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if h.batch == nil {
		g, err := h.coord.Renew(ctx, call.renewals[0].grant)
		return []RenewResult{{Grant: g, Err: err}}
	}
	grants := make([]Grant, len(call.renewals))
	for i, r := range call.renewals {
		grants[i] = r.grant
	}
	results := h.batch.RenewBatch(ctx, grants)
	if len(results) != len(grants) {
		err := fmt.Errorf("piton: the coordinator answered %d of %d renewals", len(results), len(grants))
		results = make([]RenewResult, len(grants))
		for i := range results {
			results[i].Err = err
		}
	}
	return results
}
