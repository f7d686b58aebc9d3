//go:build linux

package group

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The watcher's ends of the two pipes.
const (
	ordersFD  = 3
	reportsFD = 4
)

// retryKill is the pause between two rounds of KILL while something is alive:
// a process that was born during one round is found by the next.
const retryKill = 3 * time.Millisecond

// watcher is the state of the watching process.
//
//	running --(deadline near | End | command exited)--> ending --(grace over)--> killing
//	   any  --(order pipe ended)------------------------------------------------> killing
//
// It leaves each state as soon as no descendant is left.
type watcher struct {
	reports *os.File
	alarm   *alarm
	tty     *os.File // nil without a controlling terminal
	start   start

	pgid    int
	status  syscall.WaitStatus
	exited  bool // the command itself; from then on pgid may belong to a stranger
	until   int64
	ending  int64 // when TERM was sent, 0 before
	killing bool
	overdue bool
}

// Watch is the main function of the watcher and returns its exit code.
func Watch() int {
	// The parent-death signal of the command follows the thread that forked it.
	runtime.LockOSThread()
	unix.CloseOnExec(ordersFD)
	unix.CloseOnExec(reportsFD)
	w := &watcher{reports: os.NewFile(reportsFD, "reports")}
	orders := make(chan order)
	go readOrders(os.NewFile(ordersFD, "orders"), orders)
	first, ok := <-orders
	if !ok || first.Start == nil {
		return 1
	}
	w.start, w.until = *first.Start, first.Until
	children := make(chan os.Signal, 1)
	if err := w.launch(children); err != nil {
		var errno syscall.Errno
		if !errors.As(err, &errno) {
			errno = syscall.EIO
		}
		w.report(report{Errno: errno})
		return 0
	}
	w.loop(orders, children)
	return 0
}

// launch starts the command and lets go of its streams, so that a pipe ends when
// the command closes it.
func (w *watcher) launch(children chan os.Signal) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	var err error
	if w.alarm, err = newAlarm(); err != nil {
		return err
	}
	w.tty, _ = os.OpenFile("/dev/tty", os.O_RDWR, 0) // none: nothing to hand over
	signal.Notify(children, syscall.SIGCHLD)
	// Whatever hits the terminal or is sent by name must not end the watcher.
	// Caught, not ignored: the command would inherit that.
	Deafen(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTSTP,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE, syscall.SIGALRM)
	sys := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if w.start.Terminal && w.tty != nil {
		sys.Foreground, sys.Ctty = true, int(w.tty.Fd())
	}
	w.pgid, err = syscall.ForkExec(string(w.start.Path), stringsOf(w.start.Args), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: sys,
	})
	if err != nil {
		return err
	}
	DropStreams(0, 1, 2)
	_ = os.WriteFile("/proc/self/comm", []byte(watchName), 0) // cosmetic
	w.report(report{Pid: w.pgid})
	return nil
}

func (w *watcher) loop(orders <-chan order, children <-chan os.Signal) {
	for !w.reap() {
		w.act()
		select {
		case o, ok := <-orders:
			if !ok { // piton is dead
				orders, w.killing = nil, true
				continue
			}
			w.obey(o)
		case <-children:
		case <-w.alarm.C:
		}
	}
	w.report(report{Gone: true, Status: w.status, Overdue: w.overdue})
}

func (w *watcher) obey(o order) {
	if o.Until != 0 {
		w.until = o.Until
	}
	if o.Signal != 0 && !w.exited {
		_ = syscall.Kill(-w.pgid, o.Signal) // gone already: reap sees it
	}
	if o.End {
		w.end()
	}
	if o.Resume && !w.exited {
		handOver(w.tty, w.pgid)
		_ = syscall.Kill(-w.pgid, syscall.SIGCONT)
	}
}

// act does what is due now and arms the alarm for what is due next.
func (w *watcher) act() {
	now := bootNow()
	next := w.until - int64(max(w.start.Grace, w.start.Margin))
	if w.ending == 0 && now >= next {
		w.overdue = true
		w.end()
	}
	if w.ending != 0 {
		next = min(w.ending+int64(w.start.Grace), w.until-int64(w.start.Margin))
		if now >= next {
			w.killing = true
		}
	}
	if w.killing {
		w.signalAll(syscall.SIGKILL)
		next = bootNow() + int64(retryKill)
	}
	if err := w.alarm.set(next); err != nil {
		// Without a clock nothing can be promised: end it now.
		w.signalAll(syscall.SIGKILL)
		w.killing = true
	}
}

func (w *watcher) end() {
	if w.ending != 0 {
		return
	}
	w.ending = bootNow()
	w.signalAll(syscall.SIGTERM)
	w.signalAll(syscall.SIGCONT) // a stopped process cannot react to TERM
}

// signalAll reaches the command's group in one step and then, one by one, the
// descendants that left it.
func (w *watcher) signalAll(sig syscall.Signal) {
	if !w.exited {
		_ = syscall.Kill(-w.pgid, sig)
	}
	for _, p := range descendants(os.Getpid()) {
		if w.exited || p.pgrp != w.pgid {
			_ = syscall.Kill(p.pid, sig)
		}
	}
}

// reap collects ended children and reports whether none is left.
func (w *watcher) reap() bool {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD
			return true
		case pid == 0:
			return false
		case status.Stopped():
			if pid == w.pgid {
				w.stopped(status.StopSignal())
			}
		case pid == w.pgid:
			w.status, w.exited = status, true
			w.end()
		}
	}
}

// stopped answers job control. A command that stopped for want of the terminal
// gets it if piton has it. Ctrl-Z is undone: a holder that sleeps keeps everyone
// else waiting. Any other stop is the operator's will and stays.
func (w *watcher) stopped(sig syscall.Signal) {
	switch sig {
	case syscall.SIGTTIN, syscall.SIGTTOU:
		if !handOver(w.tty, w.pgid) {
			return
		}
	case syscall.SIGTSTP:
	default:
		return
	}
	_ = syscall.Kill(-w.pgid, syscall.SIGCONT)
}

func (w *watcher) report(r report) {
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // plain struct of numbers
	}
	_, _ = w.reports.Write(append(line, '\n')) // piton dead: the order pipe tells
}

func readOrders(f *os.File, orders chan<- order) {
	defer close(orders)
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		var o order
		if json.Unmarshal(line, &o) != nil {
			return
		}
		orders <- o
	}
}
