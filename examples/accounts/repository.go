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

//go:embed schema.sql
var schema string

// Repository keeps account balances in PostgreSQL. It is the storage that
// decides: each row carries the newest token that has come to it, and a write
// with an older one changes nothing.
//
// The classic statement is
//
//	UPDATE account_balances SET balance = balance + $1, last_fencing_token = $2
//	WHERE id = $3 AND last_fencing_token < $2
//
// and has four gaps, which sqlguard.Rows closes: the second write of one holder
// is refused; "no row changed" means stale or missing; two holders of one number
// both get in; and a holder that has read, but not written yet, is not protected
// from its predecessor. Seal closes the last one before anything is read.
type Repository struct {
	db   *sql.DB
	rows *sqlguard.Rows
}

// NewRepository returns a repository over db, which stays the caller's.
func NewRepository(db *sql.DB) (*Repository, error) {
	rows, err := sqlguard.NewRows(sqlguard.Postgres, sqlguard.Columns{
		Table: "account_balances", Key: "id", Token: "last_fencing_token", Holder: "last_fencing_holder",
	})
	return &Repository{db, rows}, err
}

// Migrate creates the table when it is missing.
func (r *Repository) Migrate(ctx context.Context) error {
	_, err := r.db.ExecContext(ctx, schema)
	return err
}

// Open creates an account with a balance, if it does not exist.
func (r *Repository) Open(ctx context.Context, id, balance int64) error {
	_, err := r.db.ExecContext(ctx, "INSERT INTO account_balances (id, balance) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING", id, balance)
	return err
}

// LockName is the lock that all writers of an account take: a row with a token of
// its own needs a lock of its own.
func LockName(id int64) string { return "accounts/" + strconv.FormatInt(id, 10) }

// Seal implements [piton.Guard]: it raises the row's token to that of the lease
// before the lease is handed out. From then on no earlier holder can write, and a
// coordinator that lost its counter is found out and repaired.
func (r *Repository) Seal(ctx context.Context, f piton.Fence) error {
	id, err := strconv.ParseInt(strings.TrimPrefix(f.Lock, "accounts/"), 10, 64)
	if err != nil {
		return fmt.Errorf("lock %q is not that of an account: %w", f.Lock, err)
	}
	err = r.transaction(ctx, func(tx *sql.Tx) error { return r.rows.Update(ctx, tx, f, id, "") })
	return named(err, id)
}

// MutateWithFencing adds amount to the balance of an account and returns the new
// one. The three outcomes are told apart: a *piton.StaleError with both tokens
// when another holder has come since; [ErrNoAccount]; and an error that wraps
// piton.ErrUnknown when the answer to COMMIT was lost.
//
// between is called in the transaction, after the balance was read and before it
// is written, for whatever the new balance depends on. Its error rolls back.
func (r *Repository) MutateWithFencing(ctx context.Context, f piton.Fence, id, amount int64, between func(ctx context.Context, balance int64) error) (balance int64, err error) {
	err = r.transaction(ctx, func(tx *sql.Tx) error {
		if err := r.rows.Read(ctx, tx, f, id, []string{"balance"}, &balance); err != nil {
			return err
		}
		if err := between(ctx, balance); err != nil {
			return err
		}
		balance += amount
		return r.rows.Update(ctx, tx, f, id, "balance = $1", balance)
	})
	return balance, named(err, id)
}

// named says of which account there is no row.
func named(err error, id int64) error {
	if errors.Is(err, sqlguard.ErrNoRow) {
		return fmt.Errorf("account %d: %w", id, ErrNoAccount)
	}
	return err
}

// transaction commits what fn does, or rolls it back. The end of ctx stops the
// statements of fn; COMMIT is not cancelled by it, since that could only make
// its outcome unknown.
func (r *Repository) transaction(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := r.db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing after a commit
	if err := r.limit(ctx, tx); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w: %w", piton.ErrUnknown, err)
	}
	return nil
}

// limit tells the server to end the transaction by itself when the lease is over:
// a process that froze in it would keep the row locked, and its successor waiting.
func (r *Repository) limit(ctx context.Context, tx *sql.Tx) error {
	left, ok := piton.TimeLeft(ctx)
	if !ok {
		left = 30 * time.Second
	}
	milliseconds := strconv.FormatInt(max(left.Milliseconds(), 1), 10)
	_, err := tx.ExecContext(ctx, "SELECT set_config('idle_in_transaction_session_timeout', $1, true), set_config('lock_timeout', $1, true)", milliseconds)
	return err
}
