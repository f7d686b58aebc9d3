//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Scenario is a way in which two workers come to believe in one lock.
type Scenario string

// The scenarios.
const (
	Phantom  Scenario = "phantom"   // the holder is paused between its check and its write
	ReadHole Scenario = "read-hole" // the old holder writes between the new one's read and its first write
	Twin     Scenario = "twin"      // the coordinator lost its counter: two holders, one number
)

// Scenarios lists them in the order of the report.
var Scenarios = []Scenario{Phantom, ReadHole, Twin}

// Story says in one sentence what happens.
func (s Scenario) Story() string {
	switch s {
	case Phantom:
		return "Worker 1 is paused between its check and its write; worker 2 does its work meanwhile."
	case ReadHole:
		return "Worker 1 wakes up and writes between worker 2's read and worker 2's first write."
	case Twin:
		return "The coordinator loses the lock and its counter while worker 1 holds it; worker 2 comes at once."
	}
	return ""
}

// Protection is what stands between a late write and the data.
type Protection string

// The protections.
const (
	None    Protection = "none"    // SET NX PX and a check in memory
	Compare Protection = "compare" // and the storage accepts last_fencing_token < token
	Sealed  Protection = "sealed"  // Piton: Acquire seals the storage, the storage decides
)

// Protections lists them in the order of the report.
var Protections = []Protection{None, Compare, Sealed}

// Story says what the protection consists of.
func (p Protection) Story() string {
	switch p {
	case None:
		return "SET NX PX, and a look at the clock before the write"
	case Compare:
		return "a counter as token, and WHERE last_fencing_token < token"
	case Sealed:
		return "Piton: the storage is sealed before the lease is used"
	}
	return ""
}

// amounts are what worker 1 and worker 2 add; see lost for why they differ.
var amounts = [3]int64{0, 100, 25}

// overhang is how much longer than its lease a worker is paused at least.
const overhang = 25 * time.Millisecond

// round is one play of one scenario under one protection.
type round struct {
	scenario   Scenario
	protection Protection
	lock       string
	lab        *laboratory

	trace  *trace
	adds   []add
	paused time.Duration
}

// outcome is what a round showed.
type outcome struct {
	Counts
	paused time.Duration
	trace  []Mark
	final  int64
	acked  int64 // the sum that was acknowledged
	served bool  // the rightful holder's write was accepted
}

// play runs the round. An error means that it could not be played as written,
// not that something was found.
func (r *round) play(ctx context.Context) (*outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*r.lab.TTL+2*stepLimit)
	defer cancel()
	if err := r.lab.store.openAccount(ctx, r.lock); err != nil {
		return nil, err
	}
	var workers [3]*process
	for n := 1; n <= 2; n++ {
		p, err := r.lab.start(ctx, r, n)
		if err != nil {
			return nil, err
		}
		defer p.kill()
		workers[n] = p
	}
	r.trace.begin()
	if err := r.act(ctx, workers[1], workers[2]); err != nil {
		workers[1].kill()
		workers[2].kill()
		return r.breach(ctx, err)
	}
	for _, p := range workers[1:] {
		if err := p.end(ctx); err != nil {
			return nil, err
		}
	}
	return r.judge(ctx)
}

// act is the script.
func (r *round) act(ctx context.Context, w1, w2 *process) error {
	if err := r.steps(ctx, w1, stepAcquire, stepRead, stepCheck); err != nil {
		return err
	}
	// Worker 1 waits for its next step. It is stopped, and finds the step in its
	// pipe when it goes on: the pause is exactly between the check and the write.
	if err := w1.stop(); err != nil {
		return err
	}
	stopped := time.Now()
	r.trace.add(Mark{From: LaneWorker1, To: LaneWorker1, Kind: MarkPause, Text: "SIGSTOP"})
	if err := w1.tell(stepWrite); err != nil {
		return err
	}
	if r.scenario == Twin {
		if err := r.lab.forget(ctx, r.lock); err != nil {
			return err
		}
		r.trace.add(Mark{From: LaneCoordinator, To: LaneCoordinator, Kind: MarkBad, Text: "memory lost"})
	}
	if err := r.steps(ctx, w2, stepAcquire, stepRead, stepCheck); err != nil {
		return err
	}
	if r.scenario == Phantom {
		if err := r.steps(ctx, w2, stepWrite, stepRelease); err != nil {
			return err
		}
	}
	if err := sleepUntil(ctx, stopped.Add(r.lab.TTL+overhang)); err != nil {
		return err
	}
	// Noted before it is done: worker 1 may report faster than this goes on.
	r.paused = time.Since(stopped)
	r.trace.add(Mark{From: LaneWorker1, To: LaneWorker1, Kind: MarkResume, Text: "SIGCONT"})
	if err := w1.resume(); err != nil {
		return err
	}
	answer, err := w1.await(ctx, stepWrite)
	if err != nil {
		return err
	}
	r.record(w1, answer)
	if r.scenario != Phantom {
		if err := r.steps(ctx, w2, stepWrite, stepRelease); err != nil {
			return err
		}
	}
	return r.steps(ctx, w1, stepRelease)
}

func (r *round) steps(ctx context.Context, p *process, steps ...string) error {
	for _, step := range steps {
		if step == stepAcquire {
			r.trace.add(Mark{From: laneOf(p.worker), To: LaneCoordinator, Kind: MarkStep, Text: "acquire"})
		}
		answer, err := p.do(ctx, step)
		if err != nil {
			return err
		}
		r.record(p, answer)
		if step == stepCheck && !answer.Held {
			return fmt.Errorf("worker %d no longer held the lock at its check: the machine is too slow for a TTL of %v", p.worker, r.lab.TTL)
		}
	}
	return nil
}

// record notes an answer for the picture, and what it acknowledges.
func (r *round) record(p *process, e event) {
	lane := laneOf(p.worker)
	m := Mark{From: lane, To: LaneStorage, Kind: MarkStep}
	switch e.Step {
	case stepAcquire:
		m.From, m.To, m.Text = LaneCoordinator, lane, "OK"
		switch {
		case r.protection == Sealed: // its tokens have come with the seals
			m.From, m.Text = lane, "has the lease"
		case e.Token > 0:
			m.Text = fmt.Sprintf("token %d", e.Token)
		}
	case stepRead:
		m.From, m.To, m.Text = LaneStorage, lane, fmt.Sprintf("reads %d", e.Balance)
	case stepCheck:
		m.To, m.Text = lane, "held? yes"
	case stepRelease:
		m.To, m.Text = LaneCoordinator, "release"
	case stepWrite:
		m.Write, m.Kind, m.Token, m.Text = true, MarkWrite, e.Token, fmt.Sprintf("write %d", e.Balance)
		if e.Refused != "" {
			m.Kind = MarkRefused
		}
		r.adds = append(r.adds, add{Worker: p.worker, Amount: amounts[p.worker], Acked: e.Refused == ""})
	}
	r.trace.add(m)
}

// remark notes what a worker reports by itself.
func (r *round) remark(lane Lane, e event) {
	if e.Step == reportLost {
		r.trace.add(Mark{From: lane, To: lane, Kind: MarkLost, Text: "told: lease lost"})
		return
	}
	seal := Mark{From: lane, To: LaneStorage, Kind: MarkSeal, Text: fmt.Sprintf("seal %d", e.Token)}
	if e.Refused != "" {
		seal.Kind = MarkRefused
	}
	r.trace.add(Mark{From: LaneCoordinator, To: lane, Kind: MarkStep, Text: fmt.Sprintf("token %d", e.Token)})
	r.trace.add(seal)
}

// judge reads back what the storage has and counts.
func (r *round) judge(ctx context.Context) (*outcome, error) {
	if r.paused < r.lab.TTL {
		return nil, fmt.Errorf("the pause of %v did not outlast the TTL of %v", r.paused, r.lab.TTL)
	}
	journal, err := r.lab.store.history(ctx, r.lock)
	if err != nil {
		return nil, err
	}
	final, err := r.lab.store.balance(ctx, r.lock)
	if err != nil {
		return nil, err
	}
	h := history{Initial: initialBalance, Final: final, Journal: journal, Adds: r.adds}
	counts, err := check(h)
	if err != nil {
		return nil, errors.Join(errUnsound, err)
	}
	return r.outcome(counts, journal, final), nil
}

func (r *round) outcome(counts Counts, journal []entry, final int64) *outcome {
	o := &outcome{Counts: counts, paused: r.paused, final: final, acked: initialBalance, trace: r.trace.annotate(journal)}
	for _, a := range r.adds {
		if a.Acked {
			o.acked += a.Amount
			o.served = o.served || a.Worker == 2
		}
	}
	return o
}

// breach looks whether a round under Sealed that failed with err had let a
// phantom write through before: playing it again must not hide that.
func (r *round) breach(ctx context.Context, err error) (*outcome, error) {
	if r.protection != Sealed {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepLimit)
	defer cancel()
	journal, readErr := r.lab.store.history(ctx, r.lock)
	var counts Counts
	var final int64
	for i, e := range journal {
		if e.Kind != kindWrite {
			continue
		}
		final = e.Become
		if superseded(journal, i) {
			counts.PhantomWrites++
		}
	}
	if counts.PhantomWrites == 0 {
		return nil, errors.Join(err, readErr)
	}
	return r.outcome(counts, journal, final), nil
}

// errUnsound is a history that contradicts itself. Playing the round again
// would hide it.
var errUnsound = errors.New("the round's history contradicts itself")

func sleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
