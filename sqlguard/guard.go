// Package sqlguard makes a SQL database refuse writes of holders that no longer
// hold their lock. It works over database/sql with PostgreSQL, MySQL or MariaDB
// and SQLite, and keeps one row per lock in the table piton_marks: the mark, the
// newest fence that this database has recorded.
//
//	guard, err := sqlguard.New(db, sqlguard.Postgres)
//	err = guard.Migrate(ctx) // once
//	locker, err := piton.New(coordinator, piton.WithGuards(guard)) // Acquire seals
//	err = locker.Do(ctx, "invoices/7", func(ctx context.Context, lease *piton.Lease) error {
//		return guard.Tx(ctx, lease.Fence(), func(ctx context.Context, tx *sql.Tx) error {
//			// reads and writes of any table
//		})
//	})
//
// # What is promised
//
// After [Guard.Seal] of a fence has returned nil, no transaction that was
// admitted with an older fence, or with the same token of another holder, can
// commit any more; and what is read from then on is not changed by any of them.
// A transaction ends with its COMMIT: a function that sends COMMIT and BEGIN as
// text goes on without having been admitted.
// This depends on no clock and on no coordinator, only on the database keeping
// what it has committed. It covers every write that goes through [Guard.Tx] or
// [Guard.Admit] and none that goes around them.
//
// Writers of one holder run side by side on PostgreSQL, MySQL and MariaDB. A
// SQLite database has one writer at a time.
//
// # Frozen holders
//
// A holder that froze inside of its transaction keeps its successor's seal
// waiting. The database itself therefore ends what it has not heard of for as
// long as the lease had left when the transaction began: idle transactions and
// waits for locks everywhere, long statements on PostgreSQL and MariaDB. A
// transaction without a lease or a deadline may idle for 30 s. MySQL and MariaDB
// count whole seconds, rounded up. SQLite has no server that could do it: there
// the seal fails when its own time is over, until the frozen process ends.
//
// So a single statement, or a pause between two, must be shorter than that, two
// thirds of the TTL to be safe, even though the heartbeat renews the lease
// meanwhile: do what takes long before the transaction.
//
// # Rows that carry their own token
//
// [Rows] guards single rows by a token column of their own, without piton_marks.
package sqlguard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/sqlerr"
)

// MaxHolderBytes is the longest holder id that piton_marks keeps.
const MaxHolderBytes = 512

// Guard keeps the marks of one database. It is safe for concurrent use and does
// not close the *sql.DB. It implements [piton.Guard].
type Guard struct {
	// CommitTimeout is how long [Guard.Tx] and [Guard.Seal] wait for the answer to
	// COMMIT or ROLLBACK; 0 means 10 s. Set it before the first use.
	CommitTimeout time.Duration

	db      *sql.DB
	dialect Dialect
	sql     map[string]string
	flavour atomic.Value // "mysql" or "mariadb", known after the first connection
}

var _ piton.Guard = (*Guard)(nil)

// New returns a guard over db. It sends nothing: a database that is away or has
// no piton_marks shows at the first use.
func New(db *sql.DB, d Dialect) (*Guard, error) {
	if db == nil {
		return nil, errors.New("sqlguard: the database is nil; want an open *sql.DB")
	}
	named, ok := statements[d]
	if !ok {
		return nil, fmt.Errorf("sqlguard: unknown dialect %v; want sqlguard.Postgres, sqlguard.MySQL or sqlguard.SQLite", d)
	}
	if err := sqlerr.CheckDriver(db, d.String()); err != nil {
		return nil, fmt.Errorf("sqlguard: %w", err)
	}
	return &Guard{db: db, dialect: d, sql: named}, nil
}

// DDL returns the statement that creates piton_marks, for people who run their
// migrations themselves. The application's user needs SELECT, INSERT and UPDATE
// on the table.
func (g *Guard) DDL() string { return g.sql["create"] + ";\n" }

// Migrate creates piton_marks when it is missing. It may run at every start and
// in several processes at once; where the table is there already it needs no
// privilege beyond reading it.
func (g *Guard) Migrate(ctx context.Context) error {
	if g.probe(ctx) == nil {
		return nil
	}
	_, err := g.db.ExecContext(ctx, g.sql["create"])
	if err == nil {
		return nil
	}
	if g.probe(ctx) == nil { // another process was faster
		return nil
	}
	if sqlerr.Forbidden(err) {
		return fmt.Errorf("sqlguard: migrate: the database user may not create the table piton_marks; let an administrator run the statement that DDL returns and grant SELECT, INSERT and UPDATE on it: %w", err)
	}
	return fmt.Errorf("sqlguard: migrate: creating piton_marks: %w", err)
}

func (g *Guard) probe(ctx context.Context) error {
	rows, err := g.db.QueryContext(ctx, g.sql["probe"])
	if err != nil {
		return err
	}
	defer rows.Close()
	rows.Next()
	return rows.Err()
}

// Mark returns the newest fence that the database has recorded for lock; ok is
// false when it has none.
func (g *Guard) Mark(ctx context.Context, lock string) (mark piton.Fence, ok bool, err error) {
	if err := piton.ValidateLock(lock); err != nil {
		return piton.Fence{}, false, err
	}
	mark, err = g.mark(ctx, g.db, lock)
	if err != nil {
		return piton.Fence{}, false, g.explain(fmt.Sprintf("mark of %q", lock), err)
	}
	return mark, mark.Token > 0, nil
}

// Seal raises the mark of f.Lock to f in a short transaction of its own. It is
// nil when the mark is f when it returns, also when it was f before, and a
// *[piton.StaleError] with the mark when that is newer or another holder's.
// Anything else is unknown; sealing again with the same fence is safe.
//
// Seal waits for open transactions of earlier holders, no longer than ctx and
// its lease allow, and never for those of f itself.
func (g *Guard) Seal(ctx context.Context, f piton.Fence) error {
	if err := validate(f); err != nil {
		return err
	}
	action := fmt.Sprintf("seal of %q with token %d", f.Lock, f.Token)
	return g.run(ctx, f, action, func(s *session) error {
		mark, err := g.raise(ctx, s, f)
		switch {
		case err != nil:
			return g.explain(action, withCause(ctx, err))
		case mark == f:
			return nil
		case mark.Token < f.Token:
			return fmt.Errorf("sqlguard: %s: the database shows %d instead; is this a replica?", action, mark.Token)
		}
		return &piton.StaleError{Fence: f, Mark: mark}
	})
}

// raise moves the mark up to f if it may, and returns the mark as it is then.
func (g *Guard) raise(ctx context.Context, s *session, f piton.Fence) (piton.Fence, error) {
	args := []any{g.text(f.Lock), int64(f.Token), g.text(f.Holder)}
	if g.dialect == MySQL {
		// Looking first keeps a repeated or a stale seal from waiting for the
		// transactions that have the mark locked.
		mark, err := g.mark(ctx, s.tx, f.Lock)
		if err != nil || mark.Token >= f.Token {
			return mark, err
		}
		if _, err := s.tx.ExecContext(ctx, g.sql["seal"], args...); err != nil {
			return piton.Fence{}, err
		}
		return g.mark(ctx, s.tx, f.Lock)
	}
	if g.dialect == Postgres {
		args = append(args, millis(s.bounds.wait), millis(s.bounds.idle))
	}
	mark := piton.Fence{Lock: f.Lock}
	err := s.tx.QueryRowContext(ctx, g.sql["seal"], args...).Scan(&mark.Token, &mark.Holder)
	if errors.Is(err, sql.ErrNoRows) {
		return g.mark(ctx, s.tx, f.Lock)
	}
	return mark, err
}

// Admit checks f inside of the caller's own transaction and locks the mark until
// that transaction ends, so that a newer seal waits for it. It has to be the
// first statement of tx, and it never moves the mark.
//
// A mark that is newer, or has the same token of another holder, is a
// *[piton.StaleError]. A mark that is older or missing is an error that wraps
// [piton.ErrNotSealed]: the program writes under a fence that it did not seal.
// After any error the transaction must be rolled back.
//
// Isolation: under REPEATABLE READ a transaction reads the state of its first
// read. PostgreSQL refuses by itself (SQLSTATE 40001) when that was before the
// seal; on MySQL and MariaDB Admit notices it and returns an error that wraps
// [piton.ErrNotSealed]. READ COMMITTED, which [Guard.Tx] uses, has no such trap.
//
// COMMIT is the caller's: its lost answer means unknown, and cancelling its
// context makes the answer get lost. When ctx belongs to a lease, PostgreSQL is
// told to end the transaction by itself as described in the package comment; on
// MySQL and MariaDB only [Guard.Tx] can do that, since it must be undone later.
func (g *Guard) Admit(ctx context.Context, tx *sql.Tx, f piton.Fence) error {
	if tx == nil {
		return errors.New("sqlguard: admit: the transaction is nil")
	}
	_, err := g.admit(ctx, tx, f, leaseBounds(ctx))
	return err
}

// admit returns the server's id of the transaction where there is one.
func (g *Guard) admit(ctx context.Context, tx *sql.Tx, f piton.Fence, b bounds) (transaction int64, err error) {
	if err := validate(f); err != nil {
		return 0, err
	}
	mark := piton.Fence{Lock: f.Lock}
	snapshot := int64(1)
	args := []any{g.text(f.Lock)}
	dest := []any{&mark.Token, &mark.Holder}
	switch g.dialect {
	case Postgres:
		args = append(args, millis(b.wait), millis(b.idle), millis(b.statement))
		dest = append(dest, &transaction)
	case MySQL:
		dest = append(dest, &snapshot)
	}
	action := fmt.Sprintf("admit to %q with token %d", f.Lock, f.Token)
	err = tx.QueryRowContext(ctx, g.sql["check"], args...).Scan(dest...)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, fmt.Errorf("sqlguard: %s: the database has no mark of this lock; seal before reading or writing: %w", action, piton.ErrNotSealed)
	case err != nil:
		return 0, g.explain(action, withCause(ctx, err))
	case mark.Token < f.Token:
		return 0, fmt.Errorf("sqlguard: %s: the newest mark is %d; seal before reading or writing: %w", action, mark.Token, piton.ErrNotSealed)
	case mark != f:
		return 0, &piton.StaleError{Fence: f, Mark: mark}
	case snapshot == 0:
		return 0, fmt.Errorf("sqlguard: %s: the transaction has read before it was admitted and sees a state older than the seal; make Admit its first statement or use READ COMMITTED: %w", action, piton.ErrNotSealed)
	}
	return transaction, nil
}

type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// mark reads the mark of lock; one without a token means that there is none.
func (g *Guard) mark(ctx context.Context, q queryer, lock string) (piton.Fence, error) {
	mark := piton.Fence{Lock: lock}
	err := q.QueryRowContext(ctx, g.sql["mark"], g.text(lock)).Scan(&mark.Token, &mark.Holder)
	if errors.Is(err, sql.ErrNoRows) {
		return mark, nil
	}
	return mark, err
}

// text passes a name as the bytes it has. MySQL would convert a string to the
// character set of the connection, which need not have every character.
func (g *Guard) text(s string) any {
	if g.dialect == MySQL {
		return []byte(s)
	}
	return s
}

// validate refuses what no storage could keep, before anything is sent.
func validate(f piton.Fence) error {
	if err := piton.ValidateLock(f.Lock); err != nil {
		return err
	}
	if f.Token < 1 || f.Token > piton.MaxToken {
		return fmt.Errorf("sqlguard: the token %d of lock %q is outside 1..%d", f.Token, f.Lock, piton.MaxToken)
	}
	if f.Holder == "" || len(f.Holder) > MaxHolderBytes || strings.ContainsRune(f.Holder, 0) {
		return fmt.Errorf("sqlguard: the holder of lock %q has %d bytes; want 1 to %d without NUL", f.Lock, len(f.Holder), MaxHolderBytes)
	}
	return nil
}

// withCause adds why ctx ended to an error that the driver made of it.
func withCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w (%w)", err, cause)
}
