//go:build linux

package lab

import (
	"errors"
	"testing"
)

// proof returns a report in which everything went as it should.
func proof() *Report {
	r := newReport(Config{})
	for _, run := range r.Runs {
		o := &outcome{served: true}
		switch run.Protection {
		case None:
			o.Counts = Counts{PhantomWrites: 1, LostUpdates: 1}
		case Compare, Sealed:
			o.Counts = Counts{RefusedWrites: 1}
		}
		run.add(o, 0, nil)
	}
	return r
}

func (r *Report) find(s Scenario, p Protection) *Result {
	for _, run := range r.Runs {
		if run.Scenario == s && run.Protection == p {
			return run
		}
	}
	return nil
}

func TestVerdict(t *testing.T) {
	harm := &outcome{Counts: Counts{PhantomWrites: 1, LostUpdates: 1}, served: true}
	tests := []struct {
		name  string
		spoil func(*Report)
		want  Verdict
	}{
		{"as it should be", func(*Report) {}, Protected},
		{"compare may fail", func(r *Report) { r.find(ReadHole, Compare).add(harm, 0, nil) }, Protected},
		{"phantom write under sealed", func(r *Report) {
			r.find(Twin, Sealed).add(&outcome{Counts: Counts{PhantomWrites: 1}, served: true}, 0, nil)
		}, Violated},
		{"lost update under sealed", func(r *Report) {
			r.find(Phantom, Sealed).add(&outcome{Counts: Counts{LostUpdates: 1, RefusedWrites: 1}, served: true}, 0, nil)
		}, Violated},
		{"violated outweighs unknown", func(r *Report) {
			r.find(Phantom, None).add(nil, 0, errors.New("not played"))
			r.find(Twin, Sealed).add(harm, 0, nil)
		}, Violated},
		{"no harm without protection", func(r *Report) { r.find(Twin, None).add(&outcome{served: true}, 0, nil) }, Unknown},
		{"only a phantom without protection", func(r *Report) {
			r.find(Twin, None).add(&outcome{Counts: Counts{PhantomWrites: 1}, served: true}, 0, nil)
		}, Unknown},
		{"nothing refused under sealed", func(r *Report) { r.find(Twin, Sealed).add(&outcome{served: true}, 0, nil) }, Unknown},
		{"the rightful holder refused under sealed", func(r *Report) {
			r.find(Twin, Sealed).add(&outcome{Counts: Counts{RefusedWrites: 2}}, 0, nil)
		}, Unknown},
		{"a round that could not be played", func(r *Report) { r.find(Phantom, Compare).add(nil, 3, errors.New("no worker")) }, Unknown},
		{"a run without rounds", func(r *Report) { r.find(Phantom, Compare).Rounds = 0 }, Unknown},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := proof()
			tt.spoil(r)
			r.judge()
			if r.Verdict != tt.want {
				t.Errorf("got %q (%s), want %q", r.Verdict, r.Reason, tt.want)
			}
		})
	}
}
