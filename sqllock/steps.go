package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pitonlock/piton"
)

// row is what piton_locks says of a lock.
type row struct {
	token  piton.Token
	holder string
	owner  string
	left   time.Duration
}

func (r row) held() bool { return r.holder != "" && r.left > 0 }

// read returns the row of a lock; ok is false when it has none.
func (c *Coordinator) read(ctx context.Context, q querier, lock string) (r row, ok bool, err error) {
	var micros int64
	err = c.queryRow(ctx, q, "row", c.name(lock)).Scan(&r.token, &r.holder, &r.owner, &micros)
	if errors.Is(err, sql.ErrNoRows) {
		return row{}, false, nil
	}
	r.left = time.Duration(micros) * time.Microsecond
	return r, err == nil, err
}

func (r row) heldError(lock string) error {
	return &piton.HeldError{Lock: lock, Owner: r.owner, Token: r.token, Remaining: r.left}
}

// Acquire implements [piton.Coordinator]. A lock that is held is found by one
// query that locks nothing.
func (c *Coordinator) Acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	if err := validate(r); err != nil {
		return piton.Grant{}, err
	}
	seen, ok, err := c.read(ctx, c.db, r.Lock)
	switch {
	case err != nil:
		return piton.Grant{}, c.explain("acquire", r.Lock, err)
	case ok && seen.held() && seen.holder != r.Holder:
		return piton.Grant{}, seen.heldError(r.Lock)
	}
	for range mostTries {
		token, done, err := c.take(ctx, r)
		switch {
		case errors.Is(err, piton.ErrHeld):
			return piton.Grant{}, err
		case err != nil:
			return piton.Grant{}, c.explain("acquire", r.Lock, err)
		case done:
			c.collect(ctx)
			return granted(piton.Fence{Lock: r.Lock, Token: token, Holder: r.Holder}, r.TTL), nil
		}
	}
	return piton.Grant{}, fmt.Errorf("sqllock: acquire %q: the row came and went %d times", r.Lock, mostTries)
}

// transaction runs f and commits, if f says so.
func (c *Coordinator) transaction(ctx context.Context, f func(tx *sql.Tx) (commit bool, err error)) error {
	tx, err := c.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	commit, err := f(tx)
	if err != nil || !commit {
		return errors.Join(err, ignoreDone(tx.Rollback()))
	}
	return tx.Commit()
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

// take locks the row, and takes it if it is free or the holder's own. done is
// false when the row was made or deleted at the same time: try again.
func (c *Coordinator) take(ctx context.Context, r piton.Request) (token piton.Token, done bool, err error) {
	ttl := r.TTL.Microseconds()
	err = c.transaction(ctx, func(tx *sql.Tx) (bool, error) {
		var locked int64
		err := c.queryRow(ctx, tx, "lock", c.name(r.Lock)).Scan(&locked)
		if errors.Is(err, sql.ErrNoRows) {
			token, done, err = c.add(ctx, tx, r, ttl)
			return done, err
		}
		if err != nil {
			return false, err
		}
		now, ok, err := c.read(ctx, tx, r.Lock) // by a clock that is read after the lock was waited for
		switch {
		case err != nil || !ok:
			return false, err
		case now.held() && now.holder != r.Holder:
			return false, now.heldError(r.Lock)
		case now.held() && now.token > r.Floor:
			token = now.token
		default:
			if token, err = above(now.token, r.Floor); err != nil {
				return false, err
			}
		}
		_, err = c.exec(ctx, tx, "take", c.name(r.Lock), int64(token), c.name(r.Holder), c.name(label(r.Owner)), ttl)
		done = err == nil
		return done, err
	})
	return token, done && err == nil, err
}

// add makes the row of a lock that has none, with a token above those of all
// rows that were deleted. The floor stays locked until the commit, so that no
// row is deleted meanwhile.
func (c *Coordinator) add(ctx context.Context, tx *sql.Tx, r piton.Request, ttl int64) (token piton.Token, done bool, err error) {
	var floor piton.Token
	if err := c.queryRow(ctx, tx, "floor").Scan(&floor); err != nil {
		return 0, false, err
	}
	if token, err = above(floor, r.Floor); err != nil {
		return 0, false, err
	}
	added, err := c.exec(ctx, tx, "add", c.name(r.Lock), int64(token), c.name(r.Holder), c.name(label(r.Owner)), ttl)
	return token, added == 1 && err == nil, err
}

func above(last, floor piton.Token) (piton.Token, error) {
	if most := max(last, floor); most < piton.MaxToken {
		return most + 1, nil
	}
	return 0, fmt.Errorf("no token above %d is left; want a floor below %d", max(last, floor), piton.MaxToken)
}

// collect deletes rows that have been free for long, now and then. What goes
// wrong is left for the next time: the grant counts.
func (c *Coordinator) collect(ctx context.Context) {
	if c.acquired.Add(1)%collectEvery != 0 {
		return
	}
	_ = c.transaction(ctx, func(tx *sql.Tx) (bool, error) {
		var floor int64
		if err := c.queryRow(ctx, tx, "floor-for-update").Scan(&floor); err != nil {
			return false, err
		}
		old := c.sql["old"]
		rows, err := tx.QueryContext(ctx, old.text, old.arrange([]any{freeFor.Microseconds()})...)
		if err != nil {
			return false, err
		}
		var locks []string
		for rows.Next() {
			var lock string
			var token int64
			if err := rows.Scan(&lock, &token); err != nil {
				rows.Close()
				return false, err
			}
			locks, floor = append(locks, lock), max(floor, token)
		}
		if err := rows.Err(); err != nil || len(locks) == 0 {
			return false, err
		}
		for _, lock := range locks {
			if _, err := c.exec(ctx, tx, "delete", c.name(lock)); err != nil {
				return false, err
			}
		}
		_, err = c.exec(ctx, tx, "raise-floor", floor)
		return err == nil, err
	})
}

// Renew implements [piton.Coordinator].
func (c *Coordinator) Renew(ctx context.Context, g piton.Grant) (piton.Grant, error) {
	if err := checkGrant(g); err != nil {
		return piton.Grant{}, err
	}
	renewed, err := c.exec(ctx, c.db, "renew", c.name(g.Lock), int64(g.Token), c.name(g.Holder), g.TTL.Microseconds())
	if err != nil {
		return piton.Grant{}, c.explain("renew", g.Lock, err)
	}
	if renewed == 1 {
		return granted(g.Fence, g.TTL), nil
	}
	now, _, err := c.read(ctx, c.db, g.Lock)
	switch {
	case err != nil:
		return piton.Grant{}, c.explain("renew", g.Lock, err)
	case now.held() && now.holder == g.Holder && now.token == g.Token:
		// MySQL counts changed rows: two renewals within one microsecond.
		return granted(g.Fence, g.TTL), nil
	}
	return piton.Grant{}, lost(g, now)
}

// lost says why a grant is not the one that now holds.
func lost(g piton.Grant, now row) error {
	e := &piton.LostError{Lock: g.Lock, Token: g.Token, Holder: g.Holder, Reason: piton.ReasonExpired}
	switch {
	case !now.held():
	case now.holder == g.Holder:
		e.Reason, e.By = piton.ReasonReplaced, now.token
	default:
		e.Reason, e.By = piton.ReasonTaken, now.token
	}
	return e
}

// Release implements [piton.Coordinator].
func (c *Coordinator) Release(ctx context.Context, g piton.Grant) error {
	if err := piton.ValidateLock(g.Lock); err != nil {
		return err
	}
	released, err := c.exec(ctx, c.db, "release", c.name(g.Lock), int64(g.Token), c.name(g.Holder))
	if err != nil {
		return c.explain("release", g.Lock, err)
	}
	if released == 1 {
		return nil
	}
	now, _, err := c.read(ctx, c.db, g.Lock)
	switch {
	case err != nil:
		return c.explain("release", g.Lock, err)
	case !now.held():
		return nil
	}
	return lost(g, now)
}

// Break implements [piton.Breaker].
func (c *Coordinator) Break(ctx context.Context, lock string, token piton.Token) (bool, error) {
	if err := piton.ValidateLock(lock); err != nil {
		return false, err
	}
	broken, err := c.exec(ctx, c.db, "break", c.name(lock), int64(token))
	if err != nil {
		return false, c.explain("break", lock, err)
	}
	if broken == 1 {
		return true, nil
	}
	now, _, err := c.read(ctx, c.db, lock)
	switch {
	case err != nil:
		return false, c.explain("break", lock, err)
	case !now.held():
		return false, nil
	}
	return false, now.heldError(lock)
}

// Get implements [piton.Inspector].
func (c *Coordinator) Get(ctx context.Context, lock string) (piton.Held, bool, error) {
	if err := piton.ValidateLock(lock); err != nil {
		return piton.Held{}, false, err
	}
	now, _, err := c.read(ctx, c.db, lock)
	if err != nil {
		return piton.Held{}, false, c.explain("get", lock, err)
	}
	if !now.held() {
		return piton.Held{}, false, nil
	}
	return piton.Held{Lock: lock, Token: now.token, Owner: now.owner, Remaining: now.left}, true, nil
}

// List implements [piton.Inspector].
func (c *Coordinator) List(ctx context.Context, prefix string, limit int) ([]piton.Held, error) {
	if limit <= 0 {
		limit = 1<<31 - 1
	}
	s := c.sql["list"]
	rows, err := c.db.QueryContext(ctx, s.text, s.arrange([]any{c.name(prefix), limit})...)
	if err != nil {
		return nil, c.explain("list", prefix, err)
	}
	defer rows.Close()
	var list []piton.Held
	for rows.Next() {
		var h piton.Held
		var micros int64
		if err := rows.Scan(&h.Lock, &h.Token, &h.Owner, &micros); err != nil {
			return nil, c.explain("list", prefix, err)
		}
		h.Remaining = time.Duration(micros) * time.Microsecond
		list = append(list, h)
	}
	if err := rows.Err(); err != nil {
		return nil, c.explain("list", prefix, err)
	}
	return list, nil
}
