package sqlguard

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/pitonlock/piton"
)

// defaultBound limits waiting and idling of a guarded transaction whose context
// belongs to no lease and has no deadline. It equals the default TTL of a lease.
const defaultBound = 30 * time.Second

// bounds are what the server enforces by itself on a guarded transaction, since
// a holder that is frozen inside of it cannot. Zero leaves a limit as it is.
type bounds struct {
	wait      time.Duration // for a lock
	idle      time.Duration // between two statements
	statement time.Duration // for one statement
}

// boundsOf derives the bounds of a transaction that lives as long as ctx.
func boundsOf(ctx context.Context) (bounds, error) {
	if err := context.Cause(ctx); err != nil {
		return bounds{}, err
	}
	left, known := piton.TimeLeft(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		if d := time.Until(deadline); !known || d < left {
			left, known = d, true
		}
	}
	switch {
	case !known:
		return bounds{wait: defaultBound, idle: defaultBound}, nil
	case left <= 0:
		return bounds{}, fmt.Errorf("no time is left: %w", context.DeadlineExceeded)
	}
	return bounds{wait: left, idle: left, statement: left}, nil
}

// leaseBounds are the bounds for a transaction that is the caller's own: those
// of the lease, and none when ctx belongs to no lease.
func leaseBounds(ctx context.Context) bounds {
	if left, ok := piton.TimeLeft(ctx); ok {
		left = max(left, time.Millisecond)
		return bounds{wait: left, idle: left, statement: left}
	}
	return bounds{}
}

// millis rounds up, because 0 means "no limit" to PostgreSQL; no server takes more
// than 31 bits.
func millis(d time.Duration) int64 {
	return min(int64((d+time.Millisecond-1)/time.Millisecond), math.MaxInt32)
}

// bind sets on conn what cannot be set inside of the transaction, and returns
// what sets it back. PostgreSQL sets its bounds together with the check.
func (g *Guard) bind(ctx context.Context, conn *sql.Conn, b bounds) (unbind func(context.Context) error, err error) {
	switch g.dialect {
	case MySQL:
		return g.bindMySQL(ctx, conn, b)
	case SQLite:
		return bindSQLite(ctx, conn, b)
	}
	return func(context.Context) error { return nil }, nil
}

func (g *Guard) bindMySQL(ctx context.Context, conn *sql.Conn, b bounds) (func(context.Context) error, error) {
	flavour, _ := g.flavour.Load().(string)
	if flavour == "" {
		var version string
		if err := conn.QueryRowContext(ctx, g.sql["version"]).Scan(&version); err != nil {
			return nil, err
		}
		flavour = "mysql"
		if strings.Contains(strings.ToLower(version), "mariadb") {
			flavour = "mariadb"
		}
		g.flavour.Store(flavour)
	}
	seconds := func(d time.Duration) string { return strconv.FormatInt((millis(d)+999)/1000, 10) }
	set := strings.NewReplacer(
		":wait", seconds(b.wait),
		":idle", seconds(b.idle),
		":statement", strconv.FormatFloat(float64(millis(b.statement))/1000, 'f', 3, 64),
	).Replace(g.sql["bind-"+flavour])
	if _, err := conn.ExecContext(ctx, set); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := conn.ExecContext(ctx, g.sql["unbind-"+flavour])
		return err
	}, nil
}

// bindSQLite makes a busy database be waited for, but not beyond the bound: the
// driver cannot interrupt that wait.
func bindSQLite(ctx context.Context, conn *sql.Conn, b bounds) (func(context.Context) error, error) {
	var before, now int64
	if err := conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&before); err != nil {
		return nil, err
	}
	pragma := func(ctx context.Context, ms int64) error {
		return conn.QueryRowContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", ms)).Scan(&now)
	}
	if err := pragma(ctx, millis(b.wait)); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return pragma(ctx, before) }, nil
}
