package sqllock

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/pitonlock/piton"
)

// RenewBatch implements [piton.BatchRenewer]: one statement. When
// some were not renewed they are looked at one by one, on MySQL and MariaDB all of them.
func (c *Coordinator) RenewBatch(ctx context.Context, grants []piton.Grant) []piton.RenewResult {
	results := make([]piton.RenewResult, len(grants))
	if len(grants) == 0 {
		return results
	}
	renew := c.renewCounted
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

// renewCounted says only whether all were renewed: MySQL tells how many rows it
// changed, not which. The rows are named in order, so that two batches do not wait
// for one another.
func (c *Coordinator) renewCounted(ctx context.Context, grants []piton.Grant) (renewed []bool, err error) {
	sorted := slices.Clone(grants)
	slices.SortFunc(sorted, func(a, b piton.Grant) int { return cmp.Compare(a.Lock, b.Lock) })
	sorted = slices.CompactFunc(sorted, func(a, b piton.Grant) bool { return a.Lock == b.Lock })
	rows := make([]string, 0, len(sorted))
	args := make([]any, 0, 4*len(sorted))
	for _, g := range sorted {
		if checkGrant(g) == nil {
			rows = append(rows, "SELECT ? AS name, ? AS token, ? AS holder, ? AS micros")
			args = append(args, c.name(g.Lock), int64(g.Token), c.name(g.Holder), g.TTL.Microseconds())
		}
	}
	renewed = make([]bool, len(grants))
	if len(rows) == 0 {
		return renewed, nil
	}
	text := strings.Replace(c.sql["renew-batch"].text, "%s", strings.Join(rows, " UNION ALL "), 1)
	result, err := c.db.ExecContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	n, err := result.RowsAffected()
	for i := range renewed {
		renewed[i] = err == nil && int(n) == len(grants)
	}
	return renewed, err
}
