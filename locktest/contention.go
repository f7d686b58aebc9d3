package locktest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pitonlock/piton"
)

func noSharedClock(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	for _, ttl := range []time.Duration{h.TTL, 2 * h.TTL} {
		r := request(name("clock"))
		r.TTL = ttl
		sent := time.Now()
		g, err := take(ctx, c[0], r)
		if err != nil {
			return err
		}
		answered := time.Now()
		if g.TTL < ttl-50*time.Millisecond {
			return fmt.Errorf("a TTL of %v was granted for %v", g.TTL, ttl)
		}
		contender := request(r.Lock)
		var asked time.Time
		err = until(ctx, "the end of a crashed holder's grant", func() (bool, error) {
			asked = time.Now()
			_, err := c[1].Acquire(ctx, contender)
			if errors.Is(err, piton.ErrHeld) {
				var held *piton.HeldError
				if errors.As(err, &held) && held.Remaining > ttl {
					return true, fmt.Errorf("%v remain of %v", held.Remaining, ttl)
				}
				return false, nil
			}
			return true, err
		})
		if err != nil {
			return err
		}
		if granted := time.Since(sent); granted < g.TTL {
			return fmt.Errorf("granted to the next %v after the request for %v", granted, g.TTL)
		}
		if late := asked.Sub(answered); late > ttl+time.Second {
			return fmt.Errorf("still held %v after a grant of %v", late, ttl)
		}
	}
	return nil
}

func oddNames(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	names := differentNames()
	grants := make([]piton.Grant, len(names))
	for i, lock := range names {
		if grants[i], err = take(ctx, c[0], request(lock)); err != nil {
			return fmt.Errorf("with other names held: %w", err)
		}
	}
	for i, lock := range names {
		if err := wantHolder(ctx, c[1], lock, grants[i]); err != nil {
			return err
		}
		if _, err := c[1].Renew(ctx, grants[i]); err != nil {
			return fmt.Errorf("renewal of %q: %w", lock, err)
		}
	}
	if i, ok := c[1].(piton.Inspector); ok {
		list, err := i.List(ctx, names[0], 0)
		if err != nil || len(list) != len(names) {
			return fmt.Errorf("%d of %d names are listed: %w", len(list), len(names), err)
		}
		for n, held := range list {
			if n > 0 && list[n-1].Lock >= held.Lock {
				return fmt.Errorf("%q is listed after %q", held.Lock, list[n-1].Lock)
			}
		}
	}
	for i := range names {
		if err := c[0].Release(ctx, grants[i]); err != nil {
			return err
		}
		if i+1 < len(names) {
			if err := wantHolder(ctx, c[1], names[i+1], grants[i+1]); err != nil {
				return fmt.Errorf("after the release of %q: %w", names[i], err)
			}
		}
	}
	for _, bad := range []string{"", strings.Repeat("x", piton.MaxLockBytes+1), "a\x00b", "\xff", "\xed\xa0\x80"} {
		_, err := c[0].Acquire(ctx, request(bad))
		if err == nil || errors.Is(err, piton.ErrHeld) {
			return fmt.Errorf("the name %.20q: %v; want it refused", bad, err)
		}
	}
	return nil
}

func oneHolder(ctx context.Context, h Harness) error {
	const contenders, turns = 4, 15
	c, done, err := h.clients(ctx, contenders)
	if err != nil {
		return err
	}
	defer done()
	lock := name("one holder")
	var inside, last atomic.Int64
	errs := make([]error, contenders)
	var all sync.WaitGroup
	for i := range c {
		all.Go(func() {
			errs[i] = func() error {
				l, err := piton.New(c[i], piton.WithOwner("the same for all"))
				if err != nil {
					return err
				}
				for range turns {
					err := l.Do(ctx, lock, func(_ context.Context, lease *piton.Lease) error {
						defer inside.Add(-1)
						if n := inside.Add(1); n > 1 {
							return fmt.Errorf("%d hold at once", n)
						}
						if before := last.Swap(int64(lease.Token())); int64(lease.Token()) <= before {
							return fmt.Errorf("token %d after %d", lease.Token(), before)
						}
						pass(ctx, time.Millisecond) // long enough for others to come in
						return nil
					})
					if err != nil {
						return err
					}
				}
				return l.Close(ctx)
			}()
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func wakeUp(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	w, ok := c[1].(piton.Waiter)
	if !ok {
		return nil // waiting is by polling then, which the other laws cover
	}
	lock := name("wake up")
	var hints []<-chan struct{}
	for range 3 {
		hint, stop, err := w.Watch(ctx, lock)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		defer stop()
		defer stop()
		hints = append(hints, hint)
	}
	for range 3 {
		g, err := take(ctx, c[0], request(lock))
		if err != nil {
			return err
		}
		if err := c[0].Release(ctx, g); err != nil {
			return err
		}
		for i, hint := range hints {
			select {
			case <-hint:
			case <-ctx.Done():
				return fmt.Errorf("watcher %d was not told of a release", i)
			}
		}
	}
	return nil
}
