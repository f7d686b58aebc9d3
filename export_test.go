package piton

import (
	"time"

	"github.com/pitonlock/piton/internal/clock"
)

// WithBootClock replaces the machine's boot clock, which a synctest bubble does
// not fake; nil: there is none.
func WithBootClock(boot func() (time.Duration, bool)) Option {
	return func(c *config) { c.clock = clock.NewWith(boot) }
}
