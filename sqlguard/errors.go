package sqlguard

import (
	"fmt"
	"strings"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/sqlerr"
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
	case sqlerr.MissingTable(err):
		return fmt.Errorf("sqlguard: %s: the table piton_marks does not exist in this database; call Migrate once, or run the statement that DDL returns: %w", action, err)
	case sqlerr.Forbidden(err):
		return fmt.Errorf("sqlguard: %s: the database user lacks a privilege; it needs SELECT, INSERT and UPDATE on piton_marks: %w", action, err)
	}
	return fmt.Errorf("sqlguard: %s: %w", action, err)
}

// refusedCommit reports whether err, returned by COMMIT, is the server's word
// that nothing was committed. It answers false where there is any doubt.
func refusedCommit(err error) bool {
	if state := sqlerr.State(err); len(state) == 5 {
		switch state[:2] {
		case "23", "25", "40": // a deferred constraint; the transaction was ended or had failed before; rolled back
			return true
		}
	}
	switch sqlerr.MySQL(err) {
	case 1205, 1213: // lock wait timeout, deadlock
		return true
	}
	switch sqlerr.SQLite(err) {
	case 5, 19: // busy: still open; a deferred constraint
		return true
	}
	return false
}

// doubtful tells whether the server itself says that it does not know whether it
// committed: "statement completion unknown", and the class of lost connections.
func doubtful(err error) bool {
	state := sqlerr.State(err)
	return state == "40003" || strings.HasPrefix(state, "08")
}
