package servertest

import (
	"crypto/rand"
	"strings"
	"testing"
)

// Database is a database of one test.
type Database struct {
	// Name needs no quoting in SQL.
	Name string

	url, dsn string
	query    func(statements string) (string, error)
}

// URL is what piton's command line takes: postgres://... or mysql://...
func (d *Database) URL() string { return d.url }

// DSN is what the driver takes: pgx or lib/pq, or go-sql-driver/mysql.
func (d *Database) DSN() string { return d.dsn }

// Query runs statements with the server's own client program, and returns the
// rows, one a line, with | between the columns of PostgreSQL and a tab between
// those of MariaDB. An error fails the test.
func (d *Database) Query(tb testing.TB, statements string) string {
	tb.Helper()
	rows, err := d.query(statements)
	if err != nil {
		tb.Fatal(err)
	}
	return rows
}

// newName is a database name that nobody else has.
func newName() string { return "piton_" + strings.ToLower(rand.Text()[:16]) }

// create runs the statement that creates the database, and for shared servers
// the one that drops it when the test ends. A server of the test's own may be
// paused or gone by then and takes its databases with it.
func create(tb testing.TB, server *Server, admin func(string) (string, error), create, drop string) {
	tb.Helper()
	if _, err := admin(create); err != nil {
		tb.Fatalf("%s on %s: %v", server.kind, server.Addr(), err)
	}
	if !server.shared {
		return
	}
	tb.Cleanup(func() {
		if _, err := admin(drop); err != nil {
			tb.Errorf("%s on %s: %v", server.kind, server.Addr(), err)
		}
	})
}
