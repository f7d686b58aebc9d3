package locktest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/pitonlock/piton"
)

func lostBeforeExpired(ctx context.Context, h Harness) error {
	ttl := max(2*h.TTL, 600*time.Millisecond)
	hang := make(chan struct{})
	defer close(hang)
	for what, renew := range map[string]func(context.Context, piton.Grant) (piton.Grant, error){
		"hang": func(context.Context, piton.Grant) (piton.Grant, error) { <-hang; return piton.Grant{}, errLost },
		"fail": func(context.Context, piton.Grant) (piton.Grant, error) { return piton.Grant{}, errLost },
	} {
		err := func() error {
			c, done, err := h.clients(ctx, 2)
			if err != nil {
				return err
			}
			defer done()
			holder, err := piton.New(tap{Coordinator: c[0], renew: renew}, piton.WithTTL(ttl))
			if err != nil {
				return err
			}
			lock := name("lost")
			lease, err := holder.Acquire(ctx, lock)
			if err != nil {
				return err
			}
			contender := request(lock)
			var granted time.Time
			asking := make(chan error, 1)
			go func() {
				asking <- until(ctx, "a grant to a contender", func() (bool, error) {
					_, err := c[1].Acquire(ctx, contender)
					granted = time.Now()
					if errors.Is(err, piton.ErrHeld) {
						return false, nil
					}
					return true, err
				})
			}()
			select {
			case <-lease.Done():
			case <-ctx.Done():
				return errors.New("the loss was never signalled")
			}
			ended := time.Now()
			if err := <-asking; err != nil {
				return err
			}
			if !granted.After(ended) {
				return fmt.Errorf("a contender was granted the lock %v before the holder's context ended", ended.Sub(granted))
			}
			if err := lease.Err(); !errors.Is(err, piton.ErrLost) {
				return fmt.Errorf("the lease ended with: %w", err)
			}
			return nil
		}()
		if err != nil {
			return fmt.Errorf("when renewals %s: %w", what, err)
		}
	}
	return nil
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
	lock := name("final")
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
		lock := name("work")
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
	prefix := name("left")
	before := runtime.NumGoroutine()
	err := func() error {
		l, done, err := h.lockers(ctx, 2)
		if err != nil {
			return err
		}
		defer done()
		for n := range 100 {
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
	if err != nil || left > 0 {
		return fmt.Errorf("100 names used once left %d for ever: %w", left, err)
	}
	return nil
}
