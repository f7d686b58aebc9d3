package backend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/sqlguard"
	_ "modernc.org/sqlite" // registers the driver "sqlite"
)

const storageForms = "postgres://USER:PASSWORD@HOST:5432/DB, mysql://USER:PASSWORD@HOST:3306/DB or sqlite:///path/to/file.db"

// OpenStorage opens the database at raw and makes sure that it answers; ctx
// bounds that, and [ReachTimeout]. A SQLite file that is missing is created.
// The caller calls closeDB once. Errors are as those of [OpenCoordinator].
func OpenStorage(ctx context.Context, raw string) (db *sql.DB, dialect sqlguard.Dialect, closeDB func() error, err error) {
	return openSQL(ctx, "storage", raw)
}

// OpenGuard opens the database at raw as a guard and creates its table of marks
// where that is missing. A SQLite file must exist: a guard on a file that nobody
// writes to would protect nothing. The caller calls closeDB once. Errors are as
// those of [OpenCoordinator].
func OpenGuard(ctx context.Context, raw string) (guard piton.Guard, closeDB func() error, err error) {
	if err := Missing("guard", raw); err != nil {
		return nil, nil, err
	}
	db, dialect, closeDB, err := openSQL(ctx, "guard", raw)
	if err != nil {
		return nil, nil, err
	}
	g, err := sqlguard.New(db, dialect)
	if err == nil {
		reach, cancel := context.WithTimeout(ctx, ReachTimeout)
		defer cancel()
		err = g.Migrate(reach)
	}
	if err != nil {
		_ = closeDB()
		return nil, nil, Scrub(fmt.Errorf("guard %s: %w", Redact(raw), err), raw)
	}
	return g, closeDB, nil
}

// Missing returns a *[URLError] when raw names a SQLite file that does not exist.
// Opening it would create it.
func Missing(role, raw string) error {
	u, err := parse(role, raw)
	if err != nil || u.Scheme != "sqlite" {
		return nil
	}
	path, err := sqlitePath(role, u)
	if err != nil {
		return nil
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		what := map[string]string{"guard": "name the database that the command writes to, and create it first", "coordinator": "write the path that piton run was given"}[role]
		return &URLError{fmt.Sprintf("%s %s: there is no such file; %s", role, Redact(raw), what)}
	}
	return nil
}

func openSQL(ctx context.Context, role, raw string) (db *sql.DB, dialect sqlguard.Dialect, closeDB func() error, err error) {
	u, err := parse(role, raw)
	if err != nil {
		return nil, 0, nil, err
	}
	switch u.Scheme {
	case "postgres", "postgresql":
		db, err = openPostgres(raw)
		dialect = sqlguard.Postgres
	case "mysql", "mariadb":
		db, err = openMySQL(role, u)
		dialect = sqlguard.MySQL
	case "sqlite":
		db, err = openSQLiteDB(role, u)
		dialect = sqlguard.SQLite
	case "redis", "rediss", "etcd", "etcds", "memory":
		err = &URLError{fmt.Sprintf("%s %s: %s grants locks but stores no guarded data here; write it as --coordinator, and %s as --%s", role, Redact(raw), u.Scheme, storageForms, role)}
	default:
		err = unknownScheme(role, raw, u.Scheme, storageForms)
	}
	if err != nil {
		return nil, 0, nil, Scrub(err, raw)
	}
	reach, cancel := context.WithTimeout(ctx, ReachTimeout)
	defer cancel()
	if err := db.PingContext(reach); err != nil {
		_ = db.Close()
		return nil, 0, nil, Scrub(unreachable(role, Redact(raw), err), raw)
	}
	return db, dialect, db.Close, nil
}

func openPostgres(raw string) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(raw)
	if err != nil {
		return nil, &URLError{fmt.Sprintf("%s: %s; write postgres://USER:PASSWORD@HOST:5432/DB", Redact(raw), reason(err))}
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 3 * time.Second
	}
	return stdlib.OpenDB(*cfg), nil
}

// openMySQL translates the URL into what the driver takes. Options after ? are
// the driver's own.
func openMySQL(role string, u *url.URL) (*sql.DB, error) {
	if strings.Contains(u.Host, "(") {
		return nil, &URLError{fmt.Sprintf("%s %s: that is the driver's own notation; write mysql://USER:PASSWORD@HOST:3306/DB", role, Redact(u.String()))}
	}
	name := strings.TrimPrefix(u.Path, "/")
	if u.Hostname() == "" || name == "" {
		return nil, &URLError{fmt.Sprintf("%s %s names no host or no database; write mysql://USER:PASSWORD@HOST:3306/DB", role, Redact(u.String()))}
	}
	cfg := mysql.NewConfig()
	if u.RawQuery != "" {
		parsed, err := mysql.ParseDSN("/?" + u.RawQuery)
		if err != nil {
			return nil, &URLError{fmt.Sprintf("%s %s: %s; see the options of github.com/go-sql-driver/mysql", role, Redact(u.String()), reason(err))}
		}
		cfg = parsed
	}
	port := u.Port()
	if port == "" {
		port = "3306"
	}
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", net.JoinHostPort(u.Hostname(), port), name
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.Logger = &mysql.NopLogger{} // stderr belongs to the command
	if cfg.Timeout == 0 {
		cfg.Timeout = 3 * time.Second
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, &URLError{fmt.Sprintf("%s %s: %s", role, Redact(u.String()), reason(err))}
	}
	return sql.OpenDB(connector), nil
}

func openSQLiteDB(role string, u *url.URL) (*sql.DB, error) {
	path, err := sqlitePath(role, u)
	if err != nil {
		return nil, err
	}
	// Writers of several processes wait for one another instead of failing, and
	// a transaction takes the write lock at its beginning, where waiting is safe.
	dsn := &url.URL{Scheme: "file", Path: path, RawQuery: "_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=immediate"}
	return sql.Open("sqlite", dsn.String())
}
