package sqlitelock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pitonlock/piton"
)

// TestMain runs the part of another process when a test has asked for it.
func TestMain(m *testing.M) {
	if part := os.Getenv("PITON_TEST_PART"); part != "" {
		if err := parts[part](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fakeMachine is a machine whose clock the test moves.
type fakeMachine struct{ ns atomic.Int64 }

func (f *fakeMachine) boot(id string) machine {
	return machine{bootID: id, now: func() (int64, error) { return f.ns.Load(), nil }}
}

func (f *fakeMachine) pass(d time.Duration) { f.ns.Add(int64(d)) }

func newPath(t *testing.T) string { return filepath.Join(t.TempDir(), "locks.db") }

func openWith(t *testing.T, path string, m machine) *Coordinator {
	t.Helper()
	c, err := open(path, settings{machine: m, synchronous: "OFF"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// openFake opens a new file under a clock that stands still.
func openFake(t *testing.T) (*Coordinator, *fakeMachine) {
	t.Helper()
	f := new(fakeMachine)
	f.pass(time.Hour)
	return openWith(t, newPath(t), f.boot("boot-1")), f
}

func openReal(t *testing.T, path string) *Coordinator {
	t.Helper()
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func request(lock, holder string) piton.Request {
	return piton.Request{Lock: lock, Holder: holder, Owner: "owner of " + holder, TTL: 10 * time.Second}
}

func take(t *testing.T, c *Coordinator, lock, holder string) piton.Grant {
	t.Helper()
	g, err := c.Acquire(context.Background(), request(lock, holder))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func wantHeld(t *testing.T, err error) *piton.HeldError {
	t.Helper()
	var held *piton.HeldError
	if !errors.As(err, &held) || !errors.Is(err, piton.ErrHeld) {
		t.Fatalf("got %v, want a *HeldError", err)
	}
	return held
}

func wantLost(t *testing.T, err error, reason piton.Reason, by piton.Token) {
	t.Helper()
	var lost *piton.LostError
	if !errors.As(err, &lost) {
		t.Fatalf("got %v, want a *LostError", err)
	}
	if lost.Reason != reason || lost.By != by {
		t.Fatalf("got reason %q by %d, want %q by %d", lost.Reason, lost.By, reason, by)
	}
}

// poll calls try until it is true; it fails the test when limit is over.
func poll(t *testing.T, limit time.Duration, what string, try func() bool) {
	t.Helper()
	end := time.After(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !try() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// foreign is a connection of another program to the same file.
func foreign(t *testing.T, path string) *sql.Conn {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(conn.Close(), db.Close()) })
	return conn
}

func run(t *testing.T, conn *sql.Conn, statement string) {
	t.Helper()
	if _, err := conn.ExecContext(context.Background(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func number(t *testing.T, conn *sql.Conn, query string) (n int64) {
	t.Helper()
	if err := conn.QueryRowContext(context.Background(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}
