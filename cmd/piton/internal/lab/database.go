//go:build linux

package lab

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"time"

	"github.com/pitonlock/piton/sqlguard"
	"golang.org/x/sys/unix"
)

//go:embed usual.sql
var usualSQL string

// sqlServer is a database: PostgreSQL, MySQL, MariaDB, or a SQLite file.
type sqlServer struct {
	db      *sql.DB
	dialect sqlguard.Dialect
	closeDB func() error
	sql     map[string]string
}

func newSQLServer(db *sql.DB, d sqlguard.Dialect, closeDB func() error, prefix string) *sqlServer {
	return &sqlServer{db: db, dialect: d, closeDB: closeDB, sql: prepared(usualSQL, prefix, d == sqlguard.Postgres)}
}

func (s *sqlServer) prepare(ctx context.Context) error { return s.exec(ctx, "create") }
func (s *sqlServer) clean(ctx context.Context) error   { return s.exec(ctx, "drop") }
func (s *sqlServer) close() error                      { return s.closeDB() }
func (s *sqlServer) lock(name string) usual            { return sqlLock{s, name} }

func (s *sqlServer) forget(ctx context.Context, name string) error {
	return s.exec(ctx, "forget", name)
}

func (s *sqlServer) exec(ctx context.Context, statement string, args ...any) error {
	_, err := s.db.ExecContext(ctx, s.sql[statement], args...)
	return err
}

// now is the time in ms on the one clock that all users of the locks share.
func (s *sqlServer) now(ctx context.Context) (ms int64, err error) {
	if s.dialect != sqlguard.SQLite {
		err = s.db.QueryRowContext(ctx, s.sql["now-"+s.dialect.String()]).Scan(&ms)
		return ms, err
	}
	var ts unix.Timespec
	err = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return ts.Nano() / int64(time.Millisecond), err
}

type sqlLock struct {
	*sqlServer
	name string
}

// changed runs a statement and reports whether it changed a row.
func (l sqlLock) changed(ctx context.Context, statement string, args ...any) (bool, error) {
	res, err := l.db.ExecContext(ctx, l.sql[statement], args...)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

func (l sqlLock) take(ctx context.Context, owner string, ttl time.Duration) (bool, error) {
	if err := l.exec(ctx, "add-"+l.dialect.String(), l.name); err != nil {
		return false, err
	}
	now, err := l.now(ctx)
	if err != nil {
		return false, err
	}
	return l.changed(ctx, "take", owner, now+ttl.Milliseconds(), l.name, now)
}

func (l sqlLock) count(ctx context.Context) (n int64, err error) {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	if _, err = tx.ExecContext(ctx, l.sql["increment"], l.name); err == nil {
		err = tx.QueryRowContext(ctx, l.sql["counter"], l.name).Scan(&n)
	}
	if err != nil {
		return 0, errors.Join(err, tx.Rollback())
	}
	return n, tx.Commit()
}

func (l sqlLock) renew(ctx context.Context, owner string, ttl time.Duration) (bool, error) {
	now, err := l.now(ctx)
	if err != nil {
		return false, err
	}
	return l.changed(ctx, "renew", now+ttl.Milliseconds(), l.name, owner, now)
}

func (l sqlLock) release(ctx context.Context, owner string) error {
	return l.exec(ctx, "release", l.name, owner)
}
