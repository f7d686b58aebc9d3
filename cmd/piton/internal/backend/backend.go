// Package backend turns the URLs of the command line into coordinators, guards
// and databases.
//
//	sqlite:///path      coordinator (file of its own), guard, storage
//	redis:// rediss://  coordinator; so are redis+sentinel:// and redis+cluster://
//	etcd:// etcds://    coordinator
//	memory:             coordinator of this process alone
//	postgres://         coordinator, guard, storage (postgresql:// too)
//	mysql://            coordinator, guard, storage (MariaDB too; mariadb:// too)
//
// Every error is one line that says what was wrong and what to write instead,
// and holds no password, whoever wrote the text.
package backend

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/sqlerr"
	"github.com/pitonlock/piton/memlock"
	"github.com/pitonlock/piton/sqlguard"
	"github.com/pitonlock/piton/sqlite/sqlitelock"
	"github.com/pitonlock/piton/sqllock"
)

// ReachTimeout bounds the first contact with a server.
const ReachTimeout = 5 * time.Second

// Backend is an open coordinator.
type Backend struct {
	Coordinator piton.Coordinator
	Close       func() error // frees connections and files; call it once
	Redacted    string       // the URL without its password, for people
	Local       bool         // it excludes nobody outside of this process
	Warnings    []string     // settings under which it may forget locks, a sentence each
	Traces      Traces
	Late        time.Duration // how late it may notice the end of a lease; 0: at once
}

// URLError is a URL that cannot be used as it is: a mistake of whoever wrote it.
type URLError struct{ Problem string }

func (e *URLError) Error() string { return e.Problem }

// DefaultCoordinator is the URL of the embedded coordinator of this user, below
// $XDG_STATE_HOME or ~/.local/state. It creates the folder, for this user only.
func DefaultCoordinator() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) { // the XDG rules: a relative path is ignored
		home, err := os.UserHomeDir()
		if err != nil {
			return "", &URLError{"no folder for the embedded coordinator: neither XDG_STATE_HOME nor HOME is set; set one, or give --coordinator sqlite:///path/locks.db"}
		}
		state = filepath.Join(home, ".local", "state")
	}
	folder := filepath.Join(state, "piton")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", &URLError{fmt.Sprintf("the folder of the embedded coordinator cannot be made: %v; give --coordinator sqlite:///path/locks.db", err)}
	}
	return (&url.URL{Scheme: "sqlite", Path: filepath.Join(folder, "locks.db")}).String(), nil
}

// OpenCoordinator opens the coordinator at raw, or [DefaultCoordinator] when raw
// is empty, and makes sure that it answers; ctx bounds that, and [ReachTimeout].
// The error is a *[URLError], or wraps [piton.ErrUnavailable] for a coordinator
// that does not answer.
func OpenCoordinator(ctx context.Context, raw string) (Backend, error) {
	if raw == "" {
		var err error
		if raw, err = DefaultCoordinator(); err != nil {
			return Backend{}, err
		}
	}
	u, err := parse("coordinator", firstHost(raw))
	if err != nil {
		return Backend{}, err
	}
	b := Backend{Redacted: Redact(raw)}
	switch u.Scheme {
	case "memory":
		b.Coordinator, b.Close, b.Local, b.Traces = memlock.New(), func() error { return nil }, true, noTraces{}
	case "sqlite":
		err = b.openSQLite(u)
	case "redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster":
		err = b.openRedis(ctx, raw)
	case "etcd", "etcds":
		err = b.openEtcd(ctx, raw)
	case "postgres", "postgresql", "mysql", "mariadb":
		err = b.openDatabase(ctx, raw)
	default:
		err = unknownScheme("coordinator", raw, u.Scheme, "sqlite:///path, redis://host:6379 (rediss:// for TLS), redis+sentinel://host,host/name, redis+cluster://host,host, etcd://host,host, postgres://host/db, mysql://host/db or memory:")
	}
	if err != nil {
		return Backend{}, Scrub(err, raw)
	}
	return b, nil
}

func (b *Backend) openSQLite(u *url.URL) error {
	path, err := sqlitePath("coordinator", u)
	if err != nil {
		return err
	}
	c, err := sqlitelock.Open(path)
	if err != nil {
		return &silentError{fmt.Sprintf("coordinator %s cannot be opened: %v", b.Redacted, err), err}
	}
	b.Coordinator, b.Close, b.Traces = c, c.Close, fileTraces{u.String()}
	return nil
}

// openDatabase keeps locks in a SQL database, whose tables are created where they
// are missing.
func (b *Backend) openDatabase(ctx context.Context, raw string) error {
	db, dialect, closeDB, err := openSQL(ctx, "coordinator", raw)
	if err != nil {
		return err
	}
	d, column := sqllock.Postgres, `"lock"`
	if dialect == sqlguard.MySQL {
		d, column = sqllock.MySQL, "`lock`"
	}
	c, err := sqllock.New(db, d)
	if err == nil {
		reach, cancel := context.WithTimeout(ctx, ReachTimeout)
		defer cancel()
		err = c.Migrate(reach)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("coordinator %s: %w", b.Redacted, err), closeDB())
	}
	b.Coordinator, b.Close, b.Traces = c, closeDB, sqlTraces{db: db, column: column}
	return nil
}

// parse reads raw without ever quoting a password: net/url's own words quote the
// part that it stumbled over, which may be a piece of one.
func parse(role, raw string) (*url.URL, error) {
	const escape = "write special characters of a password as %XX (@ is %40, : %3A, / %2F, # %23, ? %3F, % %25)"
	u, err := url.Parse(raw)
	switch {
	case err != nil && (strings.Contains(raw, "@") || HasPassword(raw)):
		return nil, &URLError{fmt.Sprintf("%s %s is not a valid URL; %s", role, Redact(raw), escape)}
	case err != nil:
		return nil, &URLError{fmt.Sprintf("%s %s is not a valid URL: %s", role, Redact(raw), reason(err))}
	case u.User == nil && u.Host != "" && strings.Contains(raw, "@"):
		return nil, &URLError{fmt.Sprintf("%s %s: the @ comes after the host; %s", role, Redact(raw), escape)}
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, &URLError{fmt.Sprintf("%s %s: there is no port %s; write one from 1 to 65535", role, Redact(raw), port)}
		}
	}
	u.Scheme = strings.ToLower(u.Scheme)
	return u, nil
}

// sqlitePath returns the file of sqlite:///path.
func sqlitePath(role string, u *url.URL) (string, error) {
	switch {
	case u.Opaque != "" || u.Host != "":
		given := u.Opaque + u.Host + u.Path
		return "", &URLError{fmt.Sprintf("%s sqlite:%s: the path must be absolute, after three slashes; write sqlite://%s", role, given, absolute(given))}
	case u.Path == "" || strings.HasSuffix(u.Path, "/"):
		return "", &URLError{fmt.Sprintf("%s sqlite: URL names no file; write sqlite:///path/to/file.db", role)}
	case u.RawQuery != "" || u.Fragment != "":
		return "", &URLError{fmt.Sprintf("%s sqlite: URL takes no ?options or #fragment; write sqlite://%s, with ? as %%3F and # as %%23 in a file name", role, u.EscapedPath())}
	}
	return u.Path, nil
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return (&url.URL{Path: abs}).EscapedPath()
	}
	return "/" + path
}

func unknownScheme(role, raw, scheme, want string) error {
	if scheme == "" {
		return &URLError{fmt.Sprintf("%s %q has no scheme; write %s", role, Redact(raw), want)}
	}
	return &URLError{fmt.Sprintf("%s %s: unknown scheme %q; write %s", role, Redact(raw), scheme, want)}
}

func unreachable(role, redacted string, err error) error {
	what, hint := "does not answer", "is it running, and are host and port right?"
	var dead interface{ Timeout() bool }
	var other *notEtcdError
	switch text := err.Error(); {
	case sqlerr.State(err) == "3D000", sqlerr.MySQL(err) == 1049:
		what, hint = "refuses", "create the database, or correct its name in the URL"
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "NOAUTH"), strings.Contains(text, "password"), strings.Contains(text, "Access denied"), strings.Contains(text, "user name is empty"),
		strings.HasPrefix(sqlerr.State(err), "28"):
		what, hint = "refuses", "are user and password right?"
	case strings.Contains(text, "permission denied"):
		what, hint = "refuses", "the user's role needs READWRITE on the prefix piton/"
	case strings.Contains(text, "tls:"), strings.Contains(text, "TLS"), strings.Contains(text, "x509:"):
		what, hint = "refuses", "do both sides use TLS, and is the certificate one that this machine trusts?"
	case errors.As(err, &other):
		hint = "is it etcd and well, and do both sides use TLS, or neither?"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &dead) && dead.Timeout():
		hint = "no answer in time: is a firewall or proxy between?"
	}
	return &silentError{fmt.Sprintf("%s %s %s: %v; %s", role, redacted, what, err, hint), err}
}

// silentError is a server that does not answer. errors.Is finds
// [piton.ErrUnavailable] and the driver's error.
type silentError struct {
	text string
	err  error
}

func (e *silentError) Error() string   { return e.text }
func (e *silentError) Unwrap() []error { return []error{piton.ErrUnavailable, e.err} }
