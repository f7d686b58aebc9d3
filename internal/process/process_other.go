//go:build !linux

package process

import (
	"fmt"
	"runtime"
)

func unsupported(pid int) error {
	return fmt.Errorf("process %d: processes are paused on Linux only; this is %s", pid, runtime.GOOS)
}

// Pause fails on this system.
func Pause(pid int) error { return unsupported(pid) }

// Resume fails on this system.
func Resume(pid int) error { return unsupported(pid) }

// PauseTree fails on this system.
func PauseTree(pid int) error { return unsupported(pid) }

// ResumeTree fails on this system.
func ResumeTree(pid int) error { return unsupported(pid) }

// Descendants fails on this system.
func Descendants(pid int) ([]int, error) { return nil, unsupported(pid) }

// Alive knows of no process on this system.
func Alive(int) bool { return false }
