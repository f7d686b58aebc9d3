package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	ttls := []time.Duration{h.TTL, 2 * h.TTL}
	errs := make([]error, len(ttls))
	var all sync.WaitGroup
	for i, ttl := range ttls {
		all.Go(func() { errs[i] = h.crashedHolder(ctx, c[0], c[1], ttl) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// crashedHolder lets a grant of first end by itself while next contends.
func (h Harness) crashedHolder(ctx context.Context, first, next piton.Coordinator, ttl time.Duration) error {
	r := request(h.name("clock"))
	r.TTL = ttl
	sent := time.Now()
	g, err := take(ctx, first, r)
	if err != nil {
		return err
	}
	answered := time.Now()
	if g.TTL < ttl-50*time.Millisecond {
		return fmt.Errorf("a TTL of %v was granted for %v", g.TTL, ttl)
	}
	if i, ok := next.(piton.Inspector); ok {
		held, ok, err := i.Get(ctx, r.Lock)
		if err != nil || ok && (held.Remaining <= 0 || held.Remaining > ttl) {
			return fmt.Errorf("get: %v remain of %v, %v", held.Remaining, ttl, err)
		}
	}
	contender := request(r.Lock)
	var taken piton.Grant
	var asked time.Time
	err = until(ctx, "the end of a crashed holder's grant", func() (bool, error) {
		asked = time.Now()
		var err error
		taken, err = next.Acquire(ctx, contender)
		var held *piton.HeldError
		switch {
		case !errors.As(err, &held):
			return true, err
		case held.Remaining > ttl:
			return true, fmt.Errorf("%v remain of %v", held.Remaining, ttl)
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	if granted := time.Since(sent); granted < g.TTL {
		return fmt.Errorf("granted to the next %v after the request for %v", granted, g.TTL)
	}
	if late := asked.Sub(answered); late > ttl+h.late(ttl)-h.Late+time.Second {
		return fmt.Errorf("still held %v after a grant of %v", late, ttl)
	}
	return next.Release(ctx, taken)
}

func oddNames(ctx context.Context, h Harness) error {
	c, done, err := h.clients(ctx, 2)
	if err != nil {
		return err
	}
	defer done()
	names := differentNames(h.Prefix)
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
		if err := listed(ctx, i, names); err != nil {
			return err
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
	if err := oneByte(ctx, c[0]); err != nil {
		return err
	}
	for _, bad := range []string{"", strings.Repeat("x", piton.MaxLockBytes+1), "a\x00b", "\xff", "\xed\xa0\x80"} {
		_, err := c[0].Acquire(ctx, request(bad))
		if err == nil || errors.Is(err, piton.ErrHeld) {
			return fmt.Errorf("the name %.20q: %v; want it refused", bad, err)
		}
	}
	return nil
}

// listed checks what List finds while names are held. The first is a prefix of all
// and of no other lock.
func listed(ctx context.Context, i piton.Inspector, names []string) error {
	names = slices.Sorted(slices.Values(names))
	for _, end := range []string{"", "a", "%", "_", "*", "?", "[", `\`, "'", "{", "\u00e9", "e\u0301"} {
		prefix := names[0] + end
		var want []string
		for _, lock := range names {
			if strings.HasPrefix(lock, prefix) {
				want = append(want, lock)
			}
		}
		for _, limit := range []int{0, 3} {
			list, err := i.List(ctx, prefix, limit)
			if err != nil {
				return fmt.Errorf("list of %q: %w", prefix, err)
			}
			var got []string
			for _, held := range list {
				got = append(got, held.Lock)
			}
			if limit > 0 {
				want = want[:min(limit, len(want))]
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("list of %q, at most %d: %q; want %q", prefix, limit, got, want)
			}
		}
	}
	return nil
}

// oneByte takes the shortest name that nobody is likely to use. Another run of
// the laws may have it for a moment.
func oneByte(ctx context.Context, c piton.Coordinator) error {
	r := request("\x7f")
	r.TTL = 5 * time.Second
	return until(ctx, "a lock with a name of one byte", func() (bool, error) {
		g, err := c.Acquire(ctx, r)
		switch {
		case errors.Is(err, piton.ErrHeld):
			return false, nil
		case err != nil:
			return true, fmt.Errorf("a name of one byte: %w", err)
		}
		return true, errors.Join(checkGrant(g, r), c.Release(ctx, g))
	})
}

func oneHolder(ctx context.Context, h Harness) error {
	const clients, each, turns = 4, 2, 8
	c, done, err := h.clients(ctx, clients)
	if err != nil {
		return err
	}
	defer done()
	lock := h.name("one holder")
	var inside, last atomic.Int64
	work := func(_ context.Context, lease *piton.Lease) error {
		defer inside.Add(-1)
		if n := inside.Add(1); n > 1 {
			return fmt.Errorf("%d hold at once", n)
		}
		if before := last.Swap(int64(lease.Token())); int64(lease.Token()) <= before {
			return fmt.Errorf("token %d after %d", lease.Token(), before)
		}
		pass(ctx, time.Millisecond) // long enough for others to come in
		return nil
	}
	errs := make([]error, clients*each)
	lockers := make([]*piton.Locker, clients)
	for i := range lockers {
		if lockers[i], err = piton.New(c[i], piton.WithOwner("the same for all")); err != nil {
			return err
		}
	}
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			for range turns {
				if errs[i] = lockers[i%clients].Do(ctx, lock, work); errs[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	for _, l := range lockers {
		errs = append(errs, l.Close(ctx))
	}
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
	lock := h.name("wake up")
	watchers := make([]watcher, 3)
	for i := range watchers {
		hints, stop, err := w.Watch(ctx, lock)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		defer stop()
		watchers[i] = watcher{hints, stop}
	}
	for range 2 {
		if err := told(ctx, "a release", c[0], lock, c[0].Release, watchers); err != nil {
			return err
		}
	}
	watchers[0].stop()
	watchers[0].stop()
	watchers = watchers[1:]
	if err := told(ctx, "a release after another watcher stopped", c[0], lock, c[0].Release, watchers); err != nil {
		return err
	}
	b, ok := c[0].(piton.Breaker)
	if !ok {
		return nil
	}
	return told(ctx, "a break", c[0], lock, func(ctx context.Context, g piton.Grant) error {
		_, err := b.Break(ctx, lock, g.Token)
		return err
	}, watchers)
}

type watcher struct {
	hints <-chan struct{}
	stop  func()
}

// told takes the lock, ends the grant and waits until every watcher has a hint.
func told(ctx context.Context, what string, c piton.Coordinator, lock string, end func(context.Context, piton.Grant) error, watchers []watcher) error {
	g, err := take(ctx, c, request(lock))
	if err != nil {
		return err
	}
	for _, w := range watchers {
		select {
		case <-w.hints: // of an earlier end
		default:
		}
	}
	if err := end(ctx, g); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for i, w := range watchers {
		select {
		case <-w.hints:
		case <-ctx.Done():
			return fmt.Errorf("watcher %d was not told of %s", i, what)
		}
	}
	return nil
}
