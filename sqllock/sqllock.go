// Package sqllock is the coordinator of piton in a SQL database, over
// database/sql: PostgreSQL, and MySQL or MariaDB. For SQLite, where all processes
// share one machine, use sqlite/sqlitelock, which needs no wall clock.
//
//	coordinator, err := sqllock.New(db, sqllock.Postgres)
//	err = coordinator.Migrate(ctx) // once
//	locker, err := piton.New(coordinator)
//
// # Time
//
// The server's clock alone decides when a lease ends, read by the statement that
// decides (clock_timestamp(), UTC_TIMESTAMP); no
// client's clock is compared with it. A server whose clock is set forward by more
// than what is left of a lease ends it early, and the holder is not told before
// its next renewal; one set back makes others wait for as long. Attach a guard,
// and keep the clock slewed.
//
// # Tokens and rows
//
// One row per lock in piton_locks knows the last token, and is counted up in the
// statement that takes it. Each step is one statement, so that nothing stays locked
// when its sender freezes. Now and then an acquisition deletes up to 100 rows
// that have been free for more than 10 minutes; the greatest token of them becomes the
// floor (piton_floor) above which locks without a row start. So tokens never go
// back, and what is left is bounded by how many names are used in 10 minutes. On
// PostgreSQL synchronous_commit=off is not honoured, since a grant that a crash
// forgets would be granted twice.
//
// No advisory locks and no session state are used, so transaction poolers such as
// PgBouncer work, if the driver does not prepare a statement in one transaction
// and use it in the next: pgx with default_query_exec_mode=exec in its URL, lib/pq
// with binary_parameters=yes.
//
// # Errors and cancellation
//
// Refusals are the errors that piton defines; any other error means unknown, and
// asking again under the same holder is safe. Calls end with their context as
// the driver does it. Waiting is by polling (by push with postgres/pgxlock); many
// leases are renewed at once.
package sqllock

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/sqlerr"
	"github.com/pitonlock/piton/internal/sqlfile"
)

var (
	_ piton.Coordinator  = (*Coordinator)(nil)
	_ piton.BatchRenewer = (*Coordinator)(nil)
	_ piton.Inspector    = (*Coordinator)(nil)
	_ piton.Breaker      = (*Coordinator)(nil)
)

// Dialect says which SQL a database speaks.
type Dialect int

// The dialects. The zero value is none of them, so that a forgotten dialect is
// refused by [New].
const (
	Postgres Dialect = iota + 1 // PostgreSQL 10 or newer
	MySQL                       // MySQL 5.7 or newer, MariaDB 10.3 or newer
)

// String returns the name of the dialect, for messages.
func (d Dialect) String() string {
	switch d {
	case Postgres:
		return "postgres"
	case MySQL:
		return "mysql"
	}
	return fmt.Sprintf("Dialect(%d)", int(d))
}

// Channel is the channel on which PostgreSQL tells the names of locks that were
// released or broken (NOTIFY). Package postgres/pgxlock listens to it.
const Channel = "piton_end"

const (
	longestOwner  = 2000 // bytes of the label that are kept
	freeFor       = 10 * time.Minute
	collectEvery  = 32  // acquisitions
	longestHolder = 512 // bytes
	collectWithin = 2 * time.Second
	mostTries     = 3 // when rows come and go meanwhile
)

//go:embed postgres.sql
var postgresSQL string

//go:embed mysql.sql
var mysqlSQL string

// Coordinator grants leases in one database. It is safe for concurrent use and
// does not close the *sql.DB. [New] makes one.
type Coordinator struct {
	db       *sql.DB
	dialect  Dialect
	sql      map[string]statement
	acquired atomic.Int64
}

// New returns a coordinator over db. It sends nothing: a database that is away
// or has no piton_locks shows at the first use.
func New(db *sql.DB, d Dialect) (*Coordinator, error) {
	if db == nil {
		return nil, errors.New("sqllock: the database is nil; want an open *sql.DB")
	}
	c := &Coordinator{db: db, dialect: d}
	switch d {
	case Postgres:
		c.sql = native(sqlfile.Named(postgresSQL))
	case MySQL:
		c.sql = positional(sqlfile.Named(mysqlSQL))
	default:
		return nil, fmt.Errorf("sqllock: unknown dialect %d; want sqllock.Postgres or sqllock.MySQL", d)
	}
	if err := sqlerr.CheckDriver(db, d.String()); err != nil {
		return nil, fmt.Errorf("sqllock: %w", err)
	}
	return c, nil
}

var creations = []string{"create-locks", "create-index", "create-floor", "create-first"}

// DDL returns the statements that create the tables, for people who run their
// migrations themselves. The application's user needs SELECT, INSERT, UPDATE and
// DELETE on piton_locks, and SELECT and UPDATE on piton_floor.
func (c *Coordinator) DDL() string {
	var all strings.Builder
	for _, name := range creations {
		if s, ok := c.sql[name]; ok {
			all.WriteString(s.text + ";\n")
		}
	}
	return all.String()
}

// Migrate creates the tables when they are missing. It may run at every start and
// in several processes at once; where they are there already it needs no
// privilege beyond reading them.
func (c *Coordinator) Migrate(ctx context.Context) error {
	if c.probe(ctx) == nil {
		return nil
	}
	var problem error
	// PostgreSQL refuses one of two that create the same at the same time, IF NOT
	// EXISTS or not; when it says so the other one is done.
	for range len(creations) {
		if problem = c.create(ctx); problem == nil || c.probe(ctx) == nil {
			return nil
		}
	}
	if sqlerr.Forbidden(problem) {
		return fmt.Errorf("sqllock: migrate: the database user may not create tables; let an administrator run what DDL returns: %w", problem)
	}
	return fmt.Errorf("sqllock: migrate: %w", problem)
}

func (c *Coordinator) create(ctx context.Context) error {
	for _, name := range creations {
		if s, ok := c.sql[name]; ok {
			if _, err := c.db.ExecContext(ctx, s.text); err != nil {
				return err
			}
		}
	}
	return nil
}

// probe is nil when both tables are there and the floor has its row.
func (c *Coordinator) probe(ctx context.Context) error {
	rows, err := c.db.QueryContext(ctx, c.sql["probe"].text)
	if err != nil {
		return err
	}
	rows.Close()
	var floor int64
	return c.queryRow(ctx, c.db, "floor").Scan(&floor)
}

func (c *Coordinator) explain(action, lock string, err error) error {
	switch {
	case sqlerr.MissingTable(err):
		return fmt.Errorf("sqllock: %s %q: the table piton_locks does not exist in this database; call Migrate once, or run what DDL returns: %w", action, lock, err)
	case sqlerr.Forbidden(err):
		return fmt.Errorf("sqllock: %s %q: the database is read-only, or its user lacks a privilege; it needs SELECT, INSERT, UPDATE and DELETE on piton_locks: %w", action, lock, err)
	}
	return fmt.Errorf("sqllock: %s %q: %w", action, lock, err)
}

func validate(r piton.Request) error {
	switch {
	case piton.ValidateLock(r.Lock) != nil:
		return piton.ValidateLock(r.Lock)
	case r.Holder == "":
		return errors.New("sqllock: the holder is empty; want the random id of the acquisition")
	case len(r.Holder) > longestHolder:
		return fmt.Errorf("sqllock: the holder has %d bytes; want at most %d", len(r.Holder), longestHolder)
	case r.Floor >= piton.MaxToken:
		return fmt.Errorf("sqllock: %w", noRoom(r.Floor))
	case r.TTL < time.Microsecond || r.TTL > math.MaxInt64/4:
		return fmt.Errorf("sqllock: TTL %v; want 1µs to 73 years", r.TTL)
	}
	return nil
}

func checkGrant(g piton.Grant) error {
	return validate(piton.Request{Lock: g.Lock, Holder: g.Holder, TTL: g.TTL})
}

func granted(f piton.Fence, ttl time.Duration) piton.Grant {
	return piton.Grant{Fence: f, TTL: ttl.Truncate(time.Microsecond)}
}

// label is an owner as every database stores it.
func label(owner string) string {
	owner = strings.ToValidUTF8(strings.ReplaceAll(owner, "\x00", ""), "?")
	for len(owner) > longestOwner {
		_, size := utf8.DecodeLastRuneInString(owner)
		owner = owner[:len(owner)-size]
	}
	return owner
}
