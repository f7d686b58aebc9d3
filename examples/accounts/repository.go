package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/sqlguard"
)

// ErrNoAccount says that an account does not exist. It is not a refusal.
var ErrNoAccount = errors.New("no such account")

var (
	//go:embed schema.sql
	schema string
	//go:embed bounds.sql
	bounds string
)

// Repository keeps account balances in PostgreSQL. It is the storage that
// decides: each row carries the newest token that has come to it, and a write
// with an older one changes nothing.
//
// The classic statement is
//
//	UPDATE account_balances SET balance = balance + $1, last_fencing_token = $2
//	WHERE id = $3 AND last_fencing_token < $2
//
// and the bare < is not enough. What sqlguard.Rows and Seal do instead:
//
//   - A holder may write twice. The second write comes with the same token, which
//     < refuses; here it may be equal if the holder is the same, too.
//   - Two holders may have one number after the coordinator lost its memory. With
//     <= both would get in; last_fencing_holder lets in the first and no other.
//   - "No row changed" means stale or missing. They are told apart in the same
//     transaction: *piton.StaleError with both tokens, or [ErrNoAccount].
//   - A holder that has read, but not written yet, is not protected: its
//     predecessor wakes up, writes with the old token, which is still the row's,
//     and the new holder decides on a balance that is gone. So the row is sealed:
//     the token is raised before anything is read, by Seal when the lock is
//     acquired, and by the UPDATE ... RETURNING of ReadWithFencing.
type Repository struct {
	db   *sql.DB
	rows *sqlguard.Rows
}

// NewRepository returns a repository over db, which stays the caller's.
func NewRepository(db *sql.DB) (*Repository, error) {
	rows, err := sqlguard.NewRows(sqlguard.Postgres, sqlguard.Columns{
		Table: "account_balances", Key: "id", Token: "last_fencing_token", Holder: "last_fencing_holder",
	})
	if err != nil {
		return nil, err
	}
	return &Repository{db, rows}, nil
}

// Migrate creates the table and the account if they are missing. It may run in
// several processes at once.
func (r *Repository) Migrate(ctx context.Context, id int64) error {
	if _, err := r.db.ExecContext(ctx, schema); err != nil {
		return err
	}
	_, err := r.db.ExecContext(ctx, "INSERT INTO account_balances (id) VALUES ($1) ON CONFLICT DO NOTHING", id)
	return err
}

const lockPrefix = "accounts/"

// LockName is the lock that all writers of an account take: a row with a token of
// its own needs a lock of its own, since tokens of different locks do not compare.
func LockName(id int64) string { return lockPrefix + strconv.FormatInt(id, 10) }

// Seal implements [piton.Guard]: it raises the row's token to that of the lease
// before the lease is handed out. From then on no earlier holder can write, and a
// coordinator that lost its counter is found out and repaired.
func (r *Repository) Seal(ctx context.Context, f piton.Fence) error {
	id, err := strconv.ParseInt(strings.TrimPrefix(f.Lock, lockPrefix), 10, 64)
	if err != nil || f.Lock != LockName(id) {
		return fmt.Errorf("the lock %q is not that of an account; want one that LockName returns", f.Lock)
	}
	return r.transaction(ctx, f, id, func(tx *sql.Tx) error {
		return r.rows.Update(ctx, tx, f, id, "") // only the token
	})
}

// ReadWithFencing reads a balance that a later [Repository.MutateWithFencing]
// under the same fence depends on. It seals the row, as a plain SELECT does not:
// no earlier holder changes the balance between the two, and one that comes late
// gets a *piton.StaleError instead of a balance. [ErrNoAccount] as there.
func (r *Repository) ReadWithFencing(ctx context.Context, f piton.Fence, id int64) (balance int64, err error) {
	err = r.transaction(ctx, f, id, func(tx *sql.Tx) error {
		return r.rows.Read(ctx, tx, f, id, []string{"balance"}, &balance)
	})
	return balance, err
}

// MutateWithFencing adds amount to the balance of an account under the fence f of
// a lease on [LockName] of it. The end of ctx rolls back, until COMMIT is sent.
//
// Refusals are told apart: a *piton.StaleError with both tokens when another
// holder has come since, and [ErrNoAccount]. An error that wraps piton.ErrUnknown
// means that the answer to COMMIT was lost: look before doing it again. After any
// other error nothing is changed.
func (r *Repository) MutateWithFencing(ctx context.Context, f piton.Fence, id, amount int64) error {
	return r.transaction(ctx, f, id, func(tx *sql.Tx) error {
		return r.rows.Update(ctx, tx, f, id, "balance = balance + $1", amount)
	})
}

// transaction runs work and commits, or rolls back and returns when that is done.
func (r *Repository) transaction(ctx context.Context, f piton.Fence, id int64, work func(tx *sql.Tx) error) error {
	if f.Lock != LockName(id) {
		return fmt.Errorf("account %d: the fence is of lock %q; want %q", id, f.Lock, LockName(id))
	}
	err := r.commit(ctx, work)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sqlguard.ErrNoRow):
		return fmt.Errorf("account %d: %w", id, ErrNoAccount)
	case ctx.Err() != nil && !errors.Is(err, piton.ErrUnknown):
		return fmt.Errorf("account %d: rolled back: %w: %w", id, context.Cause(ctx), err)
	}
	return fmt.Errorf("account %d: %w", id, err)
}

// answerWithin is how long COMMIT and ROLLBACK wait for the database's answer.
const answerWithin = 10 * time.Second

func (r *Repository) commit(ctx context.Context, work func(tx *sql.Tx) error) error {
	// database/sql hands the context of BeginTx to COMMIT. That must not be the
	// lease's: the row is locked by then, so a late COMMIT is safe, and cancelling
	// it would only make the outcome unknown.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	tx, err := r.db.BeginTx(own, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	stop()
	if err != nil {
		return err
	}
	finish := func(end func() error) error {
		defer time.AfterFunc(answerWithin, cancel).Stop()
		return end()
	}
	defer func() { _ = finish(tx.Rollback) }() // does nothing after COMMIT

	if err := bound(ctx, tx); err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := finish(tx.Commit); err != nil {
		return fmt.Errorf("commit: %w: %w", piton.ErrUnknown, err)
	}
	return nil
}

// bound makes the server end the transaction by itself when the lease is over: a
// process that froze in it would keep the row locked, and its successor waiting.
// So a transaction is no place for what takes long, heartbeat or not.
func bound(ctx context.Context, tx *sql.Tx) error {
	left, ok := piton.TimeLeft(ctx)
	if !ok {
		left = 30 * time.Second // ctx belongs to no lease
	}
	left = max(left, time.Second) // for the storage's own answer, even to one who comes late
	_, err := tx.ExecContext(ctx, bounds, strconv.FormatInt(left.Milliseconds(), 10))
	return err
}
