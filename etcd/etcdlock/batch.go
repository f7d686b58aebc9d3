package etcdlock

import (
	"context"
	"fmt"

	"github.com/pitonlock/piton"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// mostInTxn is below etcd's own bound of 128 requests (--max-txn-ops).
const mostInTxn = 100

// RenewBatch implements [piton.BatchRenewer]: one transaction looks after up to
// 100 grants, and those that are there are renewed up to 64 at a time. Each has a
// stream of its own, since one that has just ended keeps etcd's answer waiting.
func (c *Coordinator) RenewBatch(ctx context.Context, grants []piton.Grant) []piton.RenewResult {
	results := make([]piton.RenewResult, len(grants))
	for start := 0; start < len(grants); start += mostInTxn {
		end := min(start+mostInTxn, len(grants))
		c.renewSome(ctx, grants[start:end], results[start:end])
	}
	return results
}

func (c *Coordinator) renewSome(ctx context.Context, grants []piton.Grant, results []piton.RenewResult) {
	gets := make([]clientv3.Op, len(grants))
	for i, g := range grants {
		gets[i] = clientv3.OpGet(lockKey(g.Lock))
	}
	answer, err := c.client.Txn(ctx).Then(gets...).Commit()
	each(len(grants), func(i int) {
		g, r := grants[i], &results[i]
		if err != nil {
			r.Err = fmt.Errorf("etcdlock: renew %q: %w", g.Lock, err)
			return
		}
		var held *record
		if kv := found(answer.Responses[i]); kv != nil {
			var bad error
			if held, bad = parse(kv); bad != nil {
				r.Err = fmt.Errorf("etcdlock: renew %q: %w", g.Lock, bad)
				return
			}
		}
		r.Grant, r.Err = c.renew(ctx, g, held, answer.Header.RaftTerm)
	})
}
