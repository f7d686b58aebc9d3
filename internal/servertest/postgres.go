package servertest

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// Postgres is a running PostgreSQL server. Its superuser is postgres, without a
// password.
type Postgres struct {
	*Server
	psql string
}

var sharedPostgres shared[*Postgres]

// StartPostgres starts a PostgreSQL server for this test with the given further
// command line arguments, of which the later ones win: "-c", "max_connections=9".
func StartPostgres(tb testing.TB, args ...string) *Postgres {
	tb.Helper()
	server, err := startPostgres(args...)
	return own(tb, server, err)
}

// SharedPostgres returns the PostgreSQL server that all tests of the binary share.
func SharedPostgres(tb testing.TB) *Postgres {
	tb.Helper()
	return sharedPostgres.get(tb, func() (*Postgres, error) { return startPostgres() })
}

// URL is postgres://postgres@127.0.0.1:PORT/postgres?sslmode=disable.
func (p *Postgres) URL() string { return p.url("postgres") }

// DSN is the same as URL; pgx and lib/pq take it.
func (p *Postgres) DSN() string { return p.URL() }

// NewDatabase creates a database for the test. On the shared server it is
// dropped when the test ends, even while somebody is connected to it.
func (p *Postgres) NewDatabase(tb testing.TB) *Database {
	tb.Helper()
	name := newName()
	admin := func(statement string) (string, error) { return p.query("postgres", statement) }
	create(tb, p.Server, admin, "CREATE DATABASE "+name, "DROP DATABASE "+name+" WITH (FORCE)")
	return &Database{
		Name: name, url: p.url(name), dsn: p.url(name),
		query: func(statements string) (string, error) { return p.query(name, statements) },
	}
}

func (p *Postgres) url(database string) string {
	return (&url.URL{
		Scheme: "postgres", User: url.User("postgres"), Host: p.Addr(), Path: database, RawQuery: "sslmode=disable",
	}).String()
}

func (p *Postgres) query(database, statements string) (string, error) {
	return runTool(nil, "/", p.psql, "--no-psqlrc", "--quiet", "--no-align", "--tuples-only",
		"--set=ON_ERROR_STOP=1", "--command="+statements, p.url(database))
}

func startPostgres(args ...string) (*Postgres, error) {
	postgres, err := find("postgres", "postgresql")
	if err != nil {
		return nil, err
	}
	if postgres, err = filepath.EvalSymlinks(postgres); err != nil {
		return nil, err
	}
	initdb := filepath.Join(filepath.Dir(postgres), "initdb")
	// PATH may have another version's psql, or a wrapper that takes its time.
	psql := filepath.Join(filepath.Dir(postgres), "psql")
	if _, err := os.Stat(psql); err != nil {
		if psql, err = find("psql", "postgresql-client"); err != nil {
			return nil, err
		}
	}
	user, err := unprivileged("postgres")
	if err != nil {
		return nil, err
	}
	folder, err := prepare("postgres", postgres, user, func(data string) (string, []string) {
		return initdb, []string{
			"--pgdata=" + data, "--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C",
			"--wal-segsize=1", // MB, less to copy
		}
	})
	if err != nil {
		return nil, err
	}
	server := &Server{
		kind: "postgres", binary: postgres, folder: folder, user: user, probe: probePostgres,
		ending: syscall.SIGINT, // without waiting for clients
		args: func(port int) []string {
			return append([]string{
				"-D", filepath.Join(folder, "data"), "-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1",
				"-c", "unix_socket_directories=", // paths of sockets may not be long
				"-c", "fsync=off", "-c", "full_page_writes=off", "-c", "shared_buffers=32MB",
				"-c", "dynamic_shared_memory_type=mmap", // in the data folder, gone with it
			}, args...)
		},
	}
	if err := server.start(freePort); err != nil {
		return nil, err
	}
	return &Postgres{server, psql}, nil
}

// probePostgres logs in.
func probePostgres(conn net.Conn) error {
	const protocol = 3 << 16
	login := binary.BigEndian.AppendUint32(nil, protocol)
	login = append(login, "user\x00postgres\x00database\x00postgres\x00\x00"...)
	login = append(binary.BigEndian.AppendUint32(nil, uint32(4+len(login))), login...)
	if _, err := conn.Write(login); err != nil {
		return err
	}
	for reader := bufio.NewReader(conn); ; {
		var head struct {
			Kind   byte
			Length uint32 // with itself
		}
		if err := binary.Read(reader, binary.BigEndian, &head); err != nil {
			return err
		}
		body := make([]byte, max(head.Length, 4)-4)
		if _, err := io.ReadFull(reader, body); err != nil {
			return err
		}
		switch head.Kind {
		case 'Z': // ready for a query
			_, err := conn.Write([]byte{'X', 0, 0, 0, 4}) // good-bye
			return err
		case 'E':
			return fmt.Errorf("login was answered by %q", body)
		}
	}
}
