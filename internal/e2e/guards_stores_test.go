package e2e

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	_ "modernc.org/sqlite"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/guardtest"
	"github.com/pitonlock/piton/sqlguard"
)

// sqlBackend is one driver against one kind of server.
type sqlBackend struct {
	name    string
	driver  string
	dialect sqlguard.Dialect
	dsn     func(tb testing.TB) string // a new, empty database
}

var sqlBackends = []sqlBackend{
	{"postgres-pgx", "pgx", sqlguard.Postgres, postgresDSN},
	{"postgres-pq", "postgres", sqlguard.Postgres, postgresDSN},
	{"mariadb-changed-rows", "mysql", sqlguard.MySQL, func(tb testing.TB) string { return mariadbDSN(tb) + "?clientFoundRows=false" }},
	{"mariadb-found-rows", "mysql", sqlguard.MySQL, func(tb testing.TB) string { return mariadbDSN(tb) + "?clientFoundRows=true&interpolateParams=true" }},
	{"sqlite", "sqlite", sqlguard.SQLite, sqliteDSN},
}

func sqliteDSN(tb testing.TB) string {
	return "file:" + filepath.Join(tb.TempDir(), "guarded.db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
}

// each runs test on every backend, with a migrated guard and the table numbers.
func each(t *testing.T, test func(t *testing.T, b sqlBackend, dsn string, s *sqlStore)) {
	t.Helper()
	for _, b := range sqlBackends {
		t.Run(b.name, func(t *testing.T) {
			dsn := b.dsn(t)
			s := b.open(t, dsn)
			if err := s.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.exec(t, map[sqlguard.Dialect]string{
				sqlguard.Postgres: `CREATE TABLE numbers (k text PRIMARY KEY, v bigint NOT NULL)`,
				sqlguard.MySQL:    `CREATE TABLE numbers (k varchar(600) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, v bigint NOT NULL)`,
				sqlguard.SQLite:   `CREATE TABLE numbers (k text PRIMARY KEY, v integer NOT NULL)`,
			}[b.dialect])
			test(t, b, dsn, s)
		})
	}
}

func (b sqlBackend) open(tb testing.TB, dsn string) *sqlStore {
	tb.Helper()
	s, err := b.connect(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

func (b sqlBackend) connect(dsn string) (*sqlStore, error) {
	db, err := sql.Open(b.driver, dsn)
	if err != nil {
		return nil, err
	}
	guard, err := sqlguard.New(db, b.dialect)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &sqlStore{Guard: guard, db: db, dialect: b.dialect}, nil
}

func (b sqlBackend) harness(dsn string, s *sqlStore) guardtest.Harness {
	return guardtest.Harness{
		Open: func(context.Context) (guardtest.Store, error) { return b.connect(dsn) },
		Marks: func(ctx context.Context, prefix string) (n int, err error) {
			query := map[sqlguard.Dialect]string{
				sqlguard.Postgres: `SELECT count(*) FROM piton_marks WHERE starts_with("lock", $1)`,
				sqlguard.MySQL:    "SELECT count(*) FROM piton_marks WHERE LOCATE(?, `lock`) = 1",
				sqlguard.SQLite:   `SELECT count(*) FROM piton_marks WHERE instr("lock", ?) = 1`,
			}[b.dialect]
			return n, s.db.QueryRowContext(ctx, query, prefix).Scan(&n)
		},
		InUse:     func(s guardtest.Store) int { return s.(*sqlStore).db.Stats().InUse },
		OneWriter: b.dialect == sqlguard.SQLite,
	}
}

// sqlStore is a guard with the table numbers(k, v). Its transactions are the
// caller's own ones, opened by database/sql and admitted.
type sqlStore struct {
	*sqlguard.Guard
	db      *sql.DB
	dialect sqlguard.Dialect
}

func (s *sqlStore) Close() error { return s.db.Close() }

func (s *sqlStore) exec(tb testing.TB, query string, args ...any) {
	tb.Helper()
	if _, err := s.db.ExecContext(tb.Context(), query, args...); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
}

func (s *sqlStore) Begin(ctx context.Context, f piton.Fence) (guardtest.Tx, error) {
	options := &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	if s.dialect == sqlguard.SQLite {
		options = nil
	}
	tx, err := s.db.BeginTx(ctx, options)
	if err != nil {
		return nil, err
	}
	if err := s.Admit(ctx, tx, f); err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return numbers{tx, s.dialect}, nil
}

type numbers struct {
	*sql.Tx
	dialect sqlguard.Dialect
}

func (n numbers) Commit(context.Context) error { return n.Tx.Commit() }

func (n numbers) Rollback(context.Context) error {
	if err := n.Tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

func (n numbers) Read(ctx context.Context, key string) (v int64, err error) {
	query := `SELECT v FROM numbers WHERE k = ?`
	if n.dialect == sqlguard.Postgres {
		query = `SELECT v FROM numbers WHERE k = $1`
	}
	if err = n.QueryRowContext(ctx, query, key).Scan(&v); errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return v, err
}

func (n numbers) Write(ctx context.Context, key string, value int64) error {
	_, err := n.ExecContext(ctx, map[sqlguard.Dialect]string{
		sqlguard.Postgres: `INSERT INTO numbers VALUES ($1, $2) ON CONFLICT (k) DO UPDATE SET v = excluded.v`,
		sqlguard.MySQL:    `INSERT INTO numbers VALUES (?, ?) ON DUPLICATE KEY UPDATE v = VALUES(v)`,
		sqlguard.SQLite:   `INSERT INTO numbers VALUES (?, ?) ON CONFLICT (k) DO UPDATE SET v = excluded.v`,
	}[n.dialect], key, value)
	return err
}

// put writes one number in a guarded transaction.
func (s *sqlStore) put(ctx context.Context, f piton.Fence, key string, value int64) error {
	return s.Tx(ctx, f, func(ctx context.Context, tx *sql.Tx) error {
		return numbers{tx, s.dialect}.Write(ctx, key, value)
	})
}

// value reads a number outside of any guard.
func (s *sqlStore) value(tb testing.TB, key string) int64 {
	tb.Helper()
	tx, err := s.db.BeginTx(tb.Context(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	v, err := numbers{tx, s.dialect}.Read(tb.Context(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func must(tb testing.TB, errs ...error) {
	tb.Helper()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
}
