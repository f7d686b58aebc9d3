//go:build linux

// Package group runs one command so that nothing of it outlives a deadline.
//
// Between piton and the command stands a watcher, a second process of the same
// program:
//
//	piton --- orders, deadline ---> watcher (own group) ---> command (own group)
//	      <-- started, exited, gone --
//
// The watcher is the parent of the command and a child subreaper, so every
// descendant, also one that called setsid or whose parent has died, stays below
// it. It keeps the deadline by itself:
//
//   - piton tells it after each renewal how long the lease is trusted. When no
//     such word comes (coordinator cut off, piton stopped or starved), it sends
//     TERM a grace time before the trusted end and KILL just before that end.
//   - piton dies, by KILL too: the order pipe ends, and it sends KILL at once.
//   - the command ends: what it left behind gets TERM, then KILL.
//   - the watcher itself is killed: the kernel sends KILL to the command
//     (parent-death signal) and gives the rest to piton, which kills it.
//   - the watcher is stopped: piton kills by itself just before the trusted end.
//
// All is over when the watcher has no child left: a subreaper without children
// has no descendants. The deadline is CLOCK_BOOTTIME, which goes on while the
// machine is suspended.
//
// What escapes: work that the command asked another service to do (systemd-run,
// docker, at, ssh), and processes of another user that piton may not signal.
package group

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// WatchArg is the hidden first argument that makes the program a watcher.
const WatchArg = "__watch"

// watchName is what process lists show for the watcher. It does not contain
// "piton", so that `pkill -9 piton` leaves somebody to clean up.
const watchName = "lock-watch"

// Command says what to run.
type Command struct {
	Path     string        // file to execute, as [LookPath] returned it
	Args     []string      // argv, including the command's own name
	Env      []string      // complete environment
	Grace    time.Duration // between TERM and KILL
	Margin   time.Duration // KILL is sent this long before the trusted end
	Until    time.Time     // trusted end at the start; moved by [Group.Trust]
	Terminal bool          // make the command's group the terminal's foreground group
}

// Result says how the command ended.
type Result struct {
	Status  syscall.WaitStatus // of the command itself; meaningless when Err is set
	Overdue bool               // it was ended because its trusted time ran out
	Err     error              // it could not be started, or its end could not be observed
}

// Group is a running command with all its descendants. Its methods are safe for
// concurrent use.
type Group struct {
	margin  time.Duration
	watcher int // pid

	writing sync.Mutex // one order at a time
	orders  *os.File
	last    *time.Timer // the last resort, should the watcher not act
	forced  atomic.Bool // the last resort was taken

	started chan error
	done    chan struct{}
	result  Result // written by listen, read after done
}

// Start starts the watcher and the command. When it returns nil the command
// runs; the error of a command that could not be executed wraps the
// [syscall.Errno]. This process must have no other children: when the watcher
// is killed, every descendant of this process is.
func Start(c Command) (*Group, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("becoming a child subreaper: %w", err)
	}
	ordersRead, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	reports, reportsWrite, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, ordersRead.Close(), orders.Close())
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{watchName, WatchArg}, &syscall.ProcAttr{
		Env:   c.Env,
		Files: []uintptr{0, 1, 2, ordersRead.Fd(), reportsWrite.Fd()},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	err = errors.Join(err, ordersRead.Close(), reportsWrite.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the watcher: %w", err), orders.Close(), reports.Close())
	}
	g := &Group{
		margin: c.Margin, watcher: pid, orders: orders,
		started: make(chan error, 1), done: make(chan struct{}),
	}
	g.last = time.AfterFunc(time.Until(c.Until)-c.Margin/2, g.kill)
	go g.listen(reports)
	g.order(order{Start: &start{Path: []byte(c.Path), Args: bytesOf(c.Args), Terminal: c.Terminal, Grace: c.Grace, Margin: c.Margin}, Until: bootTime(c.Until)})
	if err := <-g.started; err != nil {
		<-g.done
		return nil, err
	}
	return g, nil
}

// Trust moves the deadline to until, which is read with its monotonic clock.
func (g *Group) Trust(until time.Time) {
	g.last.Reset(time.Until(until) - g.margin/2)
	g.order(order{Until: bootTime(until)})
}

// Signal forwards sig to the command's process group.
func (g *Group) Signal(sig syscall.Signal) { g.order(order{Signal: sig}) }

// End sends TERM to everything and KILL after the grace time, or before the
// trusted end if that comes first.
func (g *Group) End() { g.order(order{End: true}) }

// Resume hands over the terminal again and continues a command that had stopped
// for want of it: after `fg` in the shell.
func (g *Group) Resume() { g.order(order{Resume: true}) }

// Done is closed when the command and all its descendants are gone.
func (g *Group) Done() <-chan struct{} { return g.done }

// Result is valid after Done.
func (g *Group) Result() Result { return g.result }

// order fails only when the watcher is gone, which listen sees by itself.
func (g *Group) order(o order) {
	line, err := json.Marshal(o)
	if err != nil {
		panic(err) // plain struct of strings and numbers
	}
	g.writing.Lock()
	defer g.writing.Unlock()
	// A stopped watcher must not block piton: 64 KiB of pipe hold about two
	// thousand orders, and the last resort comes long before that.
	_, _ = g.orders.Write(append(line, '\n'))
}

func (g *Group) listen(reports *os.File) {
	defer close(g.done)
	r := bufio.NewReader(reports)
	running, gone := false, false
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			break
		}
		var rep report
		if json.Unmarshal(line, &rep) != nil {
			break
		}
		switch {
		case rep.Errno != 0:
			g.result.Err = rep.Errno
		case rep.Pid != 0:
			running = true
			g.started <- nil
		case rep.Gone:
			gone = true
			g.result.Status, g.result.Overdue = rep.Status, rep.Overdue
		}
	}
	if !gone && g.result.Err == nil {
		g.result.Err = errors.New("the watcher of the command was killed; the command was stopped")
		g.killAll()
	}
	if !g.reap(5 * time.Second) {
		g.result.Err = fmt.Errorf("processes of the command are alive and cannot be killed: %v", pidsOf(descendants(os.Getpid())))
	}
	g.last.Stop()
	g.result.Overdue = g.result.Overdue || g.forced.Load()
	_ = reports.Close()
	if !running {
		g.started <- g.result.Err
	}
}

// reap waits until this process has no child left, killing what it finds.
// The watcher has said that it is done or is dead, so there is nothing to spare.
func (g *Group) reap(atMost time.Duration) bool {
	end := time.Now().Add(atMost)
	for time.Now().Before(end) {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.ECHILD):
			return true
		case pid == 0:
			<-time.After(retryKill)
			for _, p := range descendants(os.Getpid()) {
				if p.pid != g.watcher {
					_ = syscall.Kill(p.pid, syscall.SIGKILL)
				}
			}
		}
	}
	return false
}

// kill is the last resort: it goes past the watcher, which has not acted in time.
func (g *Group) kill() {
	g.forced.Store(true)
	g.killAll()
}

func (g *Group) killAll() {
	for _, p := range descendants(os.Getpid()) {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
}
