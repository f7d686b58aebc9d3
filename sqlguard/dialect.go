package sqlguard

import (
	_ "embed"
	"fmt"

	"github.com/pitonlock/piton/internal/sqlfile"
)

// Dialect says which SQL a database speaks.
type Dialect int

// The dialects. The zero value is none of them, so that a forgotten dialect is
// refused by [New].
const (
	Postgres Dialect = iota + 1 // PostgreSQL 10 or newer
	MySQL                       // MySQL 5.7 or newer, MariaDB 10.3 or newer, InnoDB tables
	SQLite                      // SQLite 3.35 or newer
)

// String returns the name of the dialect, for messages.
func (d Dialect) String() string {
	switch d {
	case Postgres:
		return "postgres"
	case MySQL:
		return "mysql"
	case SQLite:
		return "sqlite"
	}
	return fmt.Sprintf("Dialect(%d)", int(d))
}

//go:embed postgres.sql
var postgresSQL string

//go:embed mysql.sql
var mysqlSQL string

//go:embed sqlite.sql
var sqliteSQL string

var statements = map[Dialect]map[string]string{
	Postgres: sqlfile.Named(postgresSQL),
	MySQL:    sqlfile.Named(mysqlSQL),
	SQLite:   sqlfile.Named(sqliteSQL),
}
