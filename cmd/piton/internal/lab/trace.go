//go:build linux

package lab

import (
	"slices"
	"sync"
	"time"
)

// Lane is a vertical line of the picture.
type Lane int

// The lanes, from left to right.
const (
	LaneWorker1 Lane = iota
	LaneCoordinator
	LaneWorker2
	LaneStorage
)

func laneOf(worker int) Lane {
	if worker == 2 {
		return LaneWorker2
	}
	return LaneWorker1
}

// Kind says how a mark is drawn.
type Kind string

// The kinds of a mark.
const (
	MarkStep    Kind = "step"
	MarkSeal    Kind = "seal"
	MarkWrite   Kind = "write"   // accepted, rightly
	MarkPhantom Kind = "phantom" // accepted from a holder that had been superseded
	MarkRefused Kind = "refused" // rightly
	MarkDenied  Kind = "denied"  // refused although it was the present holder's
	MarkPause   Kind = "pause"
	MarkResume  Kind = "resume"
	MarkLost    Kind = "lost" // the worker was told that its lease is lost
	MarkBad     Kind = "bad"
)

// Mark is one line of the picture: an arrow between two lanes, or a remark at
// one of them.
type Mark struct {
	At       time.Duration // since the round began
	From, To Lane
	Kind     Kind
	Text     string
	Token    int64 // of a write, where there is one
	Write    bool
}

// trace collects the marks of one round.
type trace struct {
	mu    sync.Mutex
	began time.Time
	marks []Mark
}

// begin sets the time from which all marks count.
func (t *trace) begin() { t.began = time.Now() }

func (t *trace) add(m Mark) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.At = time.Since(t.began)
	t.marks = append(t.marks, m)
}

// annotate returns the marks, with the writes that the journal shows to have
// been accepted or refused wrongly marked as such.
func (t *trace) annotate(journal []entry) []Mark {
	t.mu.Lock()
	defer t.mu.Unlock()
	marks := slices.Clone(t.marks)
	replace := func(worker int, old, kind Kind) {
		for n := range marks {
			if marks[n].From == laneOf(worker) && marks[n].Kind == old && marks[n].Write {
				marks[n].Kind = kind
			}
		}
	}
	for i, e := range journal {
		switch old := superseded(journal, i); {
		case e.Kind == kindWrite && old:
			replace(e.Worker, MarkWrite, MarkPhantom)
		case e.Kind == kindRefused && !old:
			replace(e.Worker, MarkRefused, MarkDenied)
		}
	}
	return marks
}

func (m Mark) refused() bool { return m.Kind == MarkRefused || m.Kind == MarkDenied }
