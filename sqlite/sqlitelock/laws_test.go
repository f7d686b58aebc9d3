package sqlitelock_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

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
	// With as many free rows as may be kept, every further one is too much.
	const bound = 10_000
	first, err := keep.Acquire(t.Context(), piton.Request{Lock: "free", Holder: "h", TTL: time.Minute})
	if err := errors.Join(err, keep.Release(t.Context(), first)); err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), `
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO piton_locks SELECT lock || i, token, holder, owner, ttl_ns, ends_boot_ns, boot_id FROM piton_locks, n WHERE lock = 'free'`, bound)
	if err != nil {
		t.Fatal(err)
	}
	locktest.Run(t, locktest.Harness{
		New: func(context.Context) (piton.Coordinator, error) { return sqlitelock.Open(path) },
		Forget: func(ctx context.Context) error {
			_, err := db.ExecContext(ctx, "DELETE FROM piton_locks WHERE lock NOT LIKE 'free%'; UPDATE piton_floor SET token = 0")
			return err
		},
		// Rows with a huge token, which a law demands, are kept by themselves.
		Left: func(ctx context.Context, _ string) (left int, err error) {
			err = db.QueryRowContext(ctx, "SELECT MAX(0, COUNT(*) - ?) FROM piton_locks WHERE token < 1 << 52", bound+1).Scan(&left)
			return left, err
		},
	})
}
