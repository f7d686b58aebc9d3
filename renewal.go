package piton

import (
	"context"
	"fmt"
	"time"
)

const (
	mostSenders = 64  // renewal calls at a time
	mostInBatch = 200 // grants in one call of a BatchRenewer
	slowCall    = 250 * time.Millisecond
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

// renewalCall is one call of the driver. It occupies one of the senders until it
// returns, is abandoned, or has proved slow: calls that hang, on one shard of many
// for example, must not hold up those of other leases.
type renewalCall struct {
	renewals []*renewal
	slow     time.Duration // when it will have proved slow
	freed    bool          // it no longer occupies a sender
	returned bool
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
	if r.call == nil {
		return
	}
	for _, other := range r.call.renewals {
		if !other.over {
			return
		}
	}
	h.free(r.call)
}

func (h *heartbeats) free(call *renewalCall) {
	if !call.freed {
		call.freed = true
		h.senders--
		h.send()
	}
}

// freeSlow frees the senders of calls that have proved slow, while others wait.
func (h *heartbeats) freeSlow(now time.Duration) {
	for len(h.calls) > 0 {
		call := h.calls[0]
		if !call.freed && !call.returned {
			if len(h.waiting) == 0 || call.slow > now {
				return
			}
			h.free(call)
		}
		h.calls[0] = nil
		h.calls = h.calls[1:]
	}
	h.calls = nil
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
		call.returned = true
		freed := call.freed
		h.freeSlow(h.clock.Now())
		h.unlock()
		if freed {
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
	call.slow = now + slowCall
	h.calls = append(h.calls, call)
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
