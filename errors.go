package piton

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// The outcomes that callers tell apart with errors.Is. The driver's own error,
// where there is one, is in the same chain.
var (
	ErrHeld        = errors.New("piton: lock is held by another holder")
	ErrLost        = errors.New("piton: lease is lost")
	ErrStale       = errors.New("piton: fence is stale")
	ErrNotSealed   = errors.New("piton: storage has not recorded this fence")
	ErrUnknown     = errors.New("piton: outcome is unknown")
	ErrUnavailable = errors.New("piton: coordinator is unavailable")
	ErrReleased    = errors.New("piton: lease was released")
	ErrClosed      = errors.New("piton: locker is closed")
)

// HeldError says who has the lock. errors.Is finds [ErrHeld].
type HeldError struct {
	Lock      string
	Owner     string        // label of the holder, may be empty
	Token     Token         // 0 where the coordinator does not tell
	Remaining time.Duration // until that lease ends unless renewed; 0 where unknown
}

func (e *HeldError) Error() string {
	s := "piton: lock " + strconv.Quote(e.Lock) + " is held"
	if e.Owner != "" {
		s += " by " + strconv.Quote(e.Owner)
	}
	if e.Token > 0 {
		s += fmt.Sprintf(" (token %d)", e.Token)
	}
	if e.Remaining > 0 {
		s += fmt.Sprintf(", for at least %v more unless released", e.Remaining.Round(time.Millisecond))
	}
	return s
}

// Unwrap makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Unwrap() error { return ErrHeld }

// Reason says why a lease was lost.
type Reason string

// The reasons of a [LostError].
const (
	ReasonExpired  Reason = "expired"                                                    // the trusted time ran out
	ReasonMissing  Reason = "no longer at the coordinator, though its time was not over" // broken by an operator, forgotten by the coordinator, or its clock was set forward
	ReasonTaken    Reason = "taken by another"                                           // the coordinator has granted the lock to another holder
	ReasonRenewal  Reason = "renewal failed"                                             // two heartbeats in a row failed
	ReasonReplaced Reason = "token replaced"                                             // the token was lifted by a repair before the lease was handed out
)

// LostError says which lease was lost and why. errors.Is finds [ErrLost] and,
// where there is one, the driver's own error.
type LostError struct {
	Lock   string
	Token  Token
	Holder string
	Reason Reason
	By     Token // with ReasonTaken: the token of the new holder, 0 where unknown
	Err    error // the last error of the driver, may be nil
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("piton: lease on %q with token %d of holder %s is lost: %s", e.Lock, e.Token, e.Holder, e.Reason)
	if e.By > 0 {
		s += fmt.Sprintf(" (token %d)", e.By)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap makes errors.Is find ErrLost and the driver's error.
func (e *LostError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.Err}
}

// StaleError is a storage's refusal: it has recorded a newer fence, or the same
// token of another holder. errors.Is finds [ErrStale].
type StaleError struct {
	Fence Fence // what was presented
	Mark  Fence // what the storage has recorded
}

func (e *StaleError) Error() string {
	if e.Mark.Token == e.Fence.Token {
		return fmt.Sprintf("piton: fence of %q is stale: token %d was recorded for another holder", e.Fence.Lock, e.Fence.Token)
	}
	return fmt.Sprintf("piton: fence of %q is stale: token %d, but the storage has recorded %d", e.Fence.Lock, e.Fence.Token, e.Mark.Token)
}

// Unwrap makes errors.Is(err, ErrStale) true.
func (e *StaleError) Unwrap() error { return ErrStale }
