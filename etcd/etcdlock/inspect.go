package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pitonlock/piton"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// lookups bounds how many requests of one call are out at once.
const lookups = 64

// Get implements [piton.Inspector]. What remains is in whole seconds, rounded up.
// A lock is held until etcd has deleted its key, up to about a second after the
// end of a lease that was not released.
func (c *Coordinator) Get(ctx context.Context, lock string) (piton.Held, bool, error) {
	if err := piton.ValidateLock(lock); err != nil {
		return piton.Held{}, false, err
	}
	held, err := c.present(ctx, lock)
	if err != nil || held == nil {
		return piton.Held{}, false, err
	}
	left, err := c.remaining(ctx, held.lease)
	if err != nil {
		return piton.Held{}, false, fmt.Errorf("etcdlock: look up %q: %w", lock, err)
	}
	return piton.Held{Lock: lock, Token: held.token(), Owner: held.Owner, Remaining: left}, left > 0, nil
}

// present is the present holder's record, nil when the lock is free.
func (c *Coordinator) present(ctx context.Context, lock string) (*record, error) {
	answer, err := c.client.Get(ctx, lockKey(lock))
	if err != nil {
		return nil, fmt.Errorf("etcdlock: look up %q: %w", lock, err)
	}
	if len(answer.Kvs) == 0 {
		return nil, nil
	}
	held, err := parse(answer.Kvs[0])
	if err != nil {
		return nil, fmt.Errorf("etcdlock: look up %q: %w", lock, err)
	}
	return held, nil
}

// List implements [piton.Inspector]. It asks etcd once for the locks and once
// for each lock how long it remains, up to 64 at a time.
func (c *Coordinator) List(ctx context.Context, prefix string, limit int) ([]piton.Held, error) {
	answer, err := c.client.Get(ctx, lockKey(prefix), clientv3.WithPrefix(), clientv3.WithLimit(int64(max(limit, 0))))
	if err != nil {
		return nil, fmt.Errorf("etcdlock: list %q: %w", prefix, err)
	}
	all, errs := make([]piton.Held, len(answer.Kvs)), make([]error, len(answer.Kvs))
	each(len(all), func(i int) {
		var held *record
		if held, errs[i] = parse(answer.Kvs[i]); errs[i] != nil {
			return
		}
		all[i] = piton.Held{Lock: held.lock, Token: held.token(), Owner: held.Owner}
		all[i].Remaining, errs[i] = c.remaining(ctx, held.lease)
	})
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("etcdlock: list %q: %w", prefix, err)
	}
	held := all[:0]
	for _, h := range all {
		if h.Remaining > 0 { // else it has ended meanwhile
			held = append(held, h)
		}
	}
	return held, nil
}

// each calls f with 0 to n-1, many at a time, and returns when all have returned.
func each(n int, f func(i int)) {
	var all sync.WaitGroup
	turns := make(chan struct{}, lookups)
	for i := range n {
		turns <- struct{}{}
		all.Go(func() {
			f(i)
			<-turns
		})
	}
	all.Wait()
}

// Break implements [piton.Breaker]. The holder finds out at its next renewal.
func (c *Coordinator) Break(ctx context.Context, lock string, token piton.Token) (bool, error) {
	if err := piton.ValidateLock(lock); err != nil {
		return false, err
	}
	held, err := c.present(ctx, lock)
	if err != nil || held == nil {
		return false, err
	}
	if held.token() != token {
		return false, c.refuse(ctx, held, 0, false)
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(lockKey(lock)), "=", held.revision)
	answer, err := c.client.Txn(ctx).If(unchanged).Then(clientv3.OpDelete(lockKey(lock))).Commit()
	switch {
	case err != nil:
		return false, fmt.Errorf("etcdlock: break %q: %w", lock, err)
	case !answer.Succeeded:
		return c.Break(ctx, lock, token) // ended or lifted in between; tokens do not come again
	}
	_ = c.revoke(ctx, held.lease) // the lock is free; an empty lease that nobody renews ends by itself
	return true, nil
}
