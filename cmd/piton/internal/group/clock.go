//go:build linux

package group

import (
	"encoding/binary"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// bootNow reads CLOCK_BOOTTIME in nanoseconds: the one clock that two processes
// of a machine share, that nobody can set, and that counts suspended time.
func bootNow() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // every Linux since 2.6.39 has it
	}
	return ts.Nano()
}

// bootTime converts t. The boot clock is read first, so that a pause between
// the two readings makes the result too early, never too late.
func bootTime(t time.Time) int64 {
	now := bootNow()
	return now + int64(time.Until(t))
}

// alarm is a timer on CLOCK_BOOTTIME; Go's own timers stand still in suspend.
type alarm struct {
	file *os.File
	C    chan struct{}
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	a := &alarm{file: os.NewFile(uintptr(fd), "timerfd"), C: make(chan struct{}, 1)}
	go func() {
		var ticks [8]byte
		for {
			if _, err := a.file.Read(ticks[:]); err != nil {
				return
			}
			if binary.NativeEndian.Uint64(ticks[:]) > 0 {
				a.C <- struct{}{}
			}
		}
	}()
	return a, nil
}

// set arms the alarm for the absolute time at; a time that is over fires at once.
func (a *alarm) set(at int64) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(at, 1))}
	conn, err := a.file.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	err = conn.Control(func(fd uintptr) { setErr = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil) })
	if err != nil {
		return err
	}
	return setErr
}
