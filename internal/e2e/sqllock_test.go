package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/locktest"
	"github.com/pitonlock/piton/sqlguard"
	"github.com/pitonlock/piton/sqllock"
)

// sqlLocks are the drivers and servers that sqllock runs on.
func sqlLocks() []sqlBackend {
	var all []sqlBackend
	for _, b := range sqlBackends {
		if b.dialect != sqlguard.SQLite {
			all = append(all, b)
		}
	}
	return all
}

func (b sqlBackend) lockDialect() sqllock.Dialect {
	if b.dialect == sqlguard.Postgres {
		return sqllock.Postgres
	}
	return sqllock.MySQL
}

// sqlClient is a coordinator with connections of its own, as a process has it.
type sqlClient struct {
	*sqllock.Coordinator
	db *sql.DB
}

func (c sqlClient) Close() error { return c.db.Close() }

func (b sqlBackend) client(dsn string) (sqlClient, error) {
	db, err := sql.Open(b.driver, dsn)
	if err != nil {
		return sqlClient{}, err
	}
	c, err := sqllock.New(db, b.lockDialect())
	return sqlClient{c, db}, err
}

// locks is a client on a new database with the tables.
func (b sqlBackend) locks(t *testing.T) (c sqlClient, dsn string) {
	t.Helper()
	dsn = b.dsn(t)
	c, err := b.client(dsn)
	must(t, err, c.Migrate(t.Context()))
	t.Cleanup(func() { must(t, c.Close()) })
	return c, dsn
}

func eachSQLLock(t *testing.T, test func(t *testing.T, b sqlBackend, dsn string, c sqlClient)) {
	for _, b := range sqlLocks() {
		t.Run(b.name, func(t *testing.T) {
			c, dsn := b.locks(t)
			test(t, b, dsn, c)
		})
	}
}

func TestSQLLockLaws(t *testing.T) {
	eachSQLLock(t, func(t *testing.T, b sqlBackend, dsn string, admin sqlClient) {
		locktest.Run(t, locktest.Harness{
			New: func(context.Context) (piton.Coordinator, error) { return b.client(dsn) },
			Forget: func(ctx context.Context) error {
				_, first := admin.db.ExecContext(ctx, "DELETE FROM piton_locks")
				_, second := admin.db.ExecContext(ctx, "UPDATE piton_floor SET token = 0")
				return errors.Join(first, second)
			},
			// Rows are collected ten minutes after their release; see
			// TestSQLLockRowsAreCollected.
			Left: func(context.Context, string) (int, error) { return 0, nil },
		})
	})
}

// Rows that have been free for long are deleted, and their tokens do not return.
func TestSQLLockRowsAreCollected(t *testing.T) {
	eachSQLLock(t, func(t *testing.T, _ sqlBackend, _ string, c sqlClient) {
		take := func(lock string) piton.Grant {
			t.Helper()
			g, err := c.Acquire(t.Context(), piton.Request{Lock: lock, Holder: "h " + lock, TTL: time.Minute})
			must(t, err)
			return g
		}
		high, err := c.Acquire(t.Context(), piton.Request{Lock: "old 0", Holder: "h", TTL: time.Minute, Floor: 1_000_000})
		must(t, err, c.Release(t.Context(), high))
		for n := range 250 {
			must(t, c.Release(t.Context(), take(fmt.Sprint("old ", n+1))))
		}
		held := take("held")
		_, err = c.db.Exec("UPDATE piton_locks SET ends = '2020-01-01 00:00:00' WHERE holder = ''")
		must(t, err)
		for n := range 200 { // collections come by the way
			must(t, c.Release(t.Context(), take(fmt.Sprint("new ", n%3))))
		}
		var rows int
		must(t, c.db.QueryRow("SELECT COUNT(*) FROM piton_locks").Scan(&rows))
		if rows > 4 {
			t.Errorf("%d rows are left; want those of the 3 used names and the held one", rows)
		}
		if g := take("old 0"); g.Token <= high.Token {
			t.Errorf("token %d after %d: the deleted row was forgotten", g.Token, high.Token)
		}
		_, err = c.Renew(t.Context(), held)
		must(t, err)
	})
}

func TestSQLLockSaysWhatIsMissing(t *testing.T) {
	for _, b := range sqlLocks() {
		t.Run(b.name, func(t *testing.T) {
			c, err := b.client(b.dsn(t))
			must(t, err)
			defer func() { must(t, c.Close()) }()
			_, err = c.Acquire(t.Context(), piton.Request{Lock: "a", Holder: "h", TTL: time.Minute})
			if err == nil || !strings.Contains(err.Error(), "call Migrate once") || errors.Is(err, piton.ErrHeld) {
				t.Errorf("without tables: %v", err)
			}
			var all sync.WaitGroup
			for range 6 { // several processes at once, and again
				all.Go(func() {
					if err := c.Migrate(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			must(t, c.Migrate(t.Context()))
			for statement := range strings.SplitSeq(strings.TrimSuffix(c.DDL(), ";\n"), ";\n") {
				if _, err := c.db.Exec(statement); err != nil {
					t.Errorf("DDL again: %v", err)
				}
			}
		})
	}
	if _, err := sqllock.New(nil, sqllock.Postgres); err == nil {
		t.Error("a nil database is accepted")
	}
	if _, err := sqllock.New(new(sql.DB), 0); err == nil || !strings.Contains(err.Error(), "sqllock.Postgres") {
		t.Errorf("no dialect: %v", err)
	}
}

// New rows, old rows and collections at once, by several clients: tokens of each
// lock grow, and nothing but the outcome "unknown" disturbs.
func TestSQLLockUnderContention(t *testing.T) {
	eachSQLLock(t, func(t *testing.T, b sqlBackend, dsn string, _ sqlClient) {
		var mu sync.Mutex
		last := map[string]piton.Token{}
		var all sync.WaitGroup
		for worker := range 6 {
			all.Go(func() {
				c, err := b.client(dsn)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				for n := range 60 {
					lock := fmt.Sprint("lock ", (n*7+worker)%40)
					g, err := c.Acquire(t.Context(), piton.Request{Lock: lock, Holder: fmt.Sprint(worker, " ", n), TTL: time.Minute})
					if errors.Is(err, piton.ErrHeld) {
						continue
					}
					if err != nil {
						t.Errorf("acquire: %v", err)
						return
					}
					mu.Lock()
					if g.Token <= last[lock] {
						t.Errorf("%s: token %d after %d", lock, g.Token, last[lock])
					}
					last[lock] = g.Token
					mu.Unlock()
					if err := c.Release(t.Context(), g); err != nil {
						t.Errorf("release: %v", err)
					}
				}
			})
		}
		all.Wait()
	})
}

func TestSQLLockRenewsInBatches(t *testing.T) {
	eachSQLLock(t, func(t *testing.T, _ sqlBackend, _ string, c sqlClient) {
		var grants []piton.Grant
		for n := range 300 {
			g, err := c.Acquire(t.Context(), piton.Request{Lock: fmt.Sprintf("%d: \"odd\" \\ 🧗 ", n), Holder: fmt.Sprint("h'", n), TTL: 20 * time.Second})
			must(t, err)
			grants = append(grants, g)
		}
		must(t, c.Release(t.Context(), grants[7]))
		ok, err := c.Break(t.Context(), grants[8].Lock, grants[8].Token)
		must(t, err)
		other, err := c.Acquire(t.Context(), piton.Request{Lock: grants[8].Lock, Holder: "other", TTL: time.Minute})
		must(t, err)
		for i := range grants {
			grants[i].TTL = time.Minute
		}
		invalid := grants[9]
		grants[9].Lock = ""
		for i, r := range c.RenewBatch(t.Context(), grants) {
			var lost *piton.LostError
			switch {
			case i == 7:
				if !errors.As(r.Err, &lost) || lost.Reason != piton.ReasonExpired {
					t.Errorf("released: %v", r.Err)
				}
			case i == 8:
				if !ok || !errors.As(r.Err, &lost) || lost.Reason != piton.ReasonTaken || lost.By != other.Token {
					t.Errorf("taken: %v", r.Err)
				}
			case i == 9:
				if r.Err == nil || errors.Is(r.Err, piton.ErrLost) {
					t.Errorf("invalid: %v", r.Err)
				}
			case r.Err != nil || r.Grant != grants[i]:
				t.Fatalf("renewal %d: %v, %v", i, r.Grant, r.Err)
			}
		}
		for _, g := range []piton.Grant{grants[0], grants[299]} {
			if held, _, err := c.Get(t.Context(), g.Lock); err != nil || held.Remaining < 50*time.Second {
				t.Errorf("%q: %v left, %v", g.Lock, held.Remaining, err)
			}
		}
		if held, _, err := c.Get(t.Context(), invalid.Lock); err != nil || held.Remaining > 20*time.Second {
			t.Errorf("not renewed, and %v left, %v", held.Remaining, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, r := range c.RenewBatch(ctx, grants[:3]) {
			if r.Err == nil || errors.Is(r.Err, piton.ErrLost) {
				t.Errorf("with a context that has ended: %v; want unknown", r.Err)
			}
		}
	})
}

// Behind a pooler each transaction may be another connection. The drivers are told
// not to prepare a statement in one and use it in the next.
func TestSQLLockBehindATransactionPooler(t *testing.T) {
	postgres := servertest.SharedPostgres(t)
	pooler := servertest.StartPgBouncer(t, postgres)
	for _, b := range sqlLocks() {
		if b.lockDialect() != sqllock.Postgres {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			dsn := pooler.Through(t, postgres.NewDatabase(t).DSN())
			dsn += map[string]string{"pgx": "&default_query_exec_mode=exec", "postgres": "&binary_parameters=yes"}[b.driver]
			admin, err := b.client(dsn)
			must(t, err, admin.Migrate(t.Context()))
			defer func() { must(t, admin.Close()) }()
			locktest.Run(t, locktest.Harness{
				New: func(context.Context) (piton.Coordinator, error) { return b.client(dsn) },
				Forget: func(ctx context.Context) error {
					_, err := admin.db.ExecContext(ctx, "DELETE FROM piton_locks")
					return err
				},
				Left: func(context.Context, string) (int, error) { return 0, nil },
			})
		})
	}
}
