package servertest

import (
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

// MariaDB is a running MariaDB server. Its superuser is root, without a password.
type MariaDB struct {
	*Server
	client string
}

var sharedMariaDB shared[*MariaDB]

// StartMariaDB starts a MariaDB server for this test with the given further
// command line arguments, of which the later ones win: "--max-connections=9".
func StartMariaDB(tb testing.TB, args ...string) *MariaDB {
	tb.Helper()
	server, err := startMariaDB(args...)
	return own(tb, server, err)
}

// SharedMariaDB returns the MariaDB server that all tests of the binary share.
func SharedMariaDB(tb testing.TB) *MariaDB {
	tb.Helper()
	return sharedMariaDB.get(tb, func() (*MariaDB, error) { return startMariaDB() })
}

// URL is mysql://root@127.0.0.1:PORT/mysql.
func (m *MariaDB) URL() string { return m.url("mysql") }

// DSN is root@tcp(127.0.0.1:PORT)/ for go-sql-driver/mysql, without a database.
func (m *MariaDB) DSN() string { return m.dsn("") }

// NewDatabase creates a database for the test. On the shared server it is
// dropped when the test ends; close open transactions on it before.
func (m *MariaDB) NewDatabase(tb testing.TB) *Database {
	tb.Helper()
	name := newName()
	admin := func(statement string) (string, error) { return m.query("mysql", statement) }
	create(tb, m.Server, admin, "CREATE DATABASE "+name, "SET lock_wait_timeout = 10; DROP DATABASE "+name)
	return &Database{
		Name: name, url: m.url(name), dsn: m.dsn(name),
		query: func(statements string) (string, error) { return m.query(name, statements) },
	}
}

func (m *MariaDB) dsn(database string) string { return "root@tcp(" + m.Addr() + ")/" + database }

func (m *MariaDB) url(database string) string {
	return (&url.URL{Scheme: "mysql", User: url.User("root"), Host: m.Addr(), Path: database}).String()
}

func (m *MariaDB) query(database, statements string) (string, error) {
	return runTool(nil, "/", m.client, "--no-defaults", "--protocol=tcp", "--host=127.0.0.1",
		"--port="+strconv.Itoa(m.port), "--user=root", "--skip-column-names", "--batch",
		"--execute="+statements, database)
}

// asRoot is what MariaDB wants to be told when it runs as root. Another user is
// not needed, and a change of users would make it forget that it must end with
// the test process.
func asRoot() []string {
	if os.Geteuid() == 0 {
		return []string{"--user=root"}
	}
	return nil
}

func startMariaDB(args ...string) (*MariaDB, error) {
	binary, err := find("mariadbd", "mariadb-server")
	if err != nil {
		return nil, err
	}
	install, err := find("mariadb-install-db", "mariadb-server")
	if err != nil {
		return nil, err
	}
	client, err := find("mariadb", "mariadb-client")
	if err != nil {
		return nil, err
	}
	folder, err := prepare("mariadb", binary, nil, func(data string) (string, []string) {
		return install, append([]string{
			"--no-defaults", "--datadir=" + data, "--auth-root-authentication-method=normal",
			"--skip-test-db", "--innodb-log-file-size=8M",
		}, asRoot()...)
	})
	if err != nil {
		return nil, err
	}
	// By TCP the superuser comes from 127.0.0.1, not from localhost.
	init := filepath.Join(folder, "init.sql")
	err = os.WriteFile(init, []byte("CREATE USER IF NOT EXISTS root@'127.0.0.1';\n"+
		"GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"), 0o600)
	if err != nil {
		return nil, err
	}
	server := &Server{
		kind: "mariadbd", binary: binary, folder: folder, probe: probeMariaDB, ending: syscall.SIGTERM,
		args: func(port int) []string {
			fixed := append([]string{
				"--no-defaults", "--datadir=" + filepath.Join(folder, "data"), "--init-file=" + init,
				"--port=" + strconv.Itoa(port), "--bind-address=127.0.0.1", "--skip-name-resolve",
				"--socket=socket", "--pid-file=pid", // in the data folder; paths of sockets may not be long
				"--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=2",
				"--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--skip-log-bin", "--performance-schema=OFF",
			}, asRoot()...)
			return append(fixed, args...)
		},
	}
	if err := server.start(freePort); err != nil {
		return nil, err
	}
	return &MariaDB{server, client}, nil
}

// probeMariaDB waits for the greeting, which comes when the init file is done.
func probeMariaDB(conn net.Conn) error {
	const version = 10 // of the protocol; an error would be 0xff
	head := make([]byte, 5)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	if head[4] != version {
		return fmt.Errorf("greeting begins with %#x; want protocol version %#x", head[4], version)
	}
	return nil
}
