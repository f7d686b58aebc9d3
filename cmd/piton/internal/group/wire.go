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

// The command is bytes, not text: JSON would replace what is not UTF-8, and the
// command would act on another file.
type start struct {
	Path          []byte
	Args          [][]byte
	Terminal      bool
	Grace, Margin time.Duration
}

func bytesOf(args []string) [][]byte {
	all := make([][]byte, len(args))
	for i, a := range args {
		all[i] = []byte(a)
	}
	return all
}

func stringsOf(args [][]byte) []string {
	all := make([]string, len(args))
	for i, a := range args {
		all[i] = string(a)
	}
	return all
}

// report goes from the watcher to piton: Pid or Errno first, Gone last.
type report struct {
	Pid     int           `json:",omitempty"` // the command runs; also its process group
	Errno   syscall.Errno `json:",omitempty"` // it could not be executed
	Gone    bool          `json:",omitempty"` // it and all its descendants have ended
	Status  syscall.WaitStatus
	Overdue bool
}
