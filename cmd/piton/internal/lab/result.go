//go:build linux

package lab

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/pitonlock/piton/cmd/piton/internal/backend"
)

// Verdict is the answer to the question whether Piton held.
type Verdict string

// The verdicts.
const (
	Protected Verdict = "protected" // nothing got through Piton, and the same faults did harm without it
	Violated  Verdict = "violated"  // something got through Piton
	Unknown   Verdict = "unknown"   // the laboratory could not show it
)

// Report is what was found.
type Report struct {
	Verdict     Verdict       `json:"verdict"`
	Reason      string        `json:"reason"`
	Coordinator string        `json:"coordinator"` // without passwords
	Storage     string        `json:"storage"`
	TTL         time.Duration `json:"-"`
	Took        time.Duration `json:"-"`
	Runs        []*Result     `json:"runs"`
}

// Result sums up the rounds of one scenario under one protection.
type Result struct {
	Scenario   Scenario   `json:"scenario"`
	Protection Protection `json:"protection"`
	Rounds     int        `json:"rounds"` // that were played to the end
	Counts
	Unserved    int           `json:"refused_rightful"` // rounds in which the new holder's own write was refused
	ShortestGap time.Duration `json:"-"`                // shortest pause of worker 1
	Retries     int           `json:"retries"`          // rounds that had to be played again, because they could not be played to the end
	Problems    []string      `json:"problems,omitempty"`

	Trace        []Mark `json:"-"` // of the first round that was played
	Final, Acked int64  `json:"-"` // its balance, and what it should be
	refusals     int    // rounds with at least one refusal
	harmed       int    // rounds with a phantom write and a lost update
}

func newReport(c Config) *Report {
	r := &Report{Verdict: Unknown, Coordinator: "embedded", Storage: "SQLite", TTL: c.TTL}
	if c.Coordinator != "" {
		r.Coordinator = backend.Redact(c.Coordinator)
	}
	if c.Storage != "" {
		r.Storage = backend.Redact(c.Storage)
	}
	for _, s := range Scenarios {
		for _, p := range Protections {
			r.Runs = append(r.Runs, &Result{Scenario: s, Protection: p})
		}
	}
	return r
}

func (r *Result) add(o *outcome, retries int, err error) {
	r.Retries += retries
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
		return
	}
	if r.Rounds == 0 {
		r.Trace, r.Final, r.Acked, r.ShortestGap = o.trace, o.final, o.acked, o.paused
	}
	r.Rounds++
	r.Counts = r.plus(o.Counts)
	r.ShortestGap = min(r.ShortestGap, o.paused)
	if o.RefusedWrites > 0 {
		r.refusals++
	}
	if o.PhantomWrites > 0 && o.LostUpdates > 0 {
		r.harmed++
	}
	if !o.served {
		r.Unserved++
	}
}

// judge sets the verdict. Harm under Sealed outweighs everything; a proof needs
// every round to have been played, harm without protection, and refusals with it.
func (r *Report) judge() {
	r.Verdict, r.Reason = Protected, "sealed refused every late write; without it the same pauses lost updates"
	doubt := func(format string, args ...any) {
		if r.Verdict == Protected {
			r.Verdict, r.Reason = Unknown, fmt.Sprintf(format, args...)
		}
	}
	for _, run := range r.Runs {
		if run.Protection == Sealed && run.PhantomWrites+run.LostUpdates > 0 {
			r.Verdict = Violated
			r.Reason = fmt.Sprintf("sealed let through %s and lost %s in scenario %s",
				counted(run.PhantomWrites, "phantom write"), counted(run.LostUpdates, "update"), run.Scenario)
			return
		}
		switch {
		case len(run.Problems) > 0:
			doubt("%s under %s could not be played: %s", run.Scenario, run.Protection, run.Problems[0])
		case run.Rounds == 0:
			doubt("%s under %s was not played", run.Scenario, run.Protection)
		case run.Protection == None && run.harmed < run.Rounds:
			doubt("%s did no harm without protection in %d of %d rounds, so nothing follows from the rest", run.Scenario, run.Rounds-run.harmed, run.Rounds)
		case run.Protection == Sealed && run.refusals < run.Rounds:
			doubt("%s under sealed had no late write to refuse in %d of %d rounds", run.Scenario, run.Rounds-run.refusals, run.Rounds)
		case run.Protection == Sealed && run.Unserved > 0:
			doubt("%s under sealed refused the rightful holder in %d of %d rounds", run.Scenario, run.Unserved, run.Rounds)
		}
	}
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// MarshalJSON adds the times, in milliseconds.
func (r *Report) MarshalJSON() ([]byte, error) {
	type plain Report
	return json.Marshal(struct {
		*plain
		TTL  int64 `json:"ttl_ms"`
		Took int64 `json:"took_ms"`
	}{(*plain)(r), r.TTL.Milliseconds(), r.Took.Milliseconds()})
}

// MarshalJSON adds the shortest pause, in milliseconds.
func (r *Result) MarshalJSON() ([]byte, error) {
	type plain Result
	return json.Marshal(struct {
		*plain
		Gap int64 `json:"shortest_pause_ms"`
	}{(*plain)(r), r.ShortestGap.Milliseconds()})
}
