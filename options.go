package piton

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pitonlock/piton/internal/clock"
)

const (
	// defaultTTL is what Kubernetes' leader election, ShedLock and Redisson use, too.
	defaultTTL = 30 * time.Second
	// minTTL leaves room for two heartbeats beside the margin and the jitter of a
	// busy machine's scheduler.
	minTTL = 20 * time.Millisecond
	// maxTTL is what every coordinator can grant; Consul's sessions end at a day
	// (https://developer.hashicorp.com/consul/api-docs/session#ttl). A TTL is how
	// long others wait after a crash, not how long the work may take.
	maxTTL = 24 * time.Hour
)

// Option configures a [Locker]. Options are checked by [New].
type Option func(*config)

type config struct {
	ttl       time.Duration
	heartbeat time.Duration // 0: a third of the granted TTL
	guards    []Guard
	owner     string
	logger    *slog.Logger
	observer  func(Event)
	clock     *clock.Clock
}

// WithTTL sets how long a grant lasts without renewal, 20 ms to 24 h; the
// default is 30 s. It is also how long others wait after a holder crashed. The
// coordinator may grant less; the lease then lives by what was granted.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithHeartbeat sets the time between renewals; the default is a third of the
// TTL. More than half of the TTL is refused by [New]: one failed renewal would
// leave no time for a second.
func WithHeartbeat(d time.Duration) Option { return func(c *config) { c.heartbeat = d } }

// WithGuards attaches storages. Each acquisition seals them in this order before
// the lease is handed out, so that no earlier holder can write there any more.
func WithGuards(g ...Guard) Option {
	return func(c *config) { c.guards = append(c.guards, g...) }
}

// WithOwner sets a label for people, such as a host name with a process id. It
// is shown to those who wait for the lock and never compared.
func WithOwner(label string) Option { return func(c *config) { c.owner = label } }

// WithLogger makes the Locker log: what goes wrong at Warn, the rest at Debug.
// It is silent by default.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithObserver calls observe for each [Event], from several goroutines. No lock
// is held meanwhile, and a lease that ended has been cancelled before. It should
// return quickly: the goroutine that it holds up may have renewals to send.
func WithObserver(observe func(Event)) Option { return func(c *config) { c.observer = observe } }

func newConfig(opts []Option) (config, error) {
	c := config{ttl: defaultTTL, clock: clock.New()}
	for i, o := range opts {
		if o == nil {
			return c, fmt.Errorf("piton: option %d is nil; leave it out", i+1)
		}
		o(&c)
	}
	switch {
	case c.ttl < minTTL:
		return c, fmt.Errorf("piton: TTL %v is too short; want at least %v", c.ttl, minTTL)
	case c.ttl > maxTTL:
		return c, fmt.Errorf("piton: TTL %v is too long; want at most %v: renewal keeps a lease for as long as the work takes, and after a crash others wait for a whole TTL", c.ttl, maxTTL)
	case c.heartbeat < 0:
		return c, fmt.Errorf("piton: heartbeat %v is negative; want more than 0 and at most half of the TTL, %v", c.heartbeat, c.ttl/2)
	case c.heartbeat > c.ttl/2:
		return c, fmt.Errorf("piton: heartbeat %v is more than half of the TTL %v, so that one failed renewal would leave no time for a second; want at most %v", c.heartbeat, c.ttl, c.ttl/2)
	}
	for _, g := range c.guards {
		if g == nil {
			return c, errors.New("piton: WithGuards was given a nil guard")
		}
	}
	return c, nil
}

// margin is what is taken off a granted TTL for clocks that run at different
// rates and for the way from "the timer fires" to "the work has stopped": 1 %
// and 2 ms, the drift bound of the Redlock specification
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/).
func margin(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// interval is the time between heartbeats of a grant.
func (c *config) interval(granted time.Duration) time.Duration {
	if c.heartbeat > 0 && c.heartbeat <= granted/2 {
		return c.heartbeat
	}
	return granted / 3
}
