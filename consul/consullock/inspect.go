package consullock

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"
	"github.com/pitonlock/piton"
)

// Get implements [piton.Inspector]. Consul does not tell how much of a session's
// time is left; what remains is its whole TTL, until the key is gone.
func (c *Coordinator) Get(ctx context.Context, lock string) (piton.Held, bool, error) {
	if err := piton.ValidateLock(lock); err != nil {
		return piton.Held{}, false, err
	}
	held, err := c.present(ctx, lock)
	switch {
	case err != nil:
		return piton.Held{}, false, fmt.Errorf("consullock: look up %q: %w", lock, err)
	case held == nil:
		return piton.Held{}, false, nil
	}
	return describe(held), true, nil
}

func describe(held *record) piton.Held {
	return piton.Held{Lock: held.lock, Token: held.token(), Owner: held.Owner, Remaining: held.ttl()}
}

// present is the present holder's record, nil when the lock is free.
func (c *Coordinator) present(ctx context.Context, lock string) (*record, error) {
	pair, _, err := c.client.KV().Get(holderKey(lock), consistent(ctx))
	if err != nil {
		return nil, err
	}
	return parse(pair)
}

// List implements [piton.Inspector], with the TTLs of [Coordinator.Get]. Consul
// answers with all locks whose names begin with prefix, whatever the limit.
func (c *Coordinator) List(ctx context.Context, prefix string, limit int) ([]piton.Held, error) {
	pairs, _, err := c.client.KV().List(lockFolder+escape(prefix), consistent(ctx))
	if err != nil {
		return nil, fmt.Errorf("consullock: list %q: %w", prefix, err)
	}
	var all []piton.Held
	for _, pair := range pairs {
		if !strings.HasSuffix(pair.Key, holderEntry) {
			continue
		}
		held, err := parse(pair)
		if err != nil {
			return nil, fmt.Errorf("consullock: list %q: %w", prefix, err)
		}
		if held != nil {
			all = append(all, describe(held))
		}
	}
	slices.SortFunc(all, func(a, b piton.Held) int { return strings.Compare(a.Lock, b.Lock) })
	if limit > 0 && len(all) > limit {
		all = all[:limit]
	}
	return all, nil
}

// Break implements [piton.Breaker]. The holder finds out at its next renewal.
func (c *Coordinator) Break(ctx context.Context, lock string, token piton.Token) (bool, error) {
	if err := piton.ValidateLock(lock); err != nil {
		return false, err
	}
	held, err := c.present(ctx, lock)
	for err == nil {
		if held == nil {
			return false, nil
		}
		if held.token() != token {
			return false, refusal(held)
		}
		var ended bool
		if ended, err = c.remove(ctx, held); ended {
			_ = c.destroy(ctx, held.session) // the lock is free; a session that nobody renews ends by itself
			return true, nil
		}
		if err == nil {
			held, err = c.present(ctx, lock) // ended or lifted in between; tokens do not come again
		}
	}
	return false, fmt.Errorf("consullock: break %q: %w", lock, err)
}

// remove deletes a lock's key if it is still the same.
func (c *Coordinator) remove(ctx context.Context, held *record) (bool, error) {
	key := holderKey(held.lock)
	ok, answer, _, err := c.client.Txn().Txn(api.TxnOps{
		unchanged(key, held.index),
		{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: key}},
	}, consistent(ctx))
	if err != nil || ok {
		return ok, err
	}
	now, err := c.present(ctx, held.lock)
	if err == nil && now != nil && now.index == held.index {
		err = refused(answer) // an ACL says no
	}
	return false, err
}
