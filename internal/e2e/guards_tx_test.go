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

func fence(lock string, token piton.Token, holder string) piton.Fence {
	return piton.Fence{Lock: lock, Token: token, Holder: holder}
}

func TestGuardTxCommits(t *testing.T) {
	each(t, func(t *testing.T, _ sqlBackend, _ string, s *sqlStore) {
		f := fence("commits", 5, "a")
		must(t, s.Seal(t.Context(), f), s.put(t.Context(), f, "k", 1), s.put(t.Context(), f, "k", 2))
		if v := s.value(t, "k"); v != 2 {
			t.Errorf("value %d after two commits; want 2", v)
		}
	})
}

func TestGuardTxRollsBack(t *testing.T) {
	mine := errors.New("mine")
	each(t, func(t *testing.T, _ sqlBackend, _ string, s *sqlStore) {
		f := fence("rolls back", 5, "a")
		must(t, s.Seal(t.Context(), f))
		write := func(ctx context.Context, tx *sql.Tx) error { return numbers{tx, s.dialect}.Write(ctx, "k", 1) }

		t.Run("error", func(t *testing.T) {
			err := s.Tx(t.Context(), f, func(ctx context.Context, tx *sql.Tx) error {
				must(t, write(ctx, tx))
				return mine
			})
			if !errors.Is(err, mine) || errors.Is(err, piton.ErrUnknown) {
				t.Errorf("got %v; want the function's own error", err)
			}
		})
		t.Run("panic", func(t *testing.T) {
			defer func() {
				if recover() != "boom" {
					t.Error("the panic did not go on")
				}
			}()
			_ = s.Tx(t.Context(), f, func(ctx context.Context, tx *sql.Tx) error {
				must(t, write(ctx, tx))
				panic("boom")
			})
		})
		t.Run("lease lost", func(t *testing.T) {
			ctx, lose := context.WithCancelCause(t.Context())
			err := s.Tx(ctx, f, func(ctx context.Context, tx *sql.Tx) error {
				must(t, write(ctx, tx))
				lose(&piton.LostError{Lock: f.Lock, Token: f.Token, Reason: piton.ReasonRenewal})
				return nil
			})
			if !errors.Is(err, piton.ErrLost) || errors.Is(err, piton.ErrUnknown) {
				t.Errorf("got %v; want an error that wraps ErrLost and not ErrUnknown", err)
			}
		})
		t.Run("lease lost in a statement", func(t *testing.T) {
			ctx, lose := context.WithCancelCause(t.Context())
			err := s.Tx(ctx, f, func(ctx context.Context, tx *sql.Tx) error {
				must(t, write(ctx, tx))
				lose(&piton.LostError{Lock: f.Lock, Token: f.Token, Reason: piton.ReasonExpired})
				return write(ctx, tx)
			})
			if !errors.Is(err, piton.ErrLost) {
				t.Errorf("got %v; want an error that wraps ErrLost", err)
			}
		})
		t.Run("dead context", func(t *testing.T) {
			ctx, lose := context.WithCancelCause(t.Context())
			lose(piton.ErrReleased)
			if err := s.put(ctx, f, "k", 1); !errors.Is(err, piton.ErrReleased) {
				t.Errorf("got %v; want the cause of the context", err)
			}
			if err := s.Seal(ctx, f); !errors.Is(err, piton.ErrReleased) {
				t.Errorf("seal: got %v; want the cause of the context", err)
			}
		})
		if v := s.value(t, "k"); v != 0 {
			t.Errorf("value %d after rollbacks only; want 0", v)
		}
		must(t, s.put(t.Context(), f, "k", 3))
		eventually(t, func() bool { return s.db.Stats().InUse == 0 }, "a connection is still in use")
	})
}

// When the lease ends, database/sql rolls back by itself, and says that it does
// before it has. Settings of the session that are put back in between would commit
// on MySQL, where setting autocommit ends the transaction: so nothing more is said
// on that connection.
func TestGuardTxEndedElsewhereGivesNoConnectionBack(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, _ string, s *sqlStore) {
		if b.dialect != sqlguard.MySQL {
			return // putting settings back commits nothing elsewhere
		}
		s.db.SetMaxOpenConns(1)
		f := fence("given back", 5, "a")
		must(t, s.Seal(t.Context(), f))
		ctx, lose := context.WithCancelCause(t.Context())
		var inside, after int64
		err := s.Tx(ctx, f, func(ctx context.Context, tx *sql.Tx) error {
			must(t, numbers{tx, s.dialect}.Write(ctx, "k", 1),
				tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&inside))
			lose(&piton.LostError{Lock: f.Lock, Token: f.Token, Reason: piton.ReasonExpired})
			for {
				if _, err := tx.ExecContext(context.WithoutCancel(ctx), "DO 0"); errors.Is(err, sql.ErrTxDone) {
					return nil
				}
			}
		})
		if !errors.Is(err, piton.ErrLost) {
			t.Errorf("got %v; want an error that wraps ErrLost", err)
		}
		must(t, s.db.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&after))
		if after == inside {
			t.Errorf("connection %d is used again", inside)
		}
		if v := s.value(t, "k"); v != 0 {
			t.Errorf("value %d after a rollback; want 0", v)
		}
	})
}

// A statement failed, the function said nothing: PostgreSQL answers COMMIT with
// a rollback, and that is neither success nor unknown.
func TestGuardTxSwallowedError(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, _ string, s *sqlStore) {
		if b.dialect != sqlguard.Postgres {
			return // a failed statement does not doom the transaction elsewhere
		}
		f := fence("swallowed", 5, "a")
		must(t, s.Seal(t.Context(), f))
		err := s.Tx(t.Context(), f, func(ctx context.Context, tx *sql.Tx) error {
			must(t, numbers{tx, s.dialect}.Write(ctx, "k", 1))
			_, _ = tx.ExecContext(ctx, "SELECT 1/0")
			return nil
		})
		if err == nil || errors.Is(err, piton.ErrUnknown) || !strings.Contains(err.Error(), "refused COMMIT") {
			t.Errorf("got %v; want a refused COMMIT", err)
		}
		if v := s.value(t, "k"); v != 0 {
			t.Errorf("value %d; want 0", v)
		}
	})
}

func TestGuardTxRestoresTheConnection(t *testing.T) {
	query := map[sqlguard.Dialect]string{
		sqlguard.Postgres: `SELECT current_setting('lock_timeout') || current_setting('statement_timeout') || current_setting('idle_in_transaction_session_timeout')`,
		sqlguard.MySQL:    `SELECT CONCAT_WS(' ', @@innodb_lock_wait_timeout, @@idle_transaction_timeout, @@max_statement_time)`,
		sqlguard.SQLite:   `PRAGMA busy_timeout`,
	}
	each(t, func(t *testing.T, b sqlBackend, _ string, s *sqlStore) {
		s.db.SetMaxOpenConns(1)
		var before, inside, after string
		must(t, s.db.QueryRowContext(t.Context(), query[b.dialect]).Scan(&before))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		f := fence("restores", 1, "a")
		must(t, s.Seal(ctx, f), s.Tx(ctx, f, func(ctx context.Context, tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, query[b.dialect]).Scan(&inside)
		}))
		must(t, s.db.QueryRowContext(t.Context(), query[b.dialect]).Scan(&after))
		if b.dialect == sqlguard.MySQL && !strings.HasPrefix(inside, "2 2 1.") {
			t.Errorf("settings inside %q; want both waits at 2 s and statements just below", inside)
		}
		if inside == before || after != before {
			t.Errorf("settings before %q, inside %q, after %q; want them bounded inside and as before afterwards", before, inside, after)
		}
	})
}

// The bounds only ever lower what the user has set.
func TestGuardTxKeepsLowerBounds(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, _ string, s *sqlStore) {
		if b.dialect != sqlguard.Postgres {
			return
		}
		s.db.SetMaxOpenConns(1)
		s.exec(t, `SET lock_timeout = '1234ms'`)
		s.exec(t, `SET statement_timeout = '1h'`)
		f := fence("lower", 1, "a")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var lock, statement string
		must(t, s.Seal(ctx, f), s.Tx(ctx, f, func(ctx context.Context, tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT current_setting('lock_timeout'), current_setting('statement_timeout')`).Scan(&lock, &statement)
		}))
		if lock != "1234ms" || statement == "1h" || statement == "0" {
			t.Errorf("lock_timeout %s, statement_timeout %s; want 1234ms and less than 20s", lock, statement)
		}
	})
}

// THEORY: "EvalPlanQual trap". A fence in the data statement is not read again
// after the wait for the data row; the guard's own first statement is.
func TestGuardClosesTheSubqueryTrap(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, _ string, s *sqlStore) {
		if b.dialect != sqlguard.Postgres {
			return
		}
		ctx := t.Context()
		old, young := fence("trap", 101, "a"), fence("trap", 102, "b")
		must(t, s.Seal(ctx, old), s.put(ctx, old, "k", 100))
		const naive = `UPDATE numbers SET v = v + 10 WHERE k = 'k' AND EXISTS (SELECT 1 FROM piton_marks WHERE "lock" = 'trap' AND token <= 101)`

		blocker, err := s.db.BeginTx(ctx, nil)
		must(t, err)
		defer func() { _ = blocker.Rollback() }()
		_, err = blocker.ExecContext(ctx, `SELECT v FROM numbers WHERE k = 'k' FOR UPDATE`)
		must(t, err)
		done := make(chan int64, 1)
		go func() {
			r, err := s.db.ExecContext(ctx, naive)
			if err != nil {
				done <- -1
				return
			}
			n, _ := r.RowsAffected()
			done <- n
		}()
		eventually(t, func() bool {
			var n int
			must(t, s.db.QueryRowContext(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n))
			return n == 1
		}, "the naive statement does not wait for the row")
		must(t, s.Seal(ctx, young))
		if v := s.value(t, "k"); v != 100 {
			t.Fatalf("value %d; want 100", v)
		}
		must(t, blocker.Commit())
		if n := <-done; n != 1 {
			t.Fatalf("the naive statement changed %d rows; this test relies on its being wrong", n)
		}
		if err := s.put(ctx, old, "k", 7); !errors.Is(err, piton.ErrStale) {
			t.Errorf("guarded write of the old holder: %v; want ErrStale", err)
		}
	})
}

// A REPEATABLE READ transaction of the caller's own that has read before it was
// admitted would compute from a state older than the seal.
func TestGuardAdmitNoticesAnOldSnapshot(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, _ string, s *sqlStore) {
		if b.dialect == sqlguard.SQLite {
			return // reads and writes of one transaction are of one state; the upgrade is refused as busy
		}
		ctx := t.Context()
		old, young := fence("snapshot", 1, "a"), fence("snapshot", 2, "b")
		must(t, s.Seal(ctx, old), s.put(ctx, old, "k", 100))
		tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		must(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = numbers{tx, s.dialect}.Read(ctx, "k")
		must(t, err, s.put(ctx, old, "k", 150), s.Seal(ctx, young))
		err = s.Admit(ctx, tx, young)
		if err == nil || errors.Is(err, piton.ErrStale) {
			t.Fatalf("admit after an early read: %v; want it refused, but not as stale", err)
		}
		if b.dialect == sqlguard.MySQL && !errors.Is(err, piton.ErrNotSealed) {
			t.Errorf("admit after an early read: %v; want ErrNotSealed", err)
		}
		must(t, tx.Rollback())

		tx, err = s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		must(t, err, s.Admit(ctx, tx, young))
		if v, err := (numbers{tx, s.dialect}).Read(ctx, "k"); v != 150 || err != nil {
			t.Errorf("read after admit as the first statement: %d, %v; want 150", v, err)
		}
		must(t, tx.Commit())
	})
}

// eventually polls until ok, for at most ten seconds.
func eventually(tb testing.TB, ok func() bool, otherwise string) {
	tb.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	end := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-ticker.C:
		case <-end:
			tb.Fatal(otherwise)
		}
	}
}
