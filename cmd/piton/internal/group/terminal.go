//go:build linux

package group

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// WantsTerminal reports whether a command started now should get the terminal:
// stdin is a terminal whose foreground group is ours, and stdout is no pipe. In
// `piton run ... | less` the pager needs the terminal; a command that reads it
// all the same gets it when it stops for it.
func WantsTerminal() bool {
	front, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	if err != nil || front != unix.Getpgrp() {
		return false
	}
	var st unix.Stat_t
	return unix.Fstat(1, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO
}

// TakeTerminal makes the caller's group the foreground group again after the
// command, if the terminal's present foreground group no longer exists.
func TakeTerminal() {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer tty.Close()
	front, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	if err == nil && front != unix.Getpgrp() && syscall.Kill(-front, 0) == syscall.ESRCH {
		setForeground(int(tty.Fd()), unix.Getpgrp())
	}
}

// handOver gives the terminal to pgid if piton, our parent, has it now.
func handOver(tty *os.File, pgid int) bool {
	if tty == nil {
		return false
	}
	front, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return false
	}
	if front == pgid {
		return true
	}
	ours, err := unix.Getpgid(os.Getppid())
	return err == nil && front == ours && setForeground(int(tty.Fd()), pgid)
}

// setForeground is tcsetpgrp for a process in the background: SIGTTOU, which
// would stop it, is blocked on this thread for the duration of the call.
func setForeground(fd, pgid int) bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var block, before unix.Sigset_t
	block.Val[0] = 1 << (uint(unix.SIGTTOU) - 1)
	if unix.PthreadSigmask(unix.SIG_BLOCK, &block, &before) != nil {
		return false
	}
	err := unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, pgid)
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	return err == nil
}

// Deafen makes the process survive sigs. They are caught and dropped rather than
// ignored, since a command inherits what is ignored; what was ignored at the
// start (nohup) stays so, for the same reason.
func Deafen(sigs ...os.Signal) {
	drop := make(chan os.Signal, 1)
	for _, s := range sigs {
		if !signal.Ignored(s) {
			signal.Notify(drop, s)
		}
	}
	go func() {
		for range drop { //nolint:revive // dropping is the point
		}
	}()
}

// DropStreams points the given standard streams at /dev/null, so that the other
// end of a pipe sees its end when the command closes it.
func DropStreams(fds ...int) {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer null.Close()
	for _, fd := range fds {
		_ = unix.Dup3(int(null.Fd()), fd, 0)
	}
}
