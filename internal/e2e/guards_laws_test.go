package e2e

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/guardtest"
	"github.com/pitonlock/piton/sqlguard"
)

func TestGuardLaws(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, dsn string, s *sqlStore) {
		guardtest.Run(t, b.harness(dsn, s))
	})
}

func TestGuardMigrateIsRepeatable(t *testing.T) {
	each(t, func(t *testing.T, _ sqlBackend, _ string, s *sqlStore) {
		f := piton.Fence{Lock: "migrate", Token: 3, Holder: "h"}
		must(t, s.Seal(t.Context(), f), s.Migrate(t.Context()))
		if mark, ok, err := s.Mark(t.Context(), f.Lock); mark != f || !ok || err != nil {
			t.Errorf("mark after the second Migrate: %v, %v, %v; want %v", mark, ok, err, f)
		}
	})
}

func TestGuardMigrateInManyProcesses(t *testing.T) {
	for _, b := range sqlBackends {
		t.Run(b.name, func(t *testing.T) {
			s := b.open(t, b.dsn(t))
			results := make(chan error, 8)
			for range cap(results) {
				go func() { results <- s.Migrate(t.Context()) }()
			}
			for range cap(results) {
				if err := <-results; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestGuardWithoutTable(t *testing.T) {
	for _, b := range sqlBackends {
		t.Run(b.name, func(t *testing.T) {
			s := b.open(t, b.dsn(t))
			f := piton.Fence{Lock: "l", Token: 1, Holder: "h"}
			_, _, markErr := s.Mark(t.Context(), f.Lock)
			for verb, err := range map[string]error{
				"seal": s.Seal(t.Context(), f),
				"tx":   s.put(t.Context(), f, "k", 1),
				"mark": markErr,
			} {
				if err == nil || !strings.Contains(err.Error(), "call Migrate") || errors.Is(err, piton.ErrNotSealed) {
					t.Errorf("%s without the table: %v; want an error that says to call Migrate", verb, err)
				}
			}
			if n := s.db.Stats().InUse; n != 0 {
				t.Errorf("%d connections in use after the errors", n)
			}
		})
	}
}

func TestGuardWithoutPrivileges(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, dsn string, s *sqlStore) {
		var low string
		switch b.dialect {
		case sqlguard.Postgres:
			s.exec(t, `DROP TABLE piton_marks`)
			s.exec(t, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
			s.exec(t, `DO $$ BEGIN CREATE ROLE piton_low LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`)
			low = withUser(t, dsn, "piton_low")
		case sqlguard.MySQL:
			s.exec(t, `DROP TABLE piton_marks`)
			s.exec(t, `CREATE USER IF NOT EXISTS piton_low@'127.0.0.1'`)
			s.exec(t, `GRANT SELECT ON `+databaseOf(t, s)+`.* TO piton_low@'127.0.0.1'`)
			low = withUser(t, dsn, "piton_low")
		default:
			s.exec(t, `DROP TABLE piton_marks`)
			low = dsn + "&mode=ro"
		}
		err := b.open(t, low).Migrate(t.Context())
		if err == nil || !strings.Contains(err.Error(), "DDL") || !strings.Contains(err.Error(), "may not create") {
			t.Errorf("migrate without the privilege: %v; want an error that names DDL", err)
		}
	})
}

func databaseOf(tb testing.TB, s *sqlStore) (name string) {
	tb.Helper()
	if err := s.db.QueryRowContext(tb.Context(), `SELECT DATABASE()`).Scan(&name); err != nil {
		tb.Fatal(err)
	}
	return name
}

func TestGuardNewRefuses(t *testing.T) {
	if _, err := sqlguard.New(nil, sqlguard.Postgres); err == nil {
		t.Error("a nil database was accepted")
	}
	for _, d := range []sqlguard.Dialect{0, 4, -1} {
		if _, err := sqlguard.New(&sql.DB{}, d); err == nil || !strings.Contains(err.Error(), "sqlguard.MySQL") {
			t.Errorf("dialect %d: %v; want an error that names the dialects", int(d), err)
		}
	}
}
