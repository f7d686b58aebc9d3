package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/sqlerr"
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
		g, again, err := c.take(ctx, r)
		switch {
		case again:
		case errors.Is(err, piton.ErrHeld):
			return piton.Grant{}, err
		case err != nil:
			return piton.Grant{}, c.explain("acquire", r.Lock, err)
		default:
			c.collect(ctx)
			return g, nil
		}
	}
	return piton.Grant{}, fmt.Errorf("sqllock: acquire %q: others changed its row %d times in between", r.Lock, mostTries)
}

// take takes the row of a lock if it is free or the holder's own, or makes it. again
// says that it was made, deleted or taken meanwhile.
func (c *Coordinator) take(ctx context.Context, r piton.Request) (g piton.Grant, again bool, err error) {
	args := []any{c.name(r.Lock), c.name(r.Holder), c.name(label(r.Owner)), r.TTL.Microseconds(), int64(r.Floor)}
	for _, step := range []string{"take", "add"} {
		token, err := c.token(ctx, step, args)
		switch {
		case sqlerr.Conflict(err):
			return piton.Grant{}, true, nil
		case err != nil:
			return piton.Grant{}, false, err
		case token != 0:
			return granted(piton.Fence{Lock: r.Lock, Token: token, Holder: r.Holder}, r.TTL), false, nil
		}
		now, ok, err := c.read(ctx, c.db, r.Lock)
		switch {
		case err != nil:
			return piton.Grant{}, false, err
		case !ok: // there is no row yet
		case now.held() && now.holder != r.Holder:
			return piton.Grant{}, false, now.heldError(r.Lock)
		case now.held() && now.token > r.Floor:
			// MySQL counts changed rows: the holder has asked twice within one microsecond.
			return granted(piton.Fence{Lock: r.Lock, Token: now.token, Holder: r.Holder}, r.TTL), false, nil
		case now.token >= piton.MaxToken:
			return piton.Grant{}, false, noRoom(now.token)
		default:
			return piton.Grant{}, true, nil
		}
	}
	var floor piton.Token
	if err := c.queryRow(ctx, c.db, "floor").Scan(&floor); err != nil {
		return piton.Grant{}, false, err
	}
	if floor >= piton.MaxToken {
		return piton.Grant{}, false, noRoom(floor)
	}
	return piton.Grant{}, true, nil
}

// token runs a statement that returns the token of one row, or 0 when it did nothing.
func (c *Coordinator) token(ctx context.Context, name string, args []any) (piton.Token, error) {
	if c.dialect == Postgres {
		var token piton.Token
		err := c.queryRow(ctx, c.db, name, args...).Scan(&token)
		if errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
		return token, err
	}
	s := c.sql[name]
	result, err := c.db.ExecContext(ctx, s.text, s.arrange(args)...)
	if err != nil {
		return 0, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return 0, err
	}
	token, err := result.LastInsertId()
	return piton.Token(token), err
}

func noRoom(last piton.Token) error {
	return fmt.Errorf("no token above %d is left; want a floor below %d", last, piton.MaxToken)
}

// collect deletes rows that have been free for long, now and then. What goes
// wrong is left for the next time: the grant counts.
func (c *Coordinator) collect(ctx context.Context) {
	if c.acquired.Add(1)%collectEvery != 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, collectWithin)
	defer cancel()
	var last int64
	if err := c.queryRow(ctx, c.db, "old", freeFor.Microseconds()).Scan(&last); err != nil || last == 0 {
		return
	}
	if _, err := c.exec(ctx, c.db, "raise-floor", last); err != nil {
		return
	}
	_, _ = c.exec(ctx, c.db, "delete-old", freeFor.Microseconds())
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
