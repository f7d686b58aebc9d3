package sqlitelock_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/locktest"
	"github.com/pitonlock/piton/sqlite/sqlitelock"
)

func TestLaws(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.db")
	keep, err := sqlitelock.Open(path) // makes the tables, and keeps the log
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(keep.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	locktest.Run(t, locktest.Harness{
		New: func(context.Context) (piton.Coordinator, error) { return sqlitelock.Open(path) },
		Forget: func(ctx context.Context) error {
			_, err := db.ExecContext(ctx, "DELETE FROM piton_locks; UPDATE piton_floor SET token = 0, locks = 0")
			return err
		},
		// Free rows are bounded for the whole file: what is above the bound is left.
		Left: func(ctx context.Context, _ string) (left int, err error) {
			err = db.QueryRowContext(ctx, "SELECT MAX(0, COUNT(*) - 10000) FROM piton_locks").Scan(&left)
			return left, err
		},
	})
}
