package e2e

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/sqlguard"
)

// runScript writes one number in a transaction that AdmitScript begins.
func (s *sqlStore) runScript(ctx context.Context, tb testing.TB, f piton.Fence, v int64) (*sql.Tx, error) {
	tb.Helper()
	script, err := sqlguard.AdmitScript(s.dialect, f)
	must(tb, err)
	tx, err := s.db.BeginTx(ctx, nil)
	must(tb, err)
	statements := []string{script}
	if s.dialect == sqlguard.MySQL { // its driver takes them one by one
		statements = strings.Split(strings.TrimSuffix(script, ";\n"), ";\n")
	}
	for _, statement := range statements {
		rows, err := tx.QueryContext(ctx, statement)
		if err == nil {
			for rows.Next() {
			}
			err = rows.Err()
			_ = rows.Close()
		}
		if err != nil {
			_ = tx.Rollback()
			return nil, err
		}
	}
	return tx, numbers{tx, s.dialect}.Write(ctx, "k", v)
}

func TestAdmitScript(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, _ string, s *sqlStore) {
		odd := "a 'quoted' \"name\" \\ with {braces} and 🔒 :token; -- $piton$"
		old, mark := fence(odd, 5, "a"), fence(odd, 7, "b")
		must(t, s.Seal(t.Context(), old), s.Seal(t.Context(), mark), s.Seal(t.Context(), fence("other", 7, "b")))
		for name, f := range map[string]piton.Fence{
			"older":               old,
			"same token, another": fence(odd, 7, "a"),
			"never sealed":        fence(odd, 8, "b"),
			"unknown lock":        fence(odd+" ", 7, "b"),
		} {
			if _, err := s.runScript(t.Context(), t, f, 666); err == nil {
				t.Errorf("%s: admitted", name)
			} else {
				t.Logf("%s: %v", name, err)
			}
		}
		if v := s.value(t, "k"); v != 0 {
			t.Fatalf("a refused script wrote %d", v)
		}

		// The newer seal waits for what the script has admitted.
		tx, err := s.runScript(t.Context(), t, mark, 1)
		must(t, err)
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := s.Seal(short, fence(odd, 9, "c")); err == nil {
			t.Error("a newer seal did not wait for the open transaction")
		}
		must(t, tx.Commit(), s.Seal(t.Context(), fence(odd, 9, "c")))
		if v := s.value(t, "k"); v != 1 {
			t.Errorf("value %d; want what the script's transaction wrote", v)
		}
	})
}
