package e2e

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/process"
	"github.com/pitonlock/piton/sqlguard"
)

func init() { helpers["guarded-holder"] = guardedHolder }

// holderLease is the time that the helper's context leaves for its transaction.
const holderLease = 1500 * time.Millisecond

// guardedHolder is a holder in a process of its own: it seals, says so, and
// writes when it is told to. In the mode "inside" it stops to ask within its
// transaction, otherwise before it.
func guardedHolder() error {
	var backend sqlBackend
	for _, b := range sqlBackends {
		if b.name == os.Getenv("HOLDER_BACKEND") {
			backend = b
		}
	}
	s, err := backend.connect(os.Getenv("HOLDER_DSN"))
	if err != nil {
		return err
	}
	f, err := piton.ParseFence(os.Getenv("HOLDER_FENCE"))
	if err != nil {
		return err
	}
	ctx := context.Background()
	if err := s.Seal(ctx, f); err != nil {
		return err
	}
	orders := bufio.NewReader(os.Stdin)
	ask := func() error {
		fmt.Println("ready")
		_, err := orders.ReadString('\n')
		return err
	}
	inside := os.Getenv("HOLDER_MODE") == "inside"
	if !inside {
		if err := ask(); err != nil {
			return err
		}
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, holderLease)
		defer cancel()
	}
	err = s.Tx(ctx, f, func(ctx context.Context, tx *sql.Tx) error {
		if inside {
			if err := ask(); err != nil {
				return err
			}
		}
		return numbers{tx, s.dialect}.Write(ctx, "k", int64(f.Token))
	})
	var stale *piton.StaleError
	switch {
	case errors.As(err, &stale):
		fmt.Printf("stale %d %d\n", stale.Fence.Token, stale.Mark.Token)
	case err != nil:
		fmt.Printf("failed: %v\n", err)
	default:
		fmt.Println("written")
	}
	return nil
}

// holder is a running guardedHolder.
type holder struct {
	tb    testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func startHolder(t *testing.T, b sqlBackend, dsn string, f piton.Fence, mode string) *holder {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), helperVariable+"=guarded-holder", "HOLDER_BACKEND="+b.name, "HOLDER_DSN="+dsn, "HOLDER_FENCE="+f.String(), "HOLDER_MODE="+mode)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // ends a stopped process too
		_ = cmd.Wait()
	})
	h := &holder{t, cmd, in, bufio.NewScanner(out)}
	if line := h.line(); line != "ready" {
		t.Fatalf("the holder says %q; want ready", line)
	}
	return h
}

func (h *holder) line() string {
	h.tb.Helper()
	if !h.lines.Scan() {
		h.tb.Fatalf("the holder ended without a word: %v", h.lines.Err())
	}
	return h.lines.Text()
}

// freeze stops the process and waits until it really is stopped.
func (h *holder) freeze() {
	h.tb.Helper()
	must(h.tb, process.Pause(h.cmd.Process.Pid))
}

// thaw leaves the order to go on in the pipe and lets the process run.
func (h *holder) thaw() {
	h.tb.Helper()
	_, err := io.WriteString(h.in, "go\n")
	must(h.tb, err, process.Resume(h.cmd.Process.Pid))
}

// Field fault D08: a holder stopped before its write wakes up after its
// successor has written.
func TestGuardStaleHolderWrites(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, dsn string, s *sqlStore) {
		for round := range 3 {
			first := piton.Token(10 * (round + 1))
			a, next := fence("d08", first, "a"), fence("d08", first+1, "b")
			h := startHolder(t, b, dsn, a, "before")
			h.freeze()
			must(t, s.Seal(t.Context(), next), s.put(t.Context(), next, "k", int64(next.Token)))
			h.thaw()
			if line, want := h.line(), fmt.Sprintf("stale %d %d", a.Token, next.Token); line != want {
				t.Errorf("the woken holder says %q; want %q", line, want)
			}
			if v := s.value(t, "k"); v != int64(next.Token) {
				t.Errorf("value %d; want the successor's %d", v, next.Token)
			}
			if mark, _, err := s.Mark(t.Context(), a.Lock); mark != next || err != nil {
				t.Errorf("mark %v, %v; want %v", mark, err, next)
			}
		}
	})
}

// A holder that freezes inside of its transaction has the mark locked. The
// server ends that transaction by itself, and the successor's seal gets through.
func TestGuardFrozenInsideTransaction(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, dsn string, s *sqlStore) {
		a, next := fence("frozen", 1, "a"), fence("frozen", 2, "b")
		h := startHolder(t, b, dsn, a, "inside")
		h.freeze()
		start := time.Now()
		if b.name == "sqlite" {
			// There is no server. The seal ends with its context, as an unknown outcome.
			ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
			defer cancel()
			err := s.Seal(ctx, next)
			if took := time.Since(start); err == nil || errors.Is(err, piton.ErrStale) || took > 3*time.Second {
				t.Errorf("seal against a frozen writer: %v after %v; want an error that is not stale within its 0.7s", err, took)
			}
		} else {
			short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			err := s.Seal(short, next)
			cancel()
			if err == nil || errors.Is(err, piton.ErrStale) || time.Since(start) > 1300*time.Millisecond {
				t.Errorf("seal with 0.3s against a frozen holder: %v after %v; want an error that is not stale, in time", err, time.Since(start))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			must(t, s.Seal(ctx, next), s.put(ctx, next, "k", 2))
			// Whole seconds on MariaDB, which also looks only once a second.
			if took := time.Since(start); took > holderLease+3*time.Second {
				t.Errorf("the successor waited %v for a holder with %v left", took, holderLease)
			}
		}
		h.thaw()
		line := h.line()
		if b.name == "sqlite" && line != "written" {
			t.Errorf("the holder that woke in time, with the mark still its own, says %q; want written", line)
		}
		if b.name != "sqlite" && !strings.HasPrefix(line, "failed: ") {
			t.Errorf("the holder that woke too late says %q; want a failure", line)
		}
		must(t, s.Seal(t.Context(), next), s.put(t.Context(), next, "k", 2))
		if v := s.value(t, "k"); v != 2 {
			t.Errorf("value %d; want the successor's 2", v)
		}
	})
}

// A seal that was given up does not go on waiting inside of the server.
func TestGuardSealLeavesNoWaiter(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, _ string, s *sqlStore) {
		query := map[sqlguard.Dialect]string{
			sqlguard.Postgres: `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`,
			sqlguard.MySQL:    `SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'INSERT INTO piton_marks%'`,
		}[b.dialect]
		if query == "" {
			return // SQLite waits in this process
		}
		a, next := fence("waiter", 1, "a"), fence("waiter", 2, "b")
		must(t, s.Seal(t.Context(), a))
		waiters := func() (n int) {
			must(t, s.db.QueryRowContext(t.Context(), query).Scan(&n))
			return n
		}
		must(t, s.Tx(t.Context(), a, func(context.Context, *sql.Tx) error {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- s.Seal(ctx, next) }()
			eventually(t, func() bool { return waiters() == 1 }, "the seal does not wait for the open transaction")
			if err := <-done; err == nil || errors.Is(err, piton.ErrStale) {
				t.Errorf("seal against an open transaction: %v; want an error that is not stale", err)
			}
			eventually(t, func() bool { return waiters() == 0 }, "the server still waits for a seal that was given up")
			return nil
		}))
		must(t, s.Seal(t.Context(), next))
	})
}
