//go:build linux

package lab

import (
	"errors"
	"fmt"
)

// add is what a worker tried to put on the account, and whether it was told
// that this had been done.
type add struct {
	Worker int
	Amount int64
	Acked  bool
}

// history is what one round left behind: the storage's own journal and balance,
// and what the workers were told.
type history struct {
	Initial, Final int64
	Journal        []entry
	Adds           []add
}

// Counts are what went wrong, and what was kept from going wrong.
type Counts struct {
	PhantomWrites int `json:"phantom_writes"` // accepted from a worker whose lease another one had been granted since
	LostUpdates   int `json:"lost_updates"`   // acknowledged, but not in the final balance
	RefusedWrites int `json:"refused_writes"` // not accepted by the storage
}

func (c Counts) plus(d Counts) Counts {
	return Counts{c.PhantomWrites + d.PhantomWrites, c.LostUpdates + d.LostUpdates, c.RefusedWrites + d.RefusedWrites}
}

// check counts. An error means that the history cannot be trusted: something
// wrote past the journal, or the workers and the journal contradict each other.
func check(h history) (Counts, error) {
	if err := sound(h); err != nil {
		return Counts{}, err
	}
	var c Counts
	for i := range h.Journal {
		switch h.Journal[i].Kind {
		case kindWrite:
			if superseded(h.Journal, i) {
				c.PhantomWrites++
			}
		case kindRefused:
			c.RefusedWrites++
		}
	}
	c.LostUpdates = lost(h)
	return c, nil
}

// sound follows the balance through the journal: each write must have found
// what the one before it left, from the initial balance to the final one.
func sound(h history) error {
	balance := h.Initial
	writes := map[int]int{}
	for _, e := range h.Journal {
		switch e.Kind {
		case kindWrite:
			if e.Was != balance {
				return fmt.Errorf("the journal's line %d found a balance of %d, want %d: something wrote past the journal", e.Seq, e.Was, balance)
			}
			balance = e.Become
			writes[e.Worker]++
		case kindGranted, kindRefused:
		default:
			return fmt.Errorf("the journal's line %d has the unknown kind %q", e.Seq, e.Kind)
		}
	}
	if balance != h.Final {
		return fmt.Errorf("the balance is %d, but the journal ends with %d: something wrote past the journal", h.Final, balance)
	}
	for _, a := range h.Adds {
		if a.Acked && writes[a.Worker] == 0 {
			return fmt.Errorf("worker %d was told that its write was accepted, but the journal has none of it", a.Worker)
		}
	}
	if len(h.Journal) == 0 {
		return errors.New("the journal is empty")
	}
	return nil
}

// superseded reports whether, before line i, the lock was granted to another
// worker after it had been granted to the writer of line i.
func superseded(journal []entry, i int) bool {
	holder := 0
	for _, e := range journal[:i] {
		if e.Kind == kindGranted {
			holder = e.Worker
		}
	}
	return holder != journal[i].Worker
}

// lost returns how many acknowledged amounts are not in the final balance. The
// amounts are such that every sum of them is a sum of one set only, so the
// balance itself says whose are in it. A balance that is no such sum holds
// nothing that can be relied on: all acknowledged amounts count as lost.
func lost(h history) int {
	acked := 0
	for _, a := range h.Adds {
		if a.Acked {
			acked++
		}
	}
	best := 0
	for set := range 1 << len(h.Adds) {
		sum, kept := h.Initial, 0
		for i, a := range h.Adds {
			if set>>i&1 == 0 {
				continue
			}
			sum += a.Amount
			if a.Acked {
				kept++
			}
		}
		if sum == h.Final {
			best = max(best, kept)
		}
	}
	return acked - best
}
