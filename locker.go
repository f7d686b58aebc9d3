package piton

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Locker acquires locks from one coordinator and keeps their leases. It is safe
// for concurrent use; a process needs one for each coordinator, however many
// locks it takes. The coordinator and the guards belong to the caller, who
// closes them after the Locker.
type Locker struct {
	config
	coord Coordinator
	beats *heartbeats
	queue queue

	closing context.Context // ends when Close begins
	close   context.CancelCauseFunc

	mu     sync.Mutex
	busy   int           // acquisitions, works, leases and clean-ups that Close waits for
	closed bool          // no new ones
	idle   chan struct{} // closed when closed and nothing is busy
}

// New returns a Locker on c. It sends nothing. An error names the option that
// cannot be and what it should be.
func New(c Coordinator, opts ...Option) (*Locker, error) {
	if c == nil {
		return nil, errors.New("piton: New was given a nil coordinator")
	}
	config, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	l := &Locker{config: config, coord: c, idle: make(chan struct{})}
	l.closing, l.close = context.WithCancelCause(context.Background())
	l.beats = &heartbeats{config: &l.config, clock: config.clock, coord: c}
	l.beats.batch, _ = c.(BatchRenewer)
	return l, nil
}

// Acquire waits for lock and returns its lease when every guard is sealed. Those
// who wait in one process are served first come, first served.
//
// ctx bounds the waiting only; cancelling it afterwards does not end the lease.
// When it ends first, Acquire returns within 50 ms with an error that wraps
// context.Cause(ctx), and what may have been granted meanwhile is given back in
// the background; if the coordinator had not answered by then, errors.Is finds
// [ErrUnavailable], too. Other errors: [ErrUnavailable] with the driver's error
// when the coordinator does not answer, after three tries or, if it had answered
// before, for a whole TTL; [ErrStale] or the guard's own error when a storage cannot
// be sealed; [ErrClosed]; and a lock name that [ValidateLock] refuses.
func (l *Locker) Acquire(ctx context.Context, lock string) (*Lease, error) {
	return l.acquire(ctx, lock, true)
}

// TryAcquire is [Locker.Acquire] without waiting: when another holder has the
// lock it returns a *[HeldError] at once.
func (l *Locker) TryAcquire(ctx context.Context, lock string) (*Lease, error) {
	return l.acquire(ctx, lock, false)
}

// Do acquires lock, runs work and gives the lock back when work has returned.
//
// The context of work ends when the lease is lost, when ctx ends or is
// cancelled, or when the Locker is closed; context.Cause says which. In the last
// two cases renewal stops at once, and what is left of the lease, two thirds of the TTL
// or more, is the time for rolling back. The lock is released by a request of
// its own, even if ctx has ended. A panic of work releases, too, and goes on.
//
// The error joins that of work, a *[LostError] if the lease was lost before work
// returned (then others may have worked at the same time, and only what a guard
// admitted counts), and that of a release that failed.
func (l *Locker) Do(ctx context.Context, lock string, work func(ctx context.Context, lease *Lease) error) (err error) {
	if work == nil {
		return errors.New("piton: Do was given no work function")
	}
	leave, err := l.enter()
	if err != nil {
		return err
	}
	defer leave()
	lease, err := l.Acquire(ctx, lock)
	if err != nil {
		return err
	}
	workCtx, end := context.WithCancelCause(lease.Context())
	defer end(nil)
	stop := context.AfterFunc(ctx, func() {
		l.beats.stop(lease)
		end(context.Cause(ctx))
	})
	defer stop()
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		workCtx, cancel = context.WithDeadline(workCtx, deadline)
		defer cancel()
	}
	defer func() {
		lost := lease.Err()
		released := lease.Release(context.WithoutCancel(ctx))
		if asLost(lost) == nil || errors.Is(err, lost) {
			lost = nil
		}
		if errors.Is(released, ErrLost) && (lost != nil || errors.Is(err, ErrLost)) {
			released = nil
		}
		err = join(err, lost, released)
	}()
	return work(workCtx, lease)
}

// join is errors.Join that leaves a single error as it is.
func join(errs ...error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// Close stops accepting, makes Acquire calls that wait return [ErrClosed], stops
// all renewal and ends the context of every lease with [ErrClosed]. Then it
// waits until the works have returned and the leases are released, by Do or by
// whoever holds them; a lease that nobody releases ends with its TTL. Nothing is
// given back while its work may still run.
//
// When ctx ends first, the error wraps its cause and names the locks that are
// still in use; a further call waits again.
func (l *Locker) Close(ctx context.Context) error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	if first && l.busy == 0 {
		close(l.idle)
	}
	l.mu.Unlock()
	if first {
		l.close(ErrClosed)
		l.beats.stopAll(ErrClosed)
	}
	select {
	case <-l.idle:
		return nil
	default:
	}
	select {
	case <-l.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("piton: close: still in use: %s: %w", l.inUse(), context.Cause(ctx))
	}
}

func (l *Locker) inUse() string {
	names := l.beats.names()
	if len(names) == 0 {
		return "a work or a request that has not returned"
	}
	const most = 5
	more := ""
	if len(names) > most {
		more = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(names, ", ") + more
}

// enter counts something that Close waits for. leave may be called repeatedly.
func (l *Locker) enter() (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	return l.count(), nil
}

// count is enter for what an entered caller starts. l.mu is held.
func (l *Locker) count() (leave func()) {
	l.busy++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.busy--
		if l.closed && l.busy == 0 {
			close(l.idle)
		}
	})
}

// background runs f beside its caller; Close waits for it.
func (l *Locker) background(f func()) {
	l.mu.Lock()
	leave := func() {}
	if !l.closed || l.busy > 0 {
		leave = l.count()
	}
	l.mu.Unlock()
	go func() {
		defer leave()
		f()
	}()
}

// giveBack sends one release, up to three times while the answer is unknown.
// doubtful says that a try before the last had no answer, and may have been carried out.
func (l *Locker) giveBack(ctx context.Context, g Grant) (doubtful bool, err error) {
	const tries = 3
	pause := 20 * time.Millisecond
	for n := 1; ; n++ {
		err := l.sendRelease(ctx, g)
		if err == nil || errors.Is(err, ErrLost) {
			return doubtful, err
		}
		doubtful = true
		if n == tries || ctx.Err() != nil {
			return doubtful, err
		}
		select {
		case <-time.After(pause):
			pause *= 4
		case <-ctx.Done():
			return doubtful, err
		}
	}
}

// sendRelease makes one call that is given two thirds of the time that is left,
// whether or not the driver heeds its context: a slow answer is better than
// none, and there is time for another try when it hangs.
func (l *Locker) sendRelease(ctx context.Context, g Grant) error {
	deadline, _ := ctx.Deadline() // every caller has set one
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)*2/3)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- l.coord.Release(ctx, g) }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
