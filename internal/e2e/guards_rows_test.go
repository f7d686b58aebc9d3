package e2e

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/sqlguard"
)

// eachRows runs test with the tables account_balances (token only) and
// held_balances (token and holder), each with the row 1 of balance 100.
func eachRows(t *testing.T, test func(t *testing.T, s *sqlStore, plain, held *sqlguard.Rows)) {
	t.Helper()
	each(t, func(t *testing.T, b sqlBackend, _ string, s *sqlStore) {
		s.exec(t, `CREATE TABLE account_balances (id bigint PRIMARY KEY, balance bigint NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0)`)
		s.exec(t, `CREATE TABLE held_balances (id bigint PRIMARY KEY, balance bigint NOT NULL, seen bigint, holder varchar(64))`)
		s.exec(t, `INSERT INTO account_balances (id, balance) VALUES (1, 100)`)
		s.exec(t, `INSERT INTO held_balances (id, balance) VALUES (1, 100)`)
		plain, err := sqlguard.NewRows(b.dialect, sqlguard.Columns{Table: "account_balances", Key: "id"})
		must(t, err)
		held, err := sqlguard.NewRows(b.dialect, sqlguard.Columns{Table: "held_balances", Key: "id", Token: "seen", Holder: "holder"})
		must(t, err)
		test(t, s, plain, held)
	})
}

func (s *sqlStore) plainTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (s *sqlStore) add(ctx context.Context, r *sqlguard.Rows, f piton.Fence, id, amount int64) error {
	set := "balance = balance + ?"
	if s.dialect == sqlguard.Postgres {
		set = "balance = balance + $1"
	}
	return s.plainTx(ctx, func(tx *sql.Tx) error { return r.Update(ctx, tx, f, id, set, amount) })
}

func (s *sqlStore) read(ctx context.Context, r *sqlguard.Rows, f piton.Fence, id int64) (balance int64, err error) {
	err = s.plainTx(ctx, func(tx *sql.Tx) error {
		return r.Read(ctx, tx, f, id, []string{"balance"}, &balance)
	})
	return balance, err
}

func (s *sqlStore) balance(tb testing.TB, table string) (balance int64) {
	tb.Helper()
	must(tb, s.db.QueryRowContext(tb.Context(), `SELECT balance FROM `+table+` WHERE id = 1`).Scan(&balance))
	return balance
}

func TestGuardRowsUpdate(t *testing.T) {
	eachRows(t, func(t *testing.T, s *sqlStore, plain, held *sqlguard.Rows) {
		ctx := t.Context()
		for name, r := range map[string]*sqlguard.Rows{"account_balances": plain, "held_balances": held} {
			old, young := fence("accounts/1", 101, "a"), fence("accounts/1", 102, "b")
			must(t, s.add(ctx, r, old, 1, 10), s.add(ctx, r, old, 1, 10), s.add(ctx, r, old, 1, 0), s.add(ctx, r, young, 1, 5))
			var stale *piton.StaleError
			if err := s.add(ctx, r, old, 1, 1000); !errors.As(err, &stale) || stale.Fence != old || stale.Mark.Token != 102 {
				t.Errorf("%s: stale update: %v; want a StaleError with 101 and 102", name, err)
			}
			if _, err := s.read(ctx, r, old, 1); !errors.Is(err, piton.ErrStale) {
				t.Errorf("%s: stale read: %v; want ErrStale", name, err)
			}
			if err := s.add(ctx, r, old, 2, 1); !errors.Is(err, sqlguard.ErrNoRow) || errors.Is(err, piton.ErrStale) {
				t.Errorf("%s: update of a missing row: %v; want ErrNoRow", name, err)
			}
			if _, err := s.read(ctx, r, young, 2); !errors.Is(err, sqlguard.ErrNoRow) {
				t.Errorf("%s: read of a missing row: %v; want ErrNoRow", name, err)
			}
			if b := s.balance(t, name); b != 125 {
				t.Errorf("%s: balance %d; want 125", name, b)
			}
		}
	})
}

// An update that changes nothing has 0 changed rows on MySQL and is not stale.
func TestGuardRowsUnchanged(t *testing.T) {
	eachRows(t, func(t *testing.T, s *sqlStore, plain, held *sqlguard.Rows) {
		f := fence("accounts/1", 7, "a")
		for range 3 {
			must(t, s.add(t.Context(), plain, f, 1, 0), s.add(t.Context(), held, f, 1, 0))
		}
	})
}

func TestGuardRowsReadSeals(t *testing.T) {
	eachRows(t, func(t *testing.T, s *sqlStore, plain, held *sqlguard.Rows) {
		ctx := t.Context()
		for name, r := range map[string]*sqlguard.Rows{"account_balances": plain, "held_balances": held} {
			old, young := fence("accounts/1", 101, "a"), fence("accounts/1", 102, "b")
			if b, err := s.read(ctx, r, old, 1); b != 100 || err != nil {
				t.Fatalf("%s: read: %d, %v; want 100", name, b, err)
			}
			if b, err := s.read(ctx, r, young, 1); b != 100 || err != nil {
				t.Fatalf("%s: read: %d, %v; want 100", name, b, err)
			}
			if err := s.add(ctx, r, old, 1, 10); !errors.Is(err, piton.ErrStale) {
				t.Errorf("%s: the old holder wrote between the new one's read and write: %v", name, err)
			}
			must(t, s.add(ctx, r, young, 1, 5))
			if b := s.balance(t, name); b != 105 {
				t.Errorf("%s: balance %d; want 105", name, b)
			}
		}
	})
}

func TestGuardRowsHolder(t *testing.T) {
	eachRows(t, func(t *testing.T, s *sqlStore, _, held *sqlguard.Rows) {
		ctx := t.Context()
		first := fence("accounts/1", 5, "Holder")
		must(t, s.add(ctx, held, first, 1, 1))
		for _, other := range []string{"other", "holder", "Holder "} {
			f := fence("accounts/1", 5, other)
			var stale *piton.StaleError
			if err := s.add(ctx, held, f, 1, 1); !errors.As(err, &stale) || stale.Mark != first {
				t.Errorf("same token by %q: %v; want a StaleError with the mark of %q", other, err, first.Holder)
			}
		}
	})
}

// An update that waits for the row sees what the one before it has recorded.
func TestGuardRowsConcurrent(t *testing.T) {
	eachRows(t, func(t *testing.T, s *sqlStore, plain, _ *sqlguard.Rows) {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		old, young := fence("accounts/1", 101, "a"), fence("accounts/1", 102, "b")
		waiting := make(chan error, 1)
		must(t, s.plainTx(ctx, func(tx *sql.Tx) error {
			var balance int64
			err := plain.Read(ctx, tx, young, 1, []string{"balance"}, &balance)
			go func() { waiting <- s.add(ctx, plain, old, 1, 10) }()
			eventually(t, func() bool { return s.db.Stats().InUse == 2 }, "the second writer has not begun")
			return err
		}))
		if err := <-waiting; !errors.Is(err, piton.ErrStale) {
			t.Errorf("the older writer that waited: %v; want ErrStale", err)
		}
	})
}

func TestGuardRowsRefusesNames(t *testing.T) {
	for _, c := range []sqlguard.Columns{
		{Table: "", Key: "id"},
		{Table: "a; DROP TABLE b", Key: "id"},
		{Table: "a", Key: `i"d`},
		{Table: "a.b.c", Key: "id"},
		{Table: "a", Key: "id", Token: "1t"},
		{Table: "a", Key: "id", Holder: "`h`"},
		{Table: ".a", Key: "id"},
		{Table: strings.Repeat("a", 64), Key: "id"},
	} {
		if _, err := sqlguard.NewRows(sqlguard.Postgres, c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	if _, err := sqlguard.NewRows(0, sqlguard.Columns{Table: "a", Key: "id"}); err == nil {
		t.Error("dialect 0 was accepted")
	}
	if _, err := sqlguard.NewRows(sqlguard.MySQL, sqlguard.Columns{Table: "shop.accounts", Key: "id"}); err != nil {
		t.Errorf("a table with its schema: %v", err)
	}
}
