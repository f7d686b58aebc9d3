//go:build linux

package lab

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

// server is where the usual locks of one laboratory live, beside Piton's own.
type server interface {
	prepare(ctx context.Context) error
	lock(name string) usual
	// forget deletes what the server knows of the lock name, Piton's records
	// included and nothing else, as a failover that loses writes would.
	forget(ctx context.Context, name string) error
	// clean removes everything that prepare and the locks left.
	clean(ctx context.Context, names []string) error
	close() error
}

//go:embed renew.lua
var renewLua string

//go:embed release.lua
var releaseLua string

var (
	renewScript   = redis.NewScript(renewLua)
	releaseScript = redis.NewScript(releaseLua)
)

type redisServer struct {
	client redis.UniversalClient
}

func (s *redisServer) prepare(ctx context.Context) error { return s.client.Ping(ctx).Err() }

func (s *redisServer) close() error { return s.client.Close() }

func (s *redisServer) lock(name string) usual { return &redisLock{s.client, name} }

// forget finds the keys by the random lock name in them.
func (s *redisServer) forget(ctx context.Context, name string) error {
	scan := s.client.Scan(ctx, 0, "*"+name+"*", 10_000).Iterator()
	for scan.Next(ctx) {
		if err := s.client.Unlink(ctx, scan.Val()).Err(); err != nil {
			return err
		}
	}
	return scan.Err()
}

func (s *redisServer) clean(ctx context.Context, names []string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, s.forget(ctx, name))
	}
	return errors.Join(errs...)
}

type redisLock struct {
	client redis.UniversalClient
	name   string
}

func (l *redisLock) key() string { return "{" + l.name + "}:lock" }

func (l *redisLock) take(ctx context.Context, owner string, ttl time.Duration) (bool, error) {
	err := l.client.SetArgs(ctx, l.key(), owner, redis.SetArgs{Mode: "NX", TTL: ttl}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

func (l *redisLock) count(ctx context.Context) (int64, error) {
	return l.client.Incr(ctx, "{"+l.name+"}:counter").Result()
}

func (l *redisLock) renew(ctx context.Context, owner string, ttl time.Duration) (bool, error) {
	return renewScript.Run(ctx, l.client, []string{l.key()}, owner, ttl.Milliseconds()).Bool()
}

func (l *redisLock) release(ctx context.Context, owner string) error {
	return releaseScript.Run(ctx, l.client, []string{l.key()}, owner).Err()
}

//go:embed embedded.sql
var embeddedSQL string

type sqliteServer struct {
	db  *sql.DB
	sql map[string]string
}

func newSQLiteServer(db *sql.DB, prefix string) *sqliteServer {
	return &sqliteServer{db: db, sql: prepared(embeddedSQL, prefix, false)}
}

func (s *sqliteServer) prepare(ctx context.Context) error {
	return s.exec(ctx, "create-lock", "create-counter")
}

func (s *sqliteServer) exec(ctx context.Context, names ...string) error {
	for _, name := range names {
		if _, err := s.db.ExecContext(ctx, s.sql[name]); err != nil {
			return err
		}
	}
	return nil
}

func (s *sqliteServer) close() error { return s.db.Close() }

func (s *sqliteServer) lock(name string) usual { return &sqliteLock{s, name} }

// bootMillis is the clock that all processes of this machine share.
func bootMillis() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // every Linux since 2.6.39 has it
	}
	return ts.Nano() / int64(time.Millisecond)
}

type sqliteLock struct {
	server *sqliteServer
	name   string
}

// changed runs a statement and reports whether it changed a row.
func (l *sqliteLock) changed(ctx context.Context, name string, args ...any) (bool, error) {
	res, err := l.server.db.ExecContext(ctx, l.server.sql[name], args...)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

func (l *sqliteLock) take(ctx context.Context, owner string, ttl time.Duration) (bool, error) {
	now := bootMillis()
	return l.changed(ctx, "acquire", l.name, owner, now+ttl.Milliseconds(), now)
}

func (l *sqliteLock) count(ctx context.Context) (int64, error) {
	var n int64
	err := l.server.db.QueryRowContext(ctx, l.server.sql["increment"], l.name).Scan(&n)
	return n, err
}

func (l *sqliteLock) renew(ctx context.Context, owner string, ttl time.Duration) (bool, error) {
	now := bootMillis()
	return l.changed(ctx, "renew", now+ttl.Milliseconds(), l.name, owner, now)
}

func (l *sqliteLock) release(ctx context.Context, owner string) error {
	_, err := l.changed(ctx, "release", l.name, owner)
	return err
}

// forget finds the rows by the random lock name in them, wherever Piton keeps
// it. What the same file holds as a storage is none of the coordinator's.
func (s *sqliteServer) forget(ctx context.Context, name string) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := s.forgetIn(ctx, tx, name); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (s *sqliteServer) forgetIn(ctx context.Context, tx *sql.Tx, name string) error {
	// Piton counts the tokens of deleted rows. The count goes back to what it was,
	// which concerns this lock alone: no other is deleted in this transaction.
	var floor int64
	if err := tx.QueryRowContext(ctx, s.sql["floor"]).Scan(&floor); err != nil {
		return err
	}
	deletes, err := s.deletes(ctx, tx)
	if err != nil {
		return err
	}
	for _, statement := range deletes {
		if _, err := tx.ExecContext(ctx, statement, name); err != nil {
			return err
		}
	}
	_, err = tx.ExecContext(ctx, s.sql["forget-floor"], floor)
	return err
}

// deletes are the statements that delete the rows of one lock.
func (s *sqliteServer) deletes(ctx context.Context, tx *sql.Tx) (statements []string, err error) {
	rows, err := tx.QueryContext(ctx, s.sql["columns"])
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var statement string
		if err := rows.Scan(&statement); err != nil {
			return nil, err
		}
		statements = append(statements, statement)
	}
	return statements, rows.Err()
}

func (s *sqliteServer) clean(ctx context.Context, names []string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, s.forget(ctx, name))
	}
	return errors.Join(append(errs, s.exec(ctx, "drop-lock", "drop-counter"))...)
}
