package piton

import (
	"context"
	"time"
)

// Request asks a coordinator for a grant.
type Request struct {
	Lock   string        // valid by [ValidateLock]
	Holder string        // random id of this acquisition; the same in every retry of it
	Owner  string        // label for people, may be empty; never compared
	TTL    time.Duration // how long the grant lasts without a renewal
	Floor  Token         // the granted token must be greater; 0 when there is no demand
}

// Grant is what a coordinator returns.
type Grant struct {
	Fence
	TTL time.Duration // what the coordinator really granted; never longer than it keeps
	Ref string        // the driver's own handle, opaque to everyone else
}

// Coordinator grants leases. Drivers do no waiting, retrying, jitter, logging or
// clock arithmetic; [Locker] and [Lease] do that once for all of them.
//
// Each method has three outcomes: done (nil), refused ([ErrHeld], [ErrLost]) or,
// with any other error, unknown: the request may or may not have been carried
// out. A Coordinator is safe for concurrent use.
type Coordinator interface {
	// Acquire makes one attempt and never waits for the lock.
	//
	// It is idempotent per holder: when r.Holder already holds the lock, Acquire
	// returns that grant again with its time started anew, and lifts its token
	// above r.Floor if it is not above it yet. This answers lost replies and
	// repairs a coordinator that lost its counter. A token is at most [MaxToken];
	// a Floor that leaves no room is an error.
	// When another holder has it: a *[HeldError].
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Renew starts the time of exactly this grant (lock, token, holder) anew. If
	// the grant has ended, is missing or another's: a *[LostError]; nothing changes.
	Renew(ctx context.Context, g Grant) (Grant, error)

	// Release ends the grant and is idempotent: releasing a grant that has ended
	// and whose lock is free, or that was already released, is nil. If another holder has the
	// lock now: a *[LostError] with ReasonTaken and that holder's token in By; nothing changes.
	// If the grant ended by itself and the lock is free, a *[LostError] with ReasonExpired
	// may be returned only if the driver can tell it from a repeated release.
	//
	// A grant with Token 0 stands for whatever g.Holder holds: the clean-up after an
	// attempt whose reply was lost.
	Release(ctx context.Context, g Grant) error
}

// Waiter is an optional interface of a [Coordinator]: push wake-up. Without it
// waiting polls with jitter and a growing delay.
type Waiter interface {
	// Watch subscribes to the ends of lock. A value arrives on hints whenever lock
	// may have become free (capacity 1, dropped when full). A hint is not a
	// promise, and its absence proves nothing: the caller looks again by itself at
	// the latest when the lease that it waits for can be over. When Watch returns,
	// every later end of the lock causes a hint as long as the connection lives.
	// stop ends the subscription and frees what it used; it may be called twice.
	Watch(ctx context.Context, lock string) (hints <-chan struct{}, stop func(), err error)
}

// Queuer is an optional interface of a [Coordinator]: those who wait are served
// first come, first served, and the end of a lease is the grant of the next.
// Without it whoever asks first after the end gets the lock. A Queuer is not used as a [Waiter].
type Queuer interface {
	// Queue is Acquire for a holder that waits. When another holder has the lock, or
	// others wait since before, r.Holder keeps its place in the lock's queue, or gets
	// the last one if it has none, and the answer is a *[HeldError]. When its turn has
	// come, Queue returns the grant.
	//
	// Only a holder with a subscription of [Queuer.Turns] may queue: its turn passes
	// when it cannot be told, and when it was told and does not ask in the
	// coordinator's claim time. A place is given up by Release with Token 0.
	Queue(ctx context.Context, r Request) (Grant, error)

	// Turns subscribes holder to what lock's queue tells it: how long from now it
	// should call Queue again, 0 when its turn has come. The channel has capacity 1; of
	// several values the least is kept. As with [Waiter], a value is a hint, and the
	// caller looks again by itself at the latest when the lease that it waits for can
	// be over. stop ends the subscription; it may be called twice.
	Turns(ctx context.Context, lock, holder string) (looks <-chan time.Duration, stop func(), err error)
}

// BatchRenewer is an optional interface of a [Coordinator]: many renewals in one
// round trip. Without it each lease is renewed by a call of its own.
type BatchRenewer interface {
	// RenewBatch renews each grant as Renew does. results[i] belongs to grants[i].
	RenewBatch(ctx context.Context, grants []Grant) (results []RenewResult)
}

// RenewResult is the outcome of one renewal in a batch.
type RenewResult struct {
	Grant Grant
	Err   error
}

// Held describes a lock that is held, as the coordinator sees it.
type Held struct {
	Lock      string
	Token     Token
	Owner     string        // label, may be empty
	Remaining time.Duration // until it ends unless renewed, by the coordinator's clock
}

// Inspector is an optional interface of a [Coordinator]: what is held now, for
// operators. The holder id is left out on purpose, since it is what proves ownership.
type Inspector interface {
	// Get returns the present holder of lock; ok is false when the lock is free.
	Get(ctx context.Context, lock string) (held Held, ok bool, err error)
	// List returns held locks whose names start with prefix, sorted by name, at most limit (0: no limit).
	List(ctx context.Context, prefix string, limit int) ([]Held, error)
}

// Breaker is an optional interface of a [Coordinator]: an operator's forced release.
type Breaker interface {
	// Break ends the grant of lock with exactly this token. A lock that is free: (false, nil).
	// A present token that differs: a *[HeldError] that describes the present holder; nothing changes.
	Break(ctx context.Context, lock string, token Token) (broken bool, err error)
}
