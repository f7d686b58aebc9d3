// Package sqlerr reads the error codes of SQL databases without importing their
// drivers.
package sqlerr

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// MissingTable tells whether err says that a table does not exist.
func MissingTable(err error) bool {
	return State(err) == "42P01" || MySQL(err) == 1146 || strings.Contains(err.Error(), "no such table: ")
}

// Forbidden tells whether err says that the user may not do this, or that the
// database is read-only.
func Forbidden(err error) bool {
	switch MySQL(err) {
	case 1044, 1142, 1143, 1227, 1290, 1370:
		return true
	}
	switch State(err) {
	case "42501", "25006": // insufficient privilege, read-only transaction
		return true
	}
	return strings.Contains(err.Error(), "attempt to write a readonly database")
}

// Conflict tells whether err says that the statement lost against another one, was
// rolled back, and may be sent again.
func Conflict(err error) bool {
	switch MySQL(err) {
	case 1020, 1213: // record has changed, deadlock
		return true
	}
	switch State(err) {
	case "40001", "40P01": // serialization failure, deadlock
		return true
	}
	return false
}

// State returns the five characters that PostgreSQL's drivers report.
func State(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// SQLite returns the primary result code of SQLite, 0 when there is none.
func SQLite(err error) int {
	var e interface{ Code() int }
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// MySQL returns the number of an error of MySQL or MariaDB, 0 when there is none. The error type of the MySQL
// driver has it in a field and no method; no driver is imported here.
func MySQL(err error) uint16 {
	for err != nil {
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() == reflect.Struct && v.Type().Name() == "MySQLError" {
			if n := v.FieldByName("Number"); n.IsValid() && n.Kind() == reflect.Uint16 {
				return uint16(n.Uint())
			}
		}
		err = errors.Unwrap(err)
	}
	return 0
}

// CheckDriver refuses a database whose driver, as far as its name tells, speaks
// another dialect ("postgres", "mysql", "sqlite") than the caller says.
func CheckDriver(db *sql.DB, dialect string) error {
	t := reflect.TypeOf(db.Driver())
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for driver, speaks := range map[string]string{
		"go-sql-driver/mysql": "mysql", "lib/pq": "postgres", "jackc/pgx": "postgres",
		"modernc.org/sqlite": "sqlite", "mattn/go-sqlite3": "sqlite", "ncruces/go-sqlite3": "sqlite",
	} {
		if strings.Contains(t.PkgPath(), driver) && speaks != dialect {
			return fmt.Errorf("the driver %s speaks %s, the dialect given is %s", t.PkgPath(), speaks, dialect)
		}
	}
	return nil
}
