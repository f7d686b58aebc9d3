package servertest

import (
	"strings"
	"testing"

	"github.com/pitonlock/piton/internal/process"
)

// sqlServer is what both kinds of SQL servers can do.
type sqlServer interface {
	ownable
	Addr() string
	Pid() int
	Pause(testing.TB)
	Resume(testing.TB)
	Kill(testing.TB)
	Stop(testing.TB)
	Restart(testing.TB)
	NewDatabase(testing.TB) *Database
}

func TestPostgresRestartKeepsPortAndData(t *testing.T) { restartKeepsPortAndData(t, StartPostgres(t)) }

func TestMariaDBRestartKeepsPortAndData(t *testing.T) { restartKeepsPortAndData(t, StartMariaDB(t)) }

func restartKeepsPortAndData(t *testing.T, s sqlServer) {
	db := s.NewDatabase(t)
	db.Query(t, "CREATE TABLE t (n INT); INSERT INTO t VALUES (7)")
	addr, pid := s.Addr(), s.Pid()
	tree, err := process.Descendants(pid)
	if err != nil {
		t.Fatal(err)
	}
	s.Pause(t)
	s.Kill(t)
	for _, pid := range append(tree, pid) {
		if process.Alive(pid) {
			t.Errorf("process %d is alive after Kill", pid)
		}
	}
	s.Restart(t)
	if s.Addr() != addr || s.Pid() == pid {
		t.Errorf("restarted as process %d on %s; want another than %d on %s", s.Pid(), s.Addr(), pid, addr)
	}
	db.Query(t, "INSERT INTO t VALUES (8)")
	s.Stop(t)
	s.Restart(t)
	if got := db.Query(t, "SELECT n FROM t ORDER BY n"); got != "7\n8" {
		t.Errorf("rows after a kill, a stop and restarts: %q; want 7 and 8", got)
	}
	s.Pause(t)
	s.Resume(t)
	if got := db.Query(t, "SELECT 1"); got != "1" {
		t.Errorf("after a pause: %q; want 1", got)
	}
}

func TestPostgresDatabasesAreDropped(t *testing.T) {
	s := SharedPostgres(t)
	var db *Database
	t.Run("test", func(t *testing.T) {
		db = s.NewDatabase(t)
		expectAddresses(t, db, "postgres://postgres@"+s.Addr()+"/"+db.Name+"?sslmode=disable",
			"postgres://postgres@"+s.Addr()+"/"+db.Name+"?sslmode=disable")
		if got := db.Query(t, "SELECT current_database()"); got != db.Name {
			t.Errorf("database %q; want %q", got, db.Name)
		}
	})
	got, err := s.query("postgres", "SELECT datname FROM pg_database")
	expectNoDatabase(t, db.Name, got, err)
}

func TestMariaDBDatabasesAreDropped(t *testing.T) {
	s := SharedMariaDB(t)
	var db *Database
	t.Run("test", func(t *testing.T) {
		db = s.NewDatabase(t)
		expectAddresses(t, db, "mysql://root@"+s.Addr()+"/"+db.Name, "root@tcp("+s.Addr()+")/"+db.Name)
		if got := db.Query(t, "SELECT DATABASE()"); got != db.Name {
			t.Errorf("database %q; want %q", got, db.Name)
		}
	})
	got, err := s.query("mysql", "SHOW DATABASES")
	expectNoDatabase(t, db.Name, got, err)
}

func expectAddresses(t *testing.T, db *Database, url, dsn string) {
	t.Helper()
	if db.URL() != url || db.DSN() != dsn {
		t.Errorf("URL %s, DSN %s; want %s, %s", db.URL(), db.DSN(), url, dsn)
	}
}

func expectNoDatabase(t *testing.T, name, got string, err error) {
	t.Helper()
	if err != nil || strings.Contains(got, name) {
		t.Errorf("databases after the test: %q, %v; want no %s", got, err, name)
	}
}
