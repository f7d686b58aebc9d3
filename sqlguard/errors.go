package sqlguard

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/pitonlock/piton"
)

// CommitError is what [Guard.Tx] returns when COMMIT was sent and its answer
// did not arrive: the transaction may be committed or not. errors.Is finds
// [piton.ErrUnknown] and the driver's error. [Guard.Outcome] may find out.
type CommitError struct {
	Fence piton.Fence
	Err   error // the driver's

	transaction int64 // PostgreSQL's id of the transaction, 0 elsewhere
}

func (e *CommitError) Error() string {
	return fmt.Sprintf("sqlguard: COMMIT under lock %q with token %d was not answered, so it may or may not have been carried out; look at the data before repeating it: %v",
		e.Fence.Lock, e.Fence.Token, e.Err)
}

// Unwrap makes errors.Is find piton.ErrUnknown and the driver's error.
func (e *CommitError) Unwrap() []error { return []error{piton.ErrUnknown, e.Err} }

// explain adds what to do to the errors that a fresh installation meets.
func (g *Guard) explain(action string, err error) error {
	switch {
	case err == nil:
		return nil
	case missingTable(err):
		return fmt.Errorf("sqlguard: %s: the table piton_marks does not exist in this database; call Migrate once, or run the statement that DDL returns: %w", action, err)
	case forbidden(err):
		return fmt.Errorf("sqlguard: %s: the database user lacks a privilege; it needs SELECT, INSERT and UPDATE on piton_marks: %w", action, err)
	}
	return fmt.Errorf("sqlguard: %s: %w", action, err)
}

func missingTable(err error) bool {
	return sqlState(err) == "42P01" || mysqlNumber(err) == 1146 ||
		strings.Contains(err.Error(), "no such table: piton_marks")
}

func forbidden(err error) bool {
	switch mysqlNumber(err) {
	case 1044, 1142, 1143, 1227, 1290, 1370:
		return true
	}
	switch sqlState(err) {
	case "42501", "25006": // insufficient privilege, read-only transaction
		return true
	}
	return strings.Contains(err.Error(), "attempt to write a readonly database")
}

// refusedCommit reports whether err, returned by COMMIT, is the server's word
// that nothing was committed. It answers false where there is any doubt.
func refusedCommit(err error) bool {
	if state := sqlState(err); len(state) == 5 {
		switch state[:2] {
		case "23", "25": // a deferred constraint; the transaction was ended or had failed before
			return true
		case "40": // rolled back, except "statement completion unknown"
			return state != "40003"
		}
	}
	switch mysqlNumber(err) {
	case 1205, 1213: // lock wait timeout, deadlock
		return true
	}
	switch sqliteCode(err) {
	case 5, 19: // busy: still open; a deferred constraint
		return true
	}
	return false
}

// sqlState returns the five characters that PostgreSQL's drivers report.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// sqliteCode returns the primary result code of SQLite, 0 when there is none.
func sqliteCode(err error) int {
	var e interface{ Code() int }
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// mysqlNumber returns the server's error number. The error type of the MySQL
// driver has it in a field and no method; this package imports no driver.
func mysqlNumber(err error) uint16 {
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
