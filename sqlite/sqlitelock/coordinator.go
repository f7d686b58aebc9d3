package sqlitelock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/pitonlock/piton"
	sqlite3 "modernc.org/sqlite/lib"
)

var (
	_ piton.Coordinator  = (*Coordinator)(nil)
	_ piton.BatchRenewer = (*Coordinator)(nil)
	_ piton.Inspector    = (*Coordinator)(nil)
	_ piton.Breaker      = (*Coordinator)(nil)
)

// errNoRoom says that no token is left below MaxToken for a lock.
var errNoRoom = errors.New("no token is left")

// Coordinator grants locks from one file. It is safe for concurrent use, by as
// many processes and coordinators as have the file open. [Open] makes one.
type Coordinator struct {
	path    string
	machine machine
	file    os.FileInfo // of the file that is open
	db      *sql.DB
	conn    *sql.Conn
	turn    chan struct{} // capacity 1: full while a call uses what is below
	closed  bool

	begin, commit, rollback  *sql.Stmt
	get, list, take, collect *sql.Stmt
	renew, release, breakOne *sql.Stmt
}

// Close waits for the call in progress and closes the file. Leases are left as
// they are and end with their TTL. Later calls fail with [piton.ErrClosed]; a
// repeated Close is nil.
func (c *Coordinator) Close() error {
	c.turn <- struct{}{}
	defer c.leave()
	if c.closed {
		return nil
	}
	c.closed = true
	var errs []error
	for _, stmt := range []*sql.Stmt{
		c.begin, c.commit, c.rollback, c.get, c.list, c.take, c.collect, c.renew, c.release, c.breakOne,
	} {
		if stmt != nil { // an open statement would keep the file and its log open
			errs = append(errs, stmt.Close())
		}
	}
	if c.conn != nil {
		errs = append(errs, c.conn.Close())
	}
	return errors.Join(append(errs, c.db.Close())...)
}

// Acquire makes one attempt, as [piton.Coordinator] describes it. A lock that is
// held is found by reading alone: waiting contenders do not keep the holder
// from renewing.
func (c *Coordinator) Acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	if err := validate(r); err != nil {
		return piton.Grant{}, err
	}
	if err := c.read(ctx, "acquire", r.Lock, func(now int64) error { return c.refuse(r.Lock, r.Holder, now) }); err != nil {
		return piton.Grant{}, err
	}
	g := piton.Grant{Fence: piton.Fence{Lock: r.Lock, Holder: r.Holder}, TTL: r.TTL}
	err := c.write(ctx, "acquire", r.Lock, func(now int64) error {
		err := c.take.QueryRowContext(background,
			sql.Named("lock", r.Lock), sql.Named("holder", r.Holder), sql.Named("owner", r.Owner),
			sql.Named("ttl", int64(r.TTL)), sql.Named("floor", int64(r.Floor)),
			sql.Named("now", now), sql.Named("boot", c.machine.bootID)).Scan(&g.Token)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return c.refuse(r.Lock, r.Holder, now) // another was faster
		case code(err) == sqlite3.SQLITE_CONSTRAINT:
			return fmt.Errorf("%w for lock %q: the next would be above %d; use another name for the lock: %w", errNoRoom, r.Lock, piton.MaxToken, err)
		case err != nil:
			return err
		}
		_, err = c.collect.ExecContext(background,
			sql.Named("now", now), sql.Named("boot", c.machine.bootID), sql.Named("window", int64(mostFreeTime)),
			sql.Named("most", mostRows), sql.Named("few", rowsPerCall))
		return err
	})
	if err != nil {
		return piton.Grant{}, err
	}
	return g, nil
}

func validate(r piton.Request) error {
	if err := piton.ValidateLock(r.Lock); err != nil {
		return err
	}
	switch {
	case r.Holder == "":
		return fmt.Errorf("sqlitelock: acquire of %q: the holder is empty; want a random id", r.Lock)
	case r.TTL <= 0 || r.TTL > longestTTL:
		return fmt.Errorf("sqlitelock: acquire of %q: the TTL is %v; want more than 0 and at most %v", r.Lock, r.TTL, longestTTL)
	case r.Floor < 0 || r.Floor >= piton.MaxToken:
		return fmt.Errorf("sqlitelock: acquire of %q: %w: the floor is %d; want 0 to %d", r.Lock, errNoRoom, r.Floor, piton.MaxToken-1)
	}
	return nil
}

// refuse returns a *piton.HeldError when another than holder has the lock.
func (c *Coordinator) refuse(lock, holder string, now int64) error {
	row, err := c.holding(lock, now)
	if err != nil || row == nil || row.holder == holder {
		return err
	}
	return &piton.HeldError{Lock: lock, Owner: row.Owner, Token: row.Token, Remaining: row.Remaining}
}

// Renew starts the time of exactly this grant anew, as [piton.Coordinator]
// describes it.
func (c *Coordinator) Renew(ctx context.Context, g piton.Grant) (piton.Grant, error) {
	err := c.write(ctx, "renew", g.Lock, func(now int64) (err error) {
		g, err = c.renewOne(g, now)
		return err
	})
	if err != nil {
		return piton.Grant{}, err
	}
	return g, nil
}

// RenewBatch renews all grants in one transaction, for the price of one write to
// the disk. A refusal concerns its grant alone; an outage concerns all.
func (c *Coordinator) RenewBatch(ctx context.Context, grants []piton.Grant) []piton.RenewResult {
	results := make([]piton.RenewResult, len(grants))
	if len(grants) == 0 {
		return results
	}
	err := c.write(ctx, "renew", grants[0].Lock, func(now int64) error {
		for i, g := range grants {
			renewed, err := c.renewOne(g, now)
			if err != nil && !errors.Is(err, piton.ErrLost) {
				return err
			}
			results[i] = piton.RenewResult{Grant: renewed, Err: err}
		}
		return nil
	})
	if err != nil {
		for i := range results {
			results[i] = piton.RenewResult{Err: err}
		}
	}
	return results
}

func (c *Coordinator) renewOne(g piton.Grant, now int64) (piton.Grant, error) {
	if g.TTL <= 0 {
		return piton.Grant{}, fmt.Errorf("TTL %v of a renewal; want more than 0", g.TTL)
	}
	var ttl int64
	err := c.renew.QueryRowContext(background,
		sql.Named("lock", g.Lock), sql.Named("token", int64(g.Token)), sql.Named("holder", g.Holder), sql.Named("ttl", int64(g.TTL)),
		sql.Named("now", now), sql.Named("boot", c.machine.bootID)).Scan(&ttl)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		lost, err := c.lost(g, now)
		if err == nil {
			err = lost
		}
		return piton.Grant{}, err
	case err != nil:
		return piton.Grant{}, err
	}
	g.TTL = time.Duration(ttl)
	return g, nil
}

// lost tells why g is not held at the time now.
func (c *Coordinator) lost(g piton.Grant, now int64) (*piton.LostError, error) {
	row, err := c.holding(g.Lock, now)
	if err != nil {
		return nil, err
	}
	lost := &piton.LostError{Lock: g.Lock, Token: g.Token, Holder: g.Holder, Reason: piton.ReasonExpired}
	switch {
	case row == nil:
	case row.holder == g.Holder:
		lost.Reason, lost.By = piton.ReasonReplaced, row.Token
	default:
		lost.Reason, lost.By = piton.ReasonTaken, row.Token
	}
	return lost, nil
}

// Release ends the grant, as [piton.Coordinator] describes it. When the holder
// has another token by now, that grant is left alone and the *[piton.LostError]
// has ReasonReplaced. Release of an expired grant whose lock is free is nil.
func (c *Coordinator) Release(ctx context.Context, g piton.Grant) error {
	return c.write(ctx, "release", g.Lock, func(now int64) error {
		result, err := c.release.ExecContext(background,
			sql.Named("lock", g.Lock), sql.Named("token", int64(g.Token)), sql.Named("holder", g.Holder),
			sql.Named("now", now), sql.Named("boot", c.machine.bootID))
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n > 0 {
			return err
		}
		lost, err := c.lost(g, now)
		if err != nil || lost.Reason == piton.ReasonExpired {
			return err
		}
		return lost
	})
}
