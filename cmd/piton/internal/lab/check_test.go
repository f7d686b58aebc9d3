//go:build linux

package lab

import "testing"

func granted(worker int, token int64) entry {
	return entry{Kind: kindGranted, Worker: worker, Token: token}
}

func wrote(worker int, was, become int64) entry {
	return entry{Kind: kindWrite, Worker: worker, Was: was, Become: become}
}

func refused(worker int) entry { return entry{Kind: kindRefused, Worker: worker} }

func TestCheckCounts(t *testing.T) {
	both := []add{{1, 100, true}, {2, 25, true}}
	firstRefused := []add{{1, 100, false}, {2, 25, true}}
	tests := []struct {
		name    string
		journal []entry
		final   int64
		adds    []add
		want    Counts
	}{
		{"one after the other", []entry{granted(1, 1), wrote(1, 1000, 1100), granted(2, 2), wrote(2, 1100, 1125)}, 1125, both, Counts{}},
		{"old holder last", []entry{granted(1, 1), granted(2, 2), wrote(2, 1000, 1025), wrote(1, 1025, 1100)}, 1100, both, Counts{PhantomWrites: 1, LostUpdates: 1}},
		{"old holder in between", []entry{granted(1, 1), granted(2, 2), wrote(1, 1000, 1100), wrote(2, 1100, 1025)}, 1025, both, Counts{PhantomWrites: 1, LostUpdates: 1}},
		{"phantom that loses nothing", []entry{granted(1, 1), granted(2, 2), wrote(1, 1000, 1100), wrote(2, 1100, 1125)}, 1125, both, Counts{PhantomWrites: 1}},
		{"loss without a phantom", []entry{granted(1, 1), wrote(1, 1000, 1100), granted(2, 2), wrote(2, 1100, 1025)}, 1025, both, Counts{LostUpdates: 1}},
		{"old holder refused", []entry{granted(1, 1), granted(2, 2), wrote(2, 1000, 1025), refused(1)}, 1025, firstRefused, Counts{RefusedWrites: 1}},
		{"a worker told that it was refused, but written", []entry{granted(1, 1), granted(2, 2), wrote(2, 1000, 1025), wrote(1, 1025, 1100)}, 1100, firstRefused, Counts{PhantomWrites: 1, LostUpdates: 1}},
		{"the token number does not matter", []entry{granted(1, 1), granted(2, 1), wrote(1, 1000, 1100), refused(2)}, 1100, []add{{1, 100, true}, {2, 25, false}}, Counts{PhantomWrites: 1, RefusedWrites: 1}},
		{"granted again to the same worker", []entry{granted(1, 1), granted(1, 2), wrote(1, 1000, 1100)}, 1100, []add{{1, 100, true}}, Counts{}},
		{"a write without any grant", []entry{wrote(1, 1000, 1100)}, 1100, []add{{1, 100, true}}, Counts{PhantomWrites: 1}},
		{"a balance that is no sum", []entry{granted(1, 1), wrote(1, 1000, 7), wrote(1, 7, 3)}, 3, both[:1], Counts{LostUpdates: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := check(history{Initial: 1000, Final: tt.final, Journal: tt.journal, Adds: tt.adds})
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestCheckDistrusts(t *testing.T) {
	tests := []struct {
		name string
		h    history
	}{
		{"empty", history{Initial: 1000, Final: 1000}},
		{"a write past the journal between two lines", history{Initial: 1000, Final: 1125, Journal: []entry{granted(1, 1), wrote(1, 1000, 1100), wrote(2, 1101, 1125)}}},
		{"a write past the journal at the end", history{Initial: 1000, Final: 1101, Journal: []entry{granted(1, 1), wrote(1, 1000, 1100)}}},
		{"a write past the journal at the start", history{Initial: 1000, Final: 1100, Journal: []entry{granted(1, 1), wrote(1, 999, 1100)}}},
		{"an acknowledged write that is not there", history{Initial: 1000, Final: 1000, Journal: []entry{granted(1, 1)}, Adds: []add{{1, 100, true}}}},
		{"an unknown kind", history{Initial: 1000, Final: 1000, Journal: []entry{{Kind: "?"}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if c, err := check(tt.h); err == nil {
				t.Errorf("got %+v, want an error", c)
			}
		})
	}
}
