package sqlerr

import (
	"errors"
	"fmt"
	"testing"
)

type stateError string

func (e stateError) Error() string    { return "state " + string(e) }
func (e stateError) SQLState() string { return string(e) }

type codeError int

func (e codeError) Error() string { return fmt.Sprint("code ", int(e)) }
func (e codeError) Code() int     { return int(e) }

// MySQLError has the shape of the driver's.
type MySQLError struct{ Number uint16 }

func (e *MySQLError) Error() string { return fmt.Sprint("number ", e.Number) }

func TestCodesAreFoundInChains(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("outer: %w", err) }
	if got := State(wrap(stateError("42P01"))); got != "42P01" {
		t.Errorf("state %q", got)
	}
	if got := SQLite(wrap(codeError(5 | 2<<8))); got != 5 {
		t.Errorf("code %d; want the primary one, 5", got)
	}
	if got := MySQL(wrap(&MySQLError{1146})); got != 1146 {
		t.Errorf("number %d", got)
	}
	if other := errors.New("other"); State(other) != "" || SQLite(other) != 0 || MySQL(other) != 0 || MissingTable(other) || Forbidden(other) {
		t.Error("an error without a code has one")
	}
}

func TestWhatIsMissingOrForbidden(t *testing.T) {
	for _, err := range []error{stateError("42P01"), &MySQLError{1146}, errors.New("SQL logic error: no such table: piton_marks (1)")} {
		if !MissingTable(err) || Forbidden(err) {
			t.Errorf("%v is not a missing table", err)
		}
	}
	for _, err := range []error{stateError("42501"), stateError("25006"), &MySQLError{1142}, errors.New("attempt to write a readonly database (8)")} {
		if !Forbidden(err) || MissingTable(err) {
			t.Errorf("%v is not a missing privilege", err)
		}
	}
}
