// Package servertest starts real servers for tests: Redis, etcd, Consul,
// PostgreSQL, MariaDB, PgBouncer.
//
//	func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }
//
//	func TestSomething(t *testing.T) {
//		redis := servertest.SharedRedis(t)       // one per test binary
//		db := servertest.SharedPostgres(t).NewDatabase(t) // fresh, dropped at the end
//		own := servertest.StartRedis(t, "--maxmemory", "3mb") // for this test alone
//		own.Pause(t)
//		...
//	}
//
// A server of the Shared functions is started when the first test asks for it
// and runs until [Main] ends; pause, kill or restart only servers of your own.
// A server of the Start functions ends with its test.
//
// # Addresses
//
// Servers listen on a free port of 127.0.0.1 that lies outside the system's
// range for outgoing connections, so that it is still free when a killed server
// is restarted. Addr is host:port, URL what piton's command line takes, DSN what
// the Go drivers take. There are no passwords.
//
// # Data
//
// Data are in temporary folders: in TMPDIR when that is set and open to the
// servers' users, else in /dev/shm or /tmp. They survive Kill and Restart (Redis:
// --appendonly yes; give "--appendonly", "no" for one that forgets), but nothing
// is flushed to the disk: fsync is off. New PostgreSQL and MariaDB data folders
// are copied from a template that is made once per machine, user and server
// version; making it takes a second or two.
//
// # Endings
//
// No server outlives the test process, not even one that was killed: the kernel
// kills the server then. What such a run has left behind, folders and stopped
// child processes, the next run removes.
//
// # Missing servers
//
// A missing server program skips the test with the program's and its Debian
// package's name; with CI=true in the environment it fails the test. Programs
// are looked for in PATH, /usr/sbin and /usr/lib/postgresql/*/bin; Consul also where
// consul.sh puts it, since Debian 12 has no package of it. Servers are started on
// Linux only. As root, PostgreSQL runs as user postgres or nobody.
package servertest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// Main runs the tests, stops the shared servers, removes the run's folder and
// returns the exit code. Call it from TestMain.
func Main(m *testing.M) int {
	code := m.Run()
	for _, shared := range []interface{ end() error }{&sharedRedis, &sharedEtcd, &sharedConsul, &sharedPostgres, &sharedMariaDB} {
		if err := shared.end(); err != nil {
			fmt.Fprintln(os.Stderr, "servertest:", err)
			code = max(code, 1)
		}
	}
	if err := endRun(); err != nil {
		fmt.Fprintln(os.Stderr, "servertest:", err)
		code = max(code, 1)
	}
	return code
}

// Eventually polls until the condition holds, and fails the test with what when
// that takes longer than within. It asks at least once, and once more at the
// end. Call it from the test's own goroutine.
func Eventually(tb testing.TB, within time.Duration, condition func() bool, what ...any) {
	tb.Helper()
	if !poll(within, condition) {
		tb.Fatalf("not within %v: %s", within, fmt.Sprint(what...))
	}
}

// poll asks until the answer is yes or the time is over.
func poll(within time.Duration, condition func() bool) bool {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(within)
	for {
		last := !time.Now().Before(deadline)
		if condition() {
			return true
		}
		if last {
			return false
		}
		<-tick.C
	}
}

// missingError is a program that is not installed.
type missingError struct{ program, debian string }

func (e *missingError) Error() string {
	return fmt.Sprintf("%s is not installed (Debian package %s)", e.program, e.debian)
}

// check ends the test on an error: by a skip when a program is missing, except
// in CI.
func check(tb testing.TB, err error) {
	tb.Helper()
	var missing *missingError
	switch {
	case err == nil:
	case errors.As(err, &missing) && os.Getenv("CI") != "true", errors.Is(err, errSystem):
		tb.Skip(err)
	default:
		tb.Fatal(err)
	}
}

// ownable is a kind of server.
type ownable interface {
	endWith(tb testing.TB) // with this test
	share()                // with all tests
	discard() error
}

// shared is a server for all tests of the binary.
type shared[S ownable] struct {
	mu      sync.Mutex
	server  S
	running bool
}

// get returns the server and starts it when it is not there yet.
func (s *shared[S]) get(tb testing.TB, start func() (S, error)) S {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		server, err := start()
		check(tb, err)
		server.share()
		s.server, s.running = server, true
	}
	return s.server
}

func (s *shared[S]) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return nil
	}
	s.running = false
	return s.server.discard()
}

// own hands a server to one test.
func own[S ownable](tb testing.TB, server S, err error) S {
	tb.Helper()
	check(tb, err)
	server.endWith(tb)
	return server
}
