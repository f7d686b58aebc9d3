package sqlitelock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/pitonlock/piton"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// background is for statements that have begun: they touch one row and wait for
// nothing but the disk, and an interrupted one would leave its outcome open.
var background = context.Background()

// write runs fn in a transaction that has the write lock of the file. now is read
// after the lock was got, so that however long that took, the decision is made
// at the present time, and nobody else can decide until it is on disk.
func (c *Coordinator) write(ctx context.Context, op, lock string, fn func(now int64) error) error {
	if err := c.enter(ctx); err != nil {
		return explain(op, c.path, lock, err)
	}
	defer c.leave()
	err := retry(ctx, func() error {
		_, err := c.begin.ExecContext(background)
		return err
	})
	if err != nil {
		return explain(op, c.path, lock, err)
	}
	now, err := c.present()
	if err == nil {
		err = fn(now)
	}
	if err != nil {
		c.undo()
		return explain(op, c.path, lock, err)
	}
	if _, err := c.commit.ExecContext(background); err != nil {
		c.undo()
		return fmt.Errorf("sqlitelock: %s of %q in %s: %w: the commit failed: %w", op, lock, c.path, piton.ErrUnknown, err)
	}
	return nil
}

// undo ends a failed transaction. SQLite may have ended it already, which makes
// ROLLBACK fail and is no loss.
func (c *Coordinator) undo() { _, _ = c.rollback.ExecContext(background) }

// read runs fn, which reads with one statement.
func (c *Coordinator) read(ctx context.Context, op, lock string, fn func(now int64) error) error {
	if err := c.enter(ctx); err != nil {
		return explain(op, c.path, lock, err)
	}
	defer c.leave()
	err := retry(ctx, func() error {
		now, err := c.present()
		if err != nil {
			return err
		}
		return fn(now)
	})
	return explain(op, c.path, lock, err)
}

// present returns the boot time, provided that the open file is still the one
// that other processes find at the path.
func (c *Coordinator) present() (int64, error) {
	info, err := os.Stat(c.path)
	if err == nil && !os.SameFile(info, c.file) {
		err = errors.New("another file is at this path now")
	}
	if err != nil {
		return 0, fmt.Errorf("the file was removed or replaced while it was open: %w; open the coordinator again", err)
	}
	return c.machine.now()
}

// enter waits for the connection, which is used by one call at a time.
func (c *Coordinator) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("another call waits for the file: %w", ctx.Err())
	}
	if c.closed {
		c.leave()
		return piton.ErrClosed
	}
	return nil
}

func (c *Coordinator) leave() { <-c.turn }

// retry repeats try while another process has the file locked, until ctx ends or
// longestWait is over. SQLite's own busy timeout would not heed ctx.
func retry(ctx context.Context, try func() error) error {
	err := try()
	if !isBusy(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, longestWait)
	defer cancel()
	for pause := 200 * time.Microsecond; isBusy(err); pause = min(2*pause, 10*time.Millisecond) {
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
			err = try()
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
	return err
}

func isBusy(err error) bool {
	switch code(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return true
	}
	return false
}

// code is the primary result code of SQLite in err, 0 without one.
func code(err error) int {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code() & 0xff
}

// explain makes an error of this package from err. A refusal stays what it is,
// and so does a cancellation, except that a deadline that passed while the file
// was busy is an outage. In all other cases nothing was carried out.
func explain(op, path, lock string, err error) error {
	switch {
	case err == nil, errors.Is(err, piton.ErrHeld), errors.Is(err, piton.ErrLost):
		return err
	}
	what := op
	if lock != "" {
		what = fmt.Sprintf("%s of %q in", op, lock)
	}
	fail := func(advice string) error {
		return fmt.Errorf("sqlitelock: %s %s: %w: %s: %w", what, path, piton.ErrUnavailable, advice, err)
	}
	switch {
	case errors.Is(err, piton.ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, errNoRoom):
		return fmt.Errorf("sqlitelock: %s %s: %w", what, path, err)
	case err == context.DeadlineExceeded: // it had passed before anything was tried
		return fmt.Errorf("sqlitelock: %s %s: %w", what, path, err)
	}
	switch code(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return fail("another process has the file locked; find it with fuser and end its transaction")
	case sqlite3.SQLITE_NOTADB:
		return fail("the file is not a SQLite database; give the path of a new file, or of one that piton made")
	case sqlite3.SQLITE_CORRUPT:
		return fail("the file is damaged; move it and its -wal and -shm away when no program uses it")
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH:
		return fail("the file, its -wal and -shm beside it and their folder must be writable for this user")
	case sqlite3.SQLITE_FULL:
		return fail("the disk is full")
	case sqlite3.SQLITE_IOERR:
		return fail("the disk reported an error")
	}
	return fmt.Errorf("sqlitelock: %s %s: %w: %w", what, path, piton.ErrUnavailable, err)
}
