package faultproxy

import (
	"fmt"
	"strings"
	"time"
)

// Direction is one of the two streams of a connection.
type Direction int

// The two directions.
const (
	ToServer Direction = iota // requests
	ToClient                  // answers
)

// String is "to server" or "to client".
func (d Direction) String() string {
	switch d {
	case ToServer:
		return "to server"
	case ToClient:
		return "to client"
	default:
		return fmt.Sprintf("Direction(%d)", int(d))
	}
}

// Mode is what happens to the bytes of one direction. Modes are compared by ==;
// the zero Mode is [Pass].
type Mode struct {
	kind  kind
	delay time.Duration
}

type kind int

const (
	pass kind = iota
	delay
	hole
	drop
	reset
)

var (
	// Pass delivers bytes as they come.
	Pass = Mode{}
	// Hole holds bytes back and delivers them, late, once the mode is another one,
	// even when their sender has closed the connection meanwhile.
	Hole = Mode{kind: hole}
	// Drop lets bytes vanish, also those that are delayed or held back when it is
	// set. The connection stays, with bytes missing in its stream.
	Drop = Mode{kind: drop}
	// Reset resets a connection at both ends when bytes arrive in the direction;
	// they are not delivered.
	Reset = Mode{kind: reset}
)

// Delay delivers bytes in order, each d after it has come; it does not limit how
// many are on the way. A d of 0 or less is no delay, [Pass].
func Delay(d time.Duration) Mode {
	if d <= 0 {
		return Pass
	}
	return Mode{delay, d}
}

// String is the text of which [ParseMode] makes the mode again: "pass", "hole",
// "drop", "reset" or "delay 20ms".
func (m Mode) String() string {
	switch m.kind {
	case pass:
		return "pass"
	case delay:
		return "delay " + m.delay.String()
	case hole:
		return "hole"
	case drop:
		return "drop"
	default:
		return "reset"
	}
}

// ParseMode returns the mode that the text describes; see [Mode.String].
func ParseMode(text string) (Mode, error) {
	for _, mode := range []Mode{Pass, Hole, Drop, Reset} {
		if text == mode.String() {
			return mode, nil
		}
	}
	if after, ok := strings.CutPrefix(text, "delay "); ok {
		if d, err := time.ParseDuration(after); err == nil && d > 0 {
			return Delay(d), nil
		}
	}
	return Mode{}, fmt.Errorf("fault %q is unknown; want pass, hole, drop, reset or delay with a duration, such as delay 20ms", text)
}
