package piton

import "context"

// Guard is the storage side of a lock. A storage keeps one mark per lock: the
// newest fence it has recorded.
type Guard interface {
	// Seal raises the mark to f: if f.Token is greater than the mark's, or f is
	// the mark already, the mark is f and Seal returns nil. Otherwise a
	// *[StaleError] that carries the mark. Check and write are one atomic step,
	// committed when Seal returns. Any other error means unknown; sealing again
	// with the same fence is safe.
	Seal(ctx context.Context, f Fence) error
}
