package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"slices"

	"github.com/pitonlock/piton"
)

// RenewBatch implements [piton.BatchRenewer]: one statement on PostgreSQL, and one
// transaction, which is one write to the disk, on MySQL and MariaDB. Those that
// were not renewed are then looked at one by one.
func (c *Coordinator) RenewBatch(ctx context.Context, grants []piton.Grant) []piton.RenewResult {
	results := make([]piton.RenewResult, len(grants))
	if len(grants) == 0 {
		return results
	}
	renew := c.renewInTransaction
	if c.dialect == Postgres {
		renew = c.renewInStatement
	}
	renewed, err := renew(ctx, grants)
	for i, g := range grants {
		switch {
		case err != nil:
			results[i].Err = c.explain("renew", g.Lock, err)
		case renewed[i]:
			results[i].Grant = granted(g.Fence, g.TTL)
		default:
			results[i].Grant, results[i].Err = c.Renew(ctx, g)
		}
	}
	return results
}

func (c *Coordinator) renewInStatement(ctx context.Context, grants []piton.Grant) (renewed []bool, err error) {
	type entry struct {
		N      int    `json:"n"`
		Name   string `json:"name"`
		Token  int64  `json:"token"`
		Holder string `json:"holder"`
		Micros int64  `json:"micros"`
	}
	entries := make([]entry, 0, len(grants))
	for i, g := range grants {
		if checkGrant(g) == nil {
			entries = append(entries, entry{i, g.Lock, int64(g.Token), g.Holder, g.TTL.Microseconds()})
		}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return nil, err
	}
	rows, err := c.db.QueryContext(ctx, c.sql["renew-batch"].text, string(text))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	renewed = make([]bool, len(grants))
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		renewed[n] = true
	}
	return renewed, rows.Err()
}

// renewInTransaction locks the rows in the order of their names, so that two
// batches cannot wait for one another.
func (c *Coordinator) renewInTransaction(ctx context.Context, grants []piton.Grant) (renewed []bool, err error) {
	order := make([]int, len(grants))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(grants[a].Lock, grants[b].Lock) })
	renewed = make([]bool, len(grants))
	err = c.transaction(ctx, func(tx *sql.Tx) (bool, error) {
		for _, i := range order {
			g := grants[i]
			if checkGrant(g) != nil {
				continue
			}
			n, err := c.exec(ctx, tx, "renew", c.name(g.Lock), int64(g.Token), c.name(g.Holder), g.TTL.Microseconds())
			if err != nil {
				return false, err
			}
			renewed[i] = n == 1
		}
		return true, nil
	})
	return renewed, err
}
