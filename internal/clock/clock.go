// Package clock reads the time that a lease lives by: how long this machine has
// run since the clock was made, with the time that it slept.
//
// The wall clock is never read, because it can be set. Go's monotonic clock
// stands still on Linux while the machine is suspended (CLOCK_MONOTONIC), and a
// lease at a coordinator does not; CLOCK_BOOTTIME goes on. The clock is
// whichever of the two is ahead. Elsewhere than on Linux the monotonic clock is
// all there is.
package clock

import "time"

// step is the smallest lead of the boot clock that counts as sleep. The two
// clocks are read one after the other, and a program in a testing/synctest
// bubble has a monotonic clock that starts behind; neither is sleep.
const step = time.Millisecond

// A Clock counts from when it was made. It is safe for concurrent use.
type Clock struct {
	start     time.Time
	boot      func() (time.Duration, bool)
	startBoot time.Duration
}

// New returns a clock that reads zero now. The boot clock of the machine is used
// where it has one.
func New() *Clock { return NewWith(bootTime) }

// NewWith is New with another boot clock, for tests. boot may be nil: none. Its
// second result is false when it cannot be read.
func NewWith(boot func() (time.Duration, bool)) *Clock {
	c := &Clock{boot: boot}
	if boot != nil {
		var ok bool
		if c.startBoot, ok = boot(); !ok {
			c.boot = nil
		}
	}
	c.start = time.Now()
	return c
}

// Now is the time since the clock was made, sleep included. It never goes back.
func (c *Clock) Now() time.Duration {
	if c.boot == nil {
		return time.Since(c.start)
	}
	boot, ok := c.boot()
	mono := time.Since(c.start)
	if slept := boot - c.startBoot - mono; ok && slept >= step {
		return mono + slept
	}
	return mono
}

// CountsSleep tells whether the time that the machine sleeps is seen. Timers of
// the runtime do not see it, so that whoever waits must look at the clock again
// and again.
func (c *Clock) CountsSleep() bool { return c.boot != nil }
