package e2e

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/sqlguard"
)

// A deadline beyond what the servers' own limits can say is none for them.
func TestGuardWithAFarDeadline(t *testing.T) {
	each(t, func(t *testing.T, _ sqlBackend, _ string, s *sqlStore) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*24*time.Hour)
		defer cancel()
		f := piton.Fence{Lock: "a", Token: 1, Holder: "h"}
		must(t, s.Seal(ctx, f), s.Tx(ctx, f, func(context.Context, *sql.Tx) error { return nil }))
	})
}

// A statement that commits by itself, as MySQL's TRUNCATE, ends the admission. What
// follows it is committed only if the fence is still the newest.
func TestGuardImplicitCommit(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, _ string, s *sqlStore) {
		if b.dialect == sqlguard.SQLite {
			return // has none, and one writer
		}
		s.exec(t, "CREATE TABLE scratch (k integer)")
		old, newer := piton.Fence{Lock: "a", Token: 1, Holder: "h1"}, piton.Fence{Lock: "a", Token: 2, Holder: "h2"}
		must(t, s.Seal(t.Context(), old))
		write := func(key string, between func()) error {
			return s.Tx(t.Context(), old, func(ctx context.Context, tx *sql.Tx) error {
				truncate := "TRUNCATE TABLE scratch"
				if _, err := tx.ExecContext(ctx, truncate); err != nil {
					return err
				}
				between()
				_, err := tx.ExecContext(ctx, "INSERT INTO numbers (k, v) VALUES ('"+key+"', 1)")
				return err
			})
		}
		must(t, write("in time", func() {}))
		var sealed error
		err := write("late", func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			sealed = s.Seal(ctx, newer)
		})
		switch {
		case sealed == nil && !errors.Is(err, piton.ErrStale):
			t.Errorf("a newer fence was sealed, and then: %v", err)
		case sealed != nil && err != nil:
			t.Errorf("nothing newer was sealed (%v), and yet: %v", sealed, err)
		}
		var late int
		must(t, s.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM numbers WHERE k = 'late'").Scan(&late))
		if (late == 1) != (err == nil) {
			t.Errorf("Tx returned %v, and %d rows of it are there", err, late)
		}
		// The session is as it was.
		must(t, s.Tx(t.Context(), map[bool]piton.Fence{true: newer, false: old}[sealed == nil], func(context.Context, *sql.Tx) error { return nil }))
		s.exec(t, "INSERT INTO numbers (k, v) VALUES ('plain', 1)")
		var plain int
		must(t, s.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM numbers WHERE k = 'plain'").Scan(&plain))
		if plain != 1 {
			t.Error("autocommit is off after a guarded transaction")
		}
	})
}
