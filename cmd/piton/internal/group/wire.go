//go:build linux

package group

import (
	"syscall"
	"time"
)

// The two pipes carry one JSON object a line.

// order goes from piton to the watcher. The first one has Start.
type order struct {
	Start  *start         `json:",omitempty"`
	Until  int64          `json:",omitempty"` // CLOCK_BOOTTIME, nanoseconds
	Signal syscall.Signal `json:",omitempty"`
	End    bool           `json:",omitempty"`
	Resume bool           `json:",omitempty"`
}

type start struct {
	Path          string
	Args          []string
	Terminal      bool
	Grace, Margin time.Duration
}

// report goes from the watcher to piton: Pid or Errno first, Gone last.
type report struct {
	Pid     int           `json:",omitempty"` // the command runs; also its process group
	Errno   syscall.Errno `json:",omitempty"` // it could not be executed
	Gone    bool          `json:",omitempty"` // it and all its descendants have ended
	Status  syscall.WaitStatus
	Overdue bool
}
