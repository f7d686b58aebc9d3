package servertest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitonlock/piton/internal/process"
)

const (
	readyWithin = 20 * time.Second // generous: shared machines stall
	endWithin   = 10 * time.Second
	portTries   = 5
	logLines    = 20

	// Ports between those of well-known services and those that the kernel gives
	// to outgoing connections.
	lowestPort  = 15_000
	highestPort = 32_000
)

// Server is what all kinds of servers have in common. Its methods fail the
// test when the operating system does not do as told.
type Server struct {
	kind   string
	binary string
	port   int
	folder string // of data and log
	args   func(port int) []string
	env    []string // beyond environment()
	user   *account // nil: the test's own
	probe  func(net.Conn) error
	ending syscall.Signal // ends in good order
	shared bool

	pid     int
	ended   chan struct{} // closed when the process has ended
	started time.Duration
}

// Addr is the server's host:port; it stays the same over Restart.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Pid is the process id of the server, which is another one after Restart.
func (s *Server) Pid() int { return s.pid }

// Ready is how long the last start took until the server answered.
func (s *Server) Ready() time.Duration { return s.started }

// Pause stops the server's process and all its children and returns when they
// stand still. Connections to a paused server succeed and get no answer.
func (s *Server) Pause(tb testing.TB) {
	tb.Helper()
	s.must(tb, process.PauseTree(s.pid))
}

// Resume lets the server run on after Pause.
func (s *Server) Resume(tb testing.TB) {
	tb.Helper()
	s.must(tb, process.ResumeTree(s.pid))
}

// Kill ends the server and its children by SIGKILL, paused or not, and returns
// when they are gone. Killing a server that has ended does nothing.
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	s.must(tb, s.kill())
}

// Stop ends the server in good order, for which it must not be paused. Stopping a
// server that has ended does nothing.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	s.must(tb, s.stop(s.ending))
}

// Restart starts the server again with its port and its data, after Kill, Stop
// or an end of its own; a running one is stopped first. It returns when the
// server answers.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.must(tb, s.stop(s.ending))
	s.must(tb, s.launch())
	tb.Logf("%s on %s is ready again after %v", s.kind, s.Addr(), s.started.Round(time.Millisecond))
}

func (s *Server) must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%s on %s: %v", s.kind, s.Addr(), err)
	}
}

// share makes the server outlive its test.
func (s *Server) share() { s.shared = true }

// endWith ends the server with the test. Its last words help with a failed one.
func (s *Server) endWith(tb testing.TB) {
	tb.Helper()
	tb.Logf("%s on %s is ready after %v", s.kind, s.Addr(), s.started.Round(time.Millisecond))
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("%s on %s said last:\n%s", s.kind, s.Addr(), s.lastWords())
		}
		if err := s.discard(); err != nil {
			tb.Errorf("%s on %s: %v", s.kind, s.Addr(), err)
		}
	})
}

// start launches the server on a free port, on another one when somebody else
// was faster.
func (s *Server) start(free func() (int, error)) error {
	for try := 1; ; try++ {
		port, err := free()
		if err != nil {
			return err
		}
		s.port = port
		err = s.launch()
		if err == nil {
			return nil
		}
		if try == portTries || !strings.Contains(strings.ToLower(err.Error()), "address already in use") {
			return err
		}
	}
}

// launch starts the process and waits until it answers on its port.
func (s *Server) launch() error {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the server has its own
	command := exec.Command(s.binary, s.args(s.port)...)
	command.Dir = s.folder
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = attributes(s.user)
	command.Env = append(environment(), s.env...)
	began := time.Now()
	if err := startFromLastingThread(command); err != nil {
		return fmt.Errorf("%s: %w", s.kind, err)
	}
	ended := make(chan struct{})
	s.pid, s.ended = command.Process.Pid, ended
	go func() {
		_ = command.Wait() // how it ended is in its log
		close(ended)
	}()

	ready := poll(readyWithin, func() bool { return s.hasEnded() || s.answers() == nil })
	if ready && !s.hasEnded() {
		s.started = time.Since(began)
		return nil
	}
	state := "ended before it was ready"
	if !s.hasEnded() {
		state = fmt.Sprintf("does not answer after %v (%v)", readyWithin, s.answers())
	}
	words := s.lastWords()
	if err := s.kill(); err != nil {
		return err
	}
	return fmt.Errorf("%s (%s %s) %s; its last words:\n%s",
		s.kind, s.binary, strings.Join(s.args(s.port), " "), state, words)
}

// answers is nil when this very process, not somebody else on its port, speaks
// its protocol.
func (s *Server) answers() error {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if err := listens(s.pid, s.port); err != nil {
		return err
	}
	return s.probe(conn)
}

func (s *Server) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// kill ends the whole tree. The parent is stopped first, so that it starts no
// more children meanwhile.
func (s *Server) kill() error {
	if s.hasEnded() {
		return nil
	}
	pids := []int{s.pid}
	if err := process.Pause(s.pid); err == nil { // else it has just ended
		children, err := process.Descendants(s.pid)
		if err != nil {
			return err
		}
		pids = append(pids, children...)
	}
	return errors.Join(killAll(pids), s.awaitOwnEnd("SIGKILL"))
}

// stop ends the server by the signal, and all children with it.
func (s *Server) stop(signal syscall.Signal) error {
	if s.hasEnded() {
		return nil
	}
	children, err := process.Descendants(s.pid)
	if err != nil {
		return err
	}
	if err := sendSignal(s.pid, signal); err != nil && process.Alive(s.pid) {
		return fmt.Errorf("process %d: %v: %w", s.pid, signal, err)
	}
	if err := s.awaitOwnEnd(signal.String()); err != nil {
		return err
	}
	return awaitEnd(children)
}

// awaitOwnEnd waits until hasEnded, which comes a little after the process's end.
func (s *Server) awaitOwnEnd(cause string) error {
	if !poll(endWithin, s.hasEnded) {
		return fmt.Errorf("process %d did not end within %v of %s; its last words:\n%s", s.pid, endWithin, cause, s.lastWords())
	}
	return nil
}

// discard ends the server for good and removes its folder.
func (s *Server) discard() error {
	if err := s.kill(); err != nil {
		return err
	}
	// Children whose parent has ended by itself are nobody's descendants.
	if err := killAll(processesIn(s.folder)); err != nil {
		return err
	}
	return removeFolder(s.folder)
}

func (s *Server) logFile() string { return filepath.Join(s.folder, "log") }

// lastWords is the end of the server's log.
func (s *Server) lastWords() string {
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-logLines):], []byte("\n")))
}

// killAll kills the processes and waits for their end.
func killAll(pids []int) error {
	for _, pid := range pids {
		if err := sendSignal(pid, syscall.SIGKILL); err != nil && process.Alive(pid) {
			return fmt.Errorf("process %d: %v: %w", pid, syscall.SIGKILL, err)
		}
	}
	return awaitEnd(pids)
}

func awaitEnd(pids []int) error {
	for _, pid := range pids {
		if !poll(endWithin, func() bool { return !process.Alive(pid) }) {
			return fmt.Errorf("process %d has not ended after %v", pid, endWithin)
		}
	}
	return nil
}

// freePort returns a port on which nobody listens at the moment.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		var listener net.Listener
		if listener, err = net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("no free port from %d to %d: %w", lowestPort, highestPort, err)
}

// environment is what servers and their tools see: nothing that could change
// what they do, such as PGPORT or LD_PRELOAD.
func environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
}
