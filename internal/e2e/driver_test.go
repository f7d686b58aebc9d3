package e2e

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/pitonlock/piton/sqlguard"
	"github.com/pitonlock/piton/sqllock"
)

// A dialect that is not the driver's would fail later, with a syntax error that
// explains nothing.
func TestDialectOfAnotherDriverIsRefused(t *testing.T) {
	for _, b := range sqlBackends {
		db, err := sql.Open(b.driver, map[sqlguard.Dialect]string{sqlguard.MySQL: "u@tcp(127.0.0.1:1)/db"}[b.dialect])
		must(t, err)
		for _, d := range []sqlguard.Dialect{sqlguard.Postgres, sqlguard.MySQL, sqlguard.SQLite} {
			_, err := sqlguard.New(db, d)
			if d == b.dialect {
				must(t, err)
			} else if err == nil || !strings.Contains(err.Error(), "speaks "+b.dialect.String()+", the dialect given is "+d.String()) {
				t.Errorf("%s as %v: %v", b.name, d, err)
			}
		}
		for _, d := range []sqllock.Dialect{sqllock.Postgres, sqllock.MySQL} {
			if _, err := sqllock.New(db, d); (err == nil) != (d.String() == b.dialect.String()) {
				t.Errorf("sqllock: %s as %v: %v", b.name, d, err)
			}
		}
		must(t, db.Close())
	}
}
