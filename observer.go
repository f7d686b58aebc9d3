package piton

import (
	"context"
	"log/slog"
	"time"
)

// EventKind says what happened.
type EventKind string

// The kinds of an [Event].
const (
	EventWaiting       EventKind = "waiting"        // another holder has the lock; once per Acquire; Err is the *HeldError
	EventAcquired      EventKind = "acquired"       // the lease was handed out; Took is the whole acquisition
	EventRenewed       EventKind = "renewed"        // Took is from sending to the answer
	EventRenewalFailed EventKind = "renewal failed" // one try failed, Err says how; the lease goes on
	EventRepaired      EventKind = "repaired"       // the coordinator had lost its counter: Token is the new one, Err the *StaleError
	EventLost          EventKind = "lost"           // the lease's context has been cancelled; Err is the *LostError
	EventReleased      EventKind = "released"
	EventReleaseFailed EventKind = "release failed" // the grant ends by itself within its TTL; Err says why
)

// Event tells an observer what happened to a lease; see [WithObserver].
type Event struct {
	Kind   EventKind
	Lock   string
	Token  Token  // 0 while waiting
	Holder string // the id of the acquisition
	Took   time.Duration
	Err    error
}

func (c *config) emit(e Event) {
	if c.observer != nil {
		c.observer(e)
	}
	if c.logger == nil {
		return
	}
	level := slog.LevelDebug
	switch e.Kind {
	case EventRenewalFailed, EventRepaired, EventLost, EventReleaseFailed:
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("lock", e.Lock), slog.String("holder", e.Holder)}
	if e.Token > 0 {
		attrs = append(attrs, slog.Int64("token", int64(e.Token)))
	}
	if e.Took > 0 {
		attrs = append(attrs, slog.Duration("took", e.Took))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("err", e.Err))
	}
	c.logger.LogAttrs(context.Background(), level, "piton: "+string(e.Kind), attrs...)
}
