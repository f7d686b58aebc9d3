//go:build linux

package lab

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/sqlfile"
	"github.com/pitonlock/piton/sqlguard"
)

//go:embed storage.sql
var storageSQL string

// errRefused is the storage's answer to a write that its rule does not admit.
var errRefused = errors.New("the storage refused the write")

// initialBalance is what each account starts with.
const initialBalance = 1000

// storage is the laboratory's part of a database: one account per round, and a
// journal, appended to in the same transaction as the write, that says what was
// really accepted and in which order.
type storage struct {
	db      *sql.DB
	guard   *sqlguard.Guard
	dialect sqlguard.Dialect
	prefix  string
	sql     map[string]string
}

func newStorage(db *sql.DB, guard *sqlguard.Guard, d sqlguard.Dialect, prefix string) *storage {
	return &storage{db: db, guard: guard, dialect: d, prefix: prefix, sql: prepared(storageSQL, prefix, d == sqlguard.Postgres)}
}

// prepared are the statements of a file with the prefix filled in and, where the
// database wants it, the placeholders numbered.
func prepared(file, prefix string, numbered bool) map[string]string {
	byName := sqlfile.Named(file)
	for name, text := range byName {
		text = strings.ReplaceAll(text, "{}", prefix)
		for n := 1; numbered && strings.Contains(text, "?"); n++ {
			text = strings.Replace(text, "?", "$"+strconv.Itoa(n), 1)
		}
		byName[name] = text
	}
	return byName
}

// create makes the tables and reports whether piton_marks is new as well.
func (s *storage) create(ctx context.Context) (newMarks bool, err error) {
	_, _, err = s.guard.Mark(ctx, s.prefix)
	newMarks = err != nil // no such table yet; Migrate tells if it is anything else
	if err := s.guard.Migrate(ctx); err != nil {
		return false, err
	}
	for _, name := range []string{"create-account", "create-journal-" + s.dialect.String()} {
		if _, err := s.db.ExecContext(ctx, s.sql[name]); err != nil {
			return newMarks, fmt.Errorf("creating the laboratory's table: %w", err)
		}
	}
	// This mark keeps another run of the laboratory from dropping the table.
	return newMarks, s.guard.Seal(ctx, piton.Fence{Lock: s.prefix, Token: 1, Holder: "prove"})
}

// drop removes the tables and the marks of locks; piton_marks itself only when
// the laboratory made it and nobody else has recorded a mark in it since.
func (s *storage) drop(ctx context.Context, locks []string, dropMarks bool) error {
	var errs []error
	for _, name := range []string{"drop-account", "drop-journal"} {
		_, err := s.db.ExecContext(ctx, s.sql[name])
		errs = append(errs, err)
	}
	forget := s.sql["forget-mark"]
	if s.dialect == sqlguard.MySQL {
		forget = s.sql["forget-mark-mysql"]
	}
	for _, lock := range append(locks, s.prefix) {
		_, err := s.db.ExecContext(ctx, forget, lock)
		errs = append(errs, err)
	}
	if dropMarks {
		errs = append(errs, s.dropMarks(ctx))
	}
	return errors.Join(errs...)
}

func (s *storage) dropMarks(ctx context.Context) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	begin, commit := "BEGIN", "COMMIT"
	if s.dialect == sqlguard.MySQL { // DROP TABLE commits; only LOCK TABLES spans both steps
		begin, commit = "DO 0", "UNLOCK TABLES"
	}
	if _, err := conn.ExecContext(ctx, begin); err != nil {
		return err
	}
	finish := func(err error) error {
		_, endErr := conn.ExecContext(ctx, commit)
		return errors.Join(err, endErr)
	}
	if _, err := conn.ExecContext(ctx, s.sql["exclude-"+s.dialect.String()]); err != nil {
		return finish(err)
	}
	var marks int
	if err := conn.QueryRowContext(ctx, s.sql["marks"]).Scan(&marks); err != nil || marks > 0 {
		return finish(err)
	}
	_, err = conn.ExecContext(ctx, s.sql["drop-marks"])
	return finish(err)
}

func (s *storage) openAccount(ctx context.Context, account string) error {
	_, err := s.db.ExecContext(ctx, s.sql["open-account"], account, int64(initialBalance))
	return err
}

func (s *storage) balance(ctx context.Context, account string) (int64, error) {
	var balance int64
	err := s.db.QueryRowContext(ctx, s.sql["balance"], account).Scan(&balance)
	return balance, err
}

// note appends a line that is not a write: a grant, or a refusal.
func (s *storage) note(ctx context.Context, account, kind string, worker int, token int64) error {
	_, err := s.db.ExecContext(ctx, s.sql["journal-note"], account, kind, worker, token)
	return err
}

// entry is one line of the journal.
type entry struct {
	Seq         int64
	Kind        string // granted, write or refused
	Worker      int
	Token       int64
	Was, Become int64 // with write: the balance before and after it, as the storage had it
}

// The kinds of an [entry].
const (
	kindGranted = "granted"
	kindWrite   = "write"
	kindRefused = "refused"
)

func (s *storage) history(ctx context.Context, account string) ([]entry, error) {
	rows, err := s.db.QueryContext(ctx, s.sql["history"], account)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var entries []entry
	for rows.Next() {
		var e entry
		if err := rows.Scan(&e.Seq, &e.Kind, &e.Worker, &e.Token, &e.Was, &e.Become); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, rows.Err()
}

// write is one accepted write or none.
type write struct {
	account string
	worker  int
	token   int64
	balance int64
}

// put writes w without any rule, as the protection "none" does.
func (s *storage) put(ctx context.Context, w write) error {
	return s.inTx(ctx, func(tx *sql.Tx) error { return s.overwrite(ctx, tx, w) })
}

// putCompare writes w where its token is greater than the row's.
func (s *storage) putCompare(ctx context.Context, w write) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, s.sql["write-compare"], w.balance, w.token, w.account, w.token)
		if err != nil {
			return err
		}
		if changed, err := res.RowsAffected(); err != nil || changed == 0 {
			return errors.Join(errRefused, err)
		}
		return s.journal(ctx, tx, w)
	})
}

// putSealed writes w under the guard.
func (s *storage) putSealed(ctx context.Context, f piton.Fence, w write) error {
	return s.guard.Tx(ctx, f, func(ctx context.Context, tx *sql.Tx) error { return s.overwrite(ctx, tx, w) })
}

func (s *storage) overwrite(ctx context.Context, tx *sql.Tx, w write) error {
	if _, err := tx.ExecContext(ctx, s.sql["write"], w.balance, w.account); err != nil {
		return err
	}
	return s.journal(ctx, tx, w)
}

func (s *storage) journal(ctx context.Context, tx *sql.Tx, w write) error {
	_, err := tx.ExecContext(ctx, s.sql["journal-write"], w.worker, w.token, w.account)
	return err
}

func (s *storage) inTx(ctx context.Context, work func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
