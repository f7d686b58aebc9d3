package locktest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pitonlock/piton"
)

func lostBeforeExpired(ctx context.Context, h Harness) error {
	hang := make(chan struct{})
	defer close(hang)
	fail := func(context.Context, piton.Grant) (piton.Grant, error) { return piton.Grant{}, errLost }
	deaf := func(ctx context.Context, g piton.Grant) (piton.Grant, error) { <-hang; return fail(ctx, g) }
	var failing, hanging error
	var all sync.WaitGroup
	all.Go(func() { failing = signalledInTime(ctx, h, "renewals fail", fail) })
	all.Go(func() { hanging = signalledInTime(ctx, h, "renewals hang", deaf) })
	all.Wait()
	return errors.Join(failing, hanging)
}

// errTooBusy is a round in which no timer of this process went off in time.
var errTooBusy = errors.New("a contender was granted the lock before the holder's context ended, as no timer went off in time")

func signalledInTime(ctx context.Context, h Harness, when string, renew func(context.Context, piton.Grant) (piton.Grant, error)) error {
	var err error
	for range 3 {
		if err = lossRound(ctx, h, renew); err == nil {
			return nil
		}
		if !errors.Is(err, errTooBusy) {
			break
		}
	}
	return fmt.Errorf("when %s: %w", when, err)
}

// lossRound lets a lease end whose renewals do not succeed. A contender asks all
// the time; when it is granted the lock, the holder's context has to have ended.
func lossRound(ctx context.Context, h Harness, renew func(context.Context, piton.Grant) (piton.Grant, error)) error {
	c, done, err := h.clients(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	ttl := max(2*h.TTL, 600*time.Millisecond)
	holder, err := piton.New(tap{Coordinator: c[0], renew: renew}, piton.WithTTL(ttl))
	if err != nil {
		return err
	}
	lease, err := holder.Acquire(ctx, h.name("lost"))
	if err != nil {
		return err
	}
	trusted := lease.Until()
	// Goes off between the trusted end and the end at the coordinator, 1 % of the
	// TTL and 2 ms apart, unless the machine is too busy to tell anything.
	var timely atomic.Bool
	control := time.AfterFunc(time.Until(trusted)+ttl/200+time.Millisecond, func() { timely.Store(true) })
	defer control.Stop()
	contender := request(lease.Fence().Lock)
	var taken piton.Grant
	err = until(ctx, "a grant to a contender", func() (bool, error) {
		var err error
		taken, err = c[1].Acquire(ctx, contender)
		if errors.Is(err, piton.ErrHeld) {
			return false, nil
		}
		return true, err
	})
	early, inTime, ended := time.Until(trusted), timely.Load(), lease.Context().Err() != nil
	switch {
	case err != nil:
		return err
	case early > 0:
		return fmt.Errorf("a contender was granted the lock %v before the end of the holder's trusted time", early)
	case !ended && inTime:
		return errors.New("a contender was granted the lock before the holder's context ended")
	case !ended:
		return errTooBusy
	}
	if err := lease.Err(); !errors.Is(err, piton.ErrLost) {
		return fmt.Errorf("the lease ended with: %w", err)
	}
	err = wantLost("release of the lost lease", lease.Release(ctx), piton.ReasonTaken)
	return errors.Join(err, holder.Close(ctx), c[1].Release(ctx, taken))
}

func lostIsFinal(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 1)
	if err != nil {
		return err
	}
	defer done()
	var broken atomic.Bool
	broken.Store(true)
	t := tap{Coordinator: c[0]}
	t.renew = func(ctx context.Context, g piton.Grant) (piton.Grant, error) {
		if broken.Load() {
			return piton.Grant{}, errLost
		}
		return c[0].Renew(ctx, g)
	}
	l, err := piton.New(t, piton.WithTTL(h.TTL))
	if err != nil {
		return err
	}
	lock := h.name("final")
	lease, err := l.Acquire(ctx, lock)
	if err != nil {
		return err
	}
	select {
	case <-lease.Done():
	case <-ctx.Done():
		return errors.New("the loss was never signalled")
	}
	lost := lease.Err()
	broken.Store(false)
	pass(ctx, h.TTL)
	next, err := l.Acquire(ctx, lock)
	if err != nil {
		return err
	}
	if lease.Err() != lost || next.Token() <= lease.Token() {
		return fmt.Errorf("the lost lease is %w, the next token %d after %d", lease.Err(), next.Token(), lease.Token())
	}
	if err := wantLost("release of the lost lease", lease.Release(ctx), piton.ReasonExpired, piton.ReasonRenewal, piton.ReasonTaken); err != nil {
		return err
	}
	if err := next.Err(); err != nil {
		return fmt.Errorf("after that, the next lease: %w", err)
	}
	return errors.Join(next.Release(ctx), l.Close(ctx))
}

func releaseAfterWork(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	for what, end := range map[string]func(*piton.Locker, context.CancelFunc){
		"the caller's context ended": func(_ *piton.Locker, cancel context.CancelFunc) { cancel() },
		"the Locker was closed": func(l *piton.Locker, _ context.CancelFunc) {
			go func() { _ = l.Close(ctx) }() // Do is what is looked at
		},
	} {
		l, err := piton.New(c[0])
		if err != nil {
			return err
		}
		lock := h.name("work")
		work, cancel := context.WithCancel(ctx)
		defer cancel()
		err = l.Do(work, lock, func(ctx context.Context, lease *piton.Lease) error {
			end(l, cancel)
			<-ctx.Done()
			for range 10 { // rolling back
				if err := wantHolder(context.WithoutCancel(ctx), c[1], lock, piton.Grant{Fence: lease.Fence()}); err != nil {
					return fmt.Errorf("when %s, in the work: %w", what, err)
				}
				pass(context.WithoutCancel(ctx), 5*time.Millisecond)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := wantHolder(ctx, c[1], lock, piton.Grant{}); err != nil {
			return fmt.Errorf("when %s, after the work: %w", what, err)
		}
	}
	return nil
}

func nothingLeft(ctx context.Context, h Harness) error {
	const names = 200
	prefix := h.name("left")
	before := runtime.NumGoroutine()
	err := func() error {
		l, done, err := h.lockers(ctx, 2)
		if err != nil {
			return err
		}
		defer done()
		for n := range names {
			lock := fmt.Sprintf("%s/%d", prefix, n)
			lease, err := l[n%2].Acquire(ctx, lock)
			if err != nil {
				return err
			}
			waiting := make(chan error, 1)
			if n%10 == 0 { // with a waiter, which subscribes
				go func() {
					waiting <- l[1-n%2].Do(ctx, lock, func(context.Context, *piton.Lease) error { return nil })
				}()
				pass(ctx, 5*time.Millisecond)
			} else {
				waiting <- nil
			}
			if err := errors.Join(lease.Release(ctx), <-waiting); err != nil {
				return err
			}
		}
		return nil
	}()
	if err != nil {
		return err
	}
	err = until(ctx, fmt.Sprintf("the end of all goroutines: %d before", before), func() (bool, error) {
		return runtime.NumGoroutine() <= before, nil
	})
	if err != nil {
		return err
	}
	left, err := h.Left(ctx, prefix)
	switch {
	case err != nil:
		return fmt.Errorf("counting what is left: %w", err)
	case left > 0:
		return fmt.Errorf("%d names used once left %d for ever", names, left)
	}
	return nil
}
