package sqlitelock

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pitonlock/piton/internal/sqlfile"
	_ "modernc.org/sqlite" // the driver
)

const (
	schemaVersion = 1
	mostFreeTime  = 10 * time.Minute                    // how long a free row stays at least, while there are few
	mostRows      = 10_000                              // above it free rows go regardless of their age
	rowsPerCall   = 8                                   // how many rows one Acquire deletes at most
	longestWait   = 10 * time.Second                    // for the write lock of the file, whatever the context allows
	longestTTL    = math.MaxInt64 / 2 * time.Nanosecond // so that the boot time plus a TTL stays within 64 bits
)

//go:embed sqlite.sql
var sqlFile string

var statements = sqlfile.Named(sqlFile)

// machine is the seam for time: the id of the present boot and its clock in ns.
type machine struct {
	bootID string
	now    func() (int64, error)
}

// settings are what tests change.
type settings struct {
	machine     machine
	synchronous string // FULL; a test of many locks uses OFF
}

// Open opens the coordinator in the file at path, and creates the file (mode
// 0600) and its folder (mode 0700) when they are missing. path is a plain path,
// not a URI. The file may hold other tables; it is switched to write-ahead
// logging. A path that cannot be used is reported with what is wrong about it: a
// folder, not writable, not a SQLite database, of a newer version of piton. Open
// waits up to 10 seconds while another process has the file locked, then the
// error wraps [piton.ErrUnavailable].
//
// The caller closes the coordinator.
func Open(path string) (*Coordinator, error) {
	m, err := thisMachine()
	if err != nil {
		return nil, fmt.Errorf("sqlitelock: %w", err)
	}
	return open(path, settings{machine: m, synchronous: "FULL"})
}

func open(path string, s settings) (*Coordinator, error) {
	path, err := prepareFile(path)
	if err != nil {
		return nil, fmt.Errorf("sqlitelock: %w", err)
	}
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: "mode=rw"}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("sqlitelock: %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	c := &Coordinator{path: path, machine: s.machine, db: db, turn: make(chan struct{}, 1)}
	ctx, cancel := context.WithTimeout(context.Background(), longestWait)
	defer cancel()
	err = c.start(ctx, s.synchronous)
	if err == nil {
		return c, nil
	}
	_ = c.Close()
	return nil, explain("open", path, "", err)
}

// prepareFile makes path absolute and sees to it that a usable file is there.
func prepareFile(path string) (string, error) {
	switch {
	case path == "":
		return "", errors.New("the path is empty; want the path of a file, such as /var/lib/app/locks.db")
	case path == ":memory:":
		return "", errors.New("a database in memory cannot be shared by processes; want the path of a file, or use memlock for locks within one process")
	case strings.HasPrefix(path, "file:"):
		return "", fmt.Errorf("%q is a URI; want a plain path", path)
	case strings.ContainsRune(path, 0):
		return "", fmt.Errorf("the path %q contains a NUL character", path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", fmt.Errorf("the folder of %s cannot be made: %w", path, err)
	}
	if fs, ok := onNetwork(folder); ok {
		return "", fmt.Errorf("%s is on a network file system (%s), where other machines could open it; want a local disk", path, fs)
	}
	if err := createFile(path, folder); err != nil {
		return "", fmt.Errorf("the file %s cannot be created: %w", path, err)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("the file %s cannot be used: %w", path, err)
	case info.IsDir():
		return "", fmt.Errorf("%s is a folder; want the path of a file in it, such as %s", path, filepath.Join(path, "locks.db"))
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file (%v)", path, info.Mode().Type())
	}
	if err := writable(path); err != nil {
		return "", fmt.Errorf("the file %s cannot be read and written: %w", path, err)
	}
	if err := writable(folder); err != nil {
		return "", fmt.Errorf("the folder of %s cannot be written, which the log beside the file needs: %w", path, err)
	}
	return path, nil
}

// start connects and makes the file ready.
func (c *Coordinator) start(ctx context.Context, synchronous string) error {
	err := retry(ctx, func() (err error) {
		if c.file, err = os.Stat(c.path); err != nil {
			return err
		}
		c.conn, err = c.db.Conn(background)
		return err
	})
	if err != nil {
		return err
	}
	if err := c.configure(ctx, synchronous); err != nil {
		return err
	}
	if err := c.migrate(ctx); err != nil {
		return err
	}
	for _, p := range []struct {
		name string
		stmt **sql.Stmt
	}{
		{"begin", &c.begin},
		{"commit", &c.commit},
		{"rollback", &c.rollback},
		{"get", &c.get},
		{"list", &c.list},
		{"take", &c.take},
		{"collect", &c.collect},
		{"renew", &c.renew},
		{"release", &c.release},
		{"break", &c.breakOne},
	} {
		err := retry(ctx, func() (err error) {
			*p.stmt, err = c.conn.PrepareContext(background, statements[p.name])
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Coordinator) configure(ctx context.Context, synchronous string) error {
	for _, pragma := range []string{
		"busy_timeout = 0", // waiting is done by retry, which heeds the context
		"synchronous = " + synchronous,
		"journal_size_limit = 4194304",
	} {
		err := retry(ctx, func() error {
			_, err := c.conn.ExecContext(background, "PRAGMA "+pragma)
			return err
		})
		if err != nil {
			return err
		}
	}
	var mode string
	err := retry(ctx, func() error {
		return c.conn.QueryRowContext(background, "PRAGMA journal_mode = WAL").Scan(&mode)
	})
	if err == nil && mode != "wal" {
		err = fmt.Errorf("write-ahead logging is not possible here (the journal mode is %q); want a local disk", mode)
	}
	return err
}

// migrate creates the tables when they are missing, and ends the leases of an
// earlier boot. An up-to-date file is only read.
func (c *Coordinator) migrate(ctx context.Context) error {
	query := func(name string) (n int, err error) {
		err = retry(ctx, func() error {
			return c.conn.QueryRowContext(background, statements[name], sql.Named("boot", c.machine.bootID)).Scan(&n)
		})
		return n, err
	}
	tables, err := query("has_schema")
	if err == nil && tables == 0 {
		err = c.exclusively(ctx, func() error {
			if tables, err = query("has_schema"); err != nil || tables > 0 {
				return err // another process was faster
			}
			_, err := c.conn.ExecContext(background, statements["schema"])
			return err
		})
	}
	if err != nil {
		return err
	}
	version, err := query("version")
	if err != nil {
		return fmt.Errorf("the table piton_floor cannot be read: %w", err)
	}
	if version != schemaVersion {
		return fmt.Errorf("the file has version %d of the tables and this program knows %d; use the newer piton, or another file", version, schemaVersion)
	}
	left, err := query("earlier_boots")
	if err != nil || left == 0 {
		return err
	}
	return c.exclusively(ctx, func() error {
		_, err := c.conn.ExecContext(background, statements["end_earlier_boots"],
			sql.Named("boot", c.machine.bootID), sql.Named("window", int64(mostFreeTime)))
		return err
	})
}

// exclusively runs fn in a transaction, before the statements are prepared.
func (c *Coordinator) exclusively(ctx context.Context, fn func() error) error {
	err := retry(ctx, func() error {
		_, err := c.conn.ExecContext(background, statements["begin"])
		return err
	})
	if err != nil {
		return err
	}
	if err := fn(); err != nil {
		_, _ = c.conn.ExecContext(background, statements["rollback"])
		return err
	}
	if _, err := c.conn.ExecContext(background, statements["commit"]); err != nil {
		_, _ = c.conn.ExecContext(background, statements["rollback"])
		return err
	}
	return nil
}
