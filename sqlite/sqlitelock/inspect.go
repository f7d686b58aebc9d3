package sqlitelock

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/pitonlock/piton"
)

// row is a lock that is held.
type row struct {
	piton.Held
	holder string
}

func scan(from interface{ Scan(...any) error }, now int64) (row, error) {
	var r row
	var ends int64
	err := from.Scan(&r.Lock, &r.Token, &r.holder, &r.Owner, &ends)
	r.Remaining = time.Duration(ends - now)
	return r, err
}

// holding returns who has the lock, nil when it is free.
func (c *Coordinator) holding(lock string, now int64) (*row, error) {
	r, err := scan(c.get.QueryRowContext(background,
		sql.Named("lock", lock), sql.Named("now", now), sql.Named("boot", c.machine.bootID)), now)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// Get returns the present holder of lock; ok is false when the lock is free. It
// only reads, and errors are as in the package comment.
func (c *Coordinator) Get(ctx context.Context, lock string) (held piton.Held, ok bool, err error) {
	err = c.read(ctx, "get", lock, func(now int64) error {
		r, err := c.holding(lock, now)
		if r != nil {
			held, ok = r.Held, true
		}
		return err
	})
	return held, ok, err
}

// List returns the held locks whose names start with prefix, in the order of
// their bytes, at most limit (0: no limit). It only reads, from one snapshot.
func (c *Coordinator) List(ctx context.Context, prefix string, limit int) ([]piton.Held, error) {
	var found []piton.Held
	err := c.read(ctx, "list", prefix, func(now int64) error {
		found = nil
		rows, err := c.list.QueryContext(background,
			sql.Named("prefix", prefix), sql.Named("now", now), sql.Named("boot", c.machine.bootID))
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() && (limit <= 0 || len(found) < limit) {
			r, err := scan(rows, now)
			if err != nil {
				return err
			}
			if !strings.HasPrefix(r.Lock, prefix) {
				return nil // names are sorted: those with the prefix come first
			}
			found = append(found, r.Held)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Break ends the grant of lock with exactly this token, as [piton.Breaker]
// describes it.
func (c *Coordinator) Break(ctx context.Context, lock string, token piton.Token) (broken bool, err error) {
	err = c.write(ctx, "break", lock, func(now int64) error {
		result, err := c.breakOne.ExecContext(background,
			sql.Named("lock", lock), sql.Named("token", int64(token)),
			sql.Named("now", now), sql.Named("boot", c.machine.bootID))
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err != nil || n > 0 {
			broken = n > 0
			return err
		}
		return c.refuse(lock, "", now)
	})
	return broken && err == nil, err
}
