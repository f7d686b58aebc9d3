package sqlguard

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/pitonlock/piton"
)

// Tx runs fn in a transaction that is admitted under f and commits when fn
// returns nil. fn uses tx with the ctx that it is given, returns every error of
// its statements, and neither commits nor rolls back. The transaction is READ
// COMMITTED on PostgreSQL and MySQL; on SQLite it has the write lock from the
// beginning, as after BEGIN IMMEDIATE. On MySQL a statement that commits by itself,
// such as TRUNCATE or CREATE TABLE, splits fn into two transactions, each of which
// commits only if the fence is the newest.
//
// An error of fn rolls back and is returned; a panic of fn rolls back and goes
// on. So does the end of ctx, or of its lease, before COMMIT was sent; errors.Is
// finds its cause. COMMIT itself is not cancelled by ctx: the mark is locked, so
// it is safe however late, and cancelling it could only make its outcome unknown.
// When its answer is lost, the error is a *[CommitError], which is
// [piton.ErrUnknown]. Refusals are those of [Guard.Admit].
func (g *Guard) Tx(ctx context.Context, f piton.Fence, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if err := validate(f); err != nil {
		return err
	}
	action := fmt.Sprintf("transaction under %q with token %d", f.Lock, f.Token)
	return g.run(ctx, f, action, func(s *session) (err error) {
		if s.transaction, err = g.admit(ctx, s.tx, f, s.bounds); err != nil {
			return err
		}
		if err = fn(ctx, s.tx); err != nil && ctx.Err() != nil {
			return withCause(ctx, err)
		}
		if err == nil && g.dialect == MySQL {
			// TRUNCATE, DDL and the like have committed, and with that unlocked the mark.
			// What came after them is in a new transaction, which is shown the fence here.
			_, err = g.admit(ctx, s.tx, f, s.bounds)
		}
		return err
	})
}

// session is one transaction on one connection of the pool.
type session struct {
	guard       *Guard
	ctx         context.Context // the caller's values without its end
	conn        *sql.Conn
	tx          *sql.Tx
	cancel      context.CancelFunc // ends the context that tx was begun with
	unbind      func(context.Context) error
	bounds      bounds
	transaction int64
}

// run begins a transaction, hands it to work and commits if work returns nil.
func (g *Guard) run(ctx context.Context, f piton.Fence, action string, work func(*session) error) (err error) {
	s, stop, err := g.begin(ctx)
	if err != nil {
		return g.explain(action, withCause(ctx, err))
	}
	committing := false
	defer func() { // also when work panics
		if !committing {
			stop()
			_ = s.end(s.rollback) // the server rolls back what it does not hear of
		}
	}()
	if err := work(s); err != nil {
		return err
	}
	if !stop() {
		return fmt.Errorf("sqlguard: %s: rolled back, because the context ended before COMMIT: %w", action, context.Cause(ctx))
	}
	committing = true
	err = s.end(s.commit)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errRefused):
		return fmt.Errorf("sqlguard: %s: the database refused COMMIT and rolled back: %w", action, err)
	}
	return &CommitError{Fence: f, Err: err, transaction: s.transaction}
}

// begin starts a transaction that ends with ctx until stop has returned true.
// database/sql would hand the context of BeginTx to COMMIT as well; that one must
// not be the lease's.
func (g *Guard) begin(ctx context.Context) (s *session, stop func() bool, err error) {
	b, err := boundsOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	conn, err := g.db.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	unbind, err := g.bind(ctx, conn, b)
	if err != nil {
		discard(conn)
		return nil, nil, err
	}
	own := context.WithoutCancel(ctx)
	txCtx, cancel := context.WithCancel(own)
	stop = context.AfterFunc(ctx, cancel)
	level := sql.LevelReadCommitted
	if g.dialect == SQLite {
		level = sql.LevelDefault
	}
	tx, err := conn.BeginTx(txCtx, &sql.TxOptions{Isolation: level})
	if err != nil {
		stop()
		cancel()
		discard(conn)
		return nil, nil, err
	}
	return &session{guard: g, ctx: own, conn: conn, tx: tx, cancel: cancel, unbind: unbind, bounds: b}, stop, nil
}

var (
	errRefused  = errors.New("not committed")
	errNoAnswer = errors.New("sqlguard: the driver did not return in time")
)

// end runs finish and gives the connection back. Both are given the time limit
// in a goroutine of their own, because there are drivers that wait for an answer
// whatever their context says; it then ends when the driver gives up.
func (s *session) end(finish func(context.Context) error) error {
	limit := s.guard.CommitTimeout
	if limit <= 0 {
		limit = 10 * time.Second
	}
	result := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(s.ctx, limit)
		defer cancel()
		defer context.AfterFunc(ctx, s.cancel)()
		err := finish(ctx)
		result <- err
		s.giveBack(ctx, err)
	}()
	const grace = time.Second // for a driver to notice the end of its context
	timer := time.NewTimer(limit + grace)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	select {
	case err := <-result:
		return err
	default:
		return errNoAnswer
	}
}

// commit returns nil, an error that wraps errRefused when the transaction is
// certainly not committed, or any other error when that is not known.
func (s *session) commit(ctx context.Context) error {
	var err error
	if s.guard.dialect == MySQL {
		// Its driver obeys no context in Tx.Commit, but does in Exec.
		if _, err = s.tx.ExecContext(ctx, "COMMIT"); err == nil {
			_ = s.tx.Commit() // nothing is left to commit; ends the *sql.Tx
			return nil
		}
	} else {
		err = s.tx.Commit()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("the function ended the transaction by itself: %w", err)
	case doubtful(err):
		return err
	case refusedCommit(err):
		return fmt.Errorf("%w: %w", errRefused, err)
	case s.guard.dialect == Postgres && s.conn.PingContext(ctx) == nil:
		// The connection is in step, so the server has answered, and its answer
		// was not COMMIT: a statement had failed and fn did not say so.
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}

// rollback returns nil when the connection can be used again.
func (s *session) rollback(ctx context.Context) error {
	if s.guard.dialect == MySQL {
		// Its driver obeys no context in Tx.Rollback, but does in Exec. sql.ErrTxDone
		// is an error here: whoever ended the transaction, most likely database/sql at
		// the end of the lease, may not have said so to the server yet, and what puts
		// the session's settings back would commit it (SET autocommit).
		if _, err := s.tx.ExecContext(ctx, "ROLLBACK"); err != nil {
			return err
		}
	}
	if err := s.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// giveBack returns the connection to the pool as it was, or closes it.
func (s *session) giveBack(ctx context.Context, err error) {
	defer s.cancel()
	if err != nil {
		_ = s.tx.Rollback() // ends the *sql.Tx, which holds the connection
		discard(s.conn)
		return
	}
	if err := s.unbind(ctx); err != nil {
		discard(s.conn)
		return
	}
	_ = s.conn.Close()
}

// discard closes a connection whose state is not known.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}

// Outcome is what became of a transaction.
type Outcome int

// The outcomes. Undecided is an answer too: the COMMIT may still be on its way.
const (
	Undecided  Outcome = iota // not ended yet, or the server no longer knows
	Committed                 // the transaction is committed
	RolledBack                // the transaction is not committed and never will be
)

// Outcome asks the server what became of the transaction whose [Guard.Tx]
// returned err, a *[CommitError]. Only PostgreSQL can tell, and only the server
// that ran the transaction, not one that was promoted since. Elsewhere the error
// wraps [errors.ErrUnsupported]; there the data has to tell.
func (g *Guard) Outcome(ctx context.Context, err error) (Outcome, error) {
	var lost *CommitError
	if !errors.As(err, &lost) {
		return Undecided, fmt.Errorf("sqlguard: outcome: want the *CommitError that Tx returned, got: %w", err)
	}
	if lost.transaction == 0 {
		return Undecided, fmt.Errorf("sqlguard: outcome: %v keeps no status of transactions: %w", g.dialect, errors.ErrUnsupported)
	}
	var status string
	if err := g.db.QueryRowContext(ctx, g.sql["status"], lost.transaction).Scan(&status); err != nil {
		return Undecided, g.explain("outcome", err)
	}
	switch status {
	case "committed":
		return Committed, nil
	case "aborted":
		return RolledBack, nil
	}
	return Undecided, nil
}
