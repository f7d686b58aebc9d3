package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const pollEvery = time.Millisecond

// States of /proc/PID/stat that matter here.
const (
	stopped = 'T'
	zombie  = 'Z'
	dead    = 'X'
	gone    = 0 // no such file
)

// Pause stops the process and returns when all its threads stand still. It
// fails when there is no such process or it does not stop within [Patience].
func Pause(pid int) error {
	if err := signal(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	return await(pid, "stop", func(states []byte) bool {
		return !slices.ContainsFunc(states, func(s byte) bool { return s != stopped })
	})
}

// Resume lets a paused process run on, and returns when none of its threads is
// stopped any more, or it has run to its end. Resuming a running process changes nothing.
func Resume(pid int) error {
	if err := signal(pid, syscall.SIGCONT); err != nil {
		return err
	}
	err := await(pid, "run on", func(states []byte) bool {
		return !slices.Contains(states, stopped)
	})
	if err != nil && !Alive(pid) {
		return nil // it ran on, to its end
	}
	return err
}

// PauseTree pauses the process and then all its descendants, including those
// that were started while it was at work. A descendant that ends meanwhile is
// no error.
func PauseTree(pid int) error {
	if err := Pause(pid); err != nil {
		return err
	}
	done := map[int]bool{}
	for {
		pids, err := Descendants(pid)
		if err != nil {
			return err
		}
		pids = slices.DeleteFunc(pids, func(p int) bool { return done[p] })
		if len(pids) == 0 {
			return nil
		}
		for _, child := range pids {
			if err := Pause(child); err != nil && Alive(child) {
				return fmt.Errorf("descendant of process %d: %w", pid, err)
			}
			done[child] = true
		}
	}
}

// ResumeTree resumes all descendants, the youngest generation first, and then
// the process.
func ResumeTree(pid int) error {
	pids, err := Descendants(pid)
	if err != nil {
		return err
	}
	for _, child := range slices.Backward(pids) {
		if err := Resume(child); err != nil && Alive(child) {
			return fmt.Errorf("descendant of process %d: %w", pid, err)
		}
	}
	return Resume(pid)
}

// Descendants returns the ids of the process's children, their children and so
// on, parents before their children, without those that have ended. Processes
// whose parent has ended are nobody's descendants.
func Descendants(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("descendants of process %d: %w", pid, err)
	}
	children := map[int][]int{}
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		state, parent, err := readStat(filepath.Join("/proc", entry.Name(), "stat"))
		if err != nil {
			return nil, fmt.Errorf("descendants of process %d: %w", pid, err)
		}
		if state != gone && state != zombie && state != dead {
			children[parent] = append(children[parent], child)
		}
	}
	found := slices.Clone(children[pid])
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found, nil
}

// Alive tells whether the process exists and has not ended. A paused process is
// alive, a zombie is not.
func Alive(pid int) bool {
	state, _, err := readStat(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && state != gone && state != zombie && state != dead
}

func signal(pid int, sig syscall.Signal) error {
	if pid <= 0 { // kill(2) would take 0 and less for whole groups
		return fmt.Errorf("process id %d; want one greater than 0", pid)
	}
	if !Alive(pid) {
		return fmt.Errorf("process %d has ended or never was (state %s)", pid, describe(states(pid)))
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return fmt.Errorf("process %d (state %s): %v: %w", pid, describe(states(pid)), sig, err)
	}
	return nil
}

// await polls the states of the process's threads until they are as wanted.
func await(pid int, what string, reached func(states []byte) bool) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	deadline := time.Now().Add(Patience)
	for {
		seen := states(pid)
		switch {
		case !Alive(pid):
			return fmt.Errorf("process %d ended instead of going to %s (state %s)", pid, what, describe(seen))
		case len(seen) > 0 && reached(seen):
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("process %d did not %s within %v (thread states %s)", pid, what, Patience, describe(seen))
		}
		<-tick.C
	}
}

// states returns the state of every thread of the process that has not ended.
func states(pid int) []byte {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return nil
	}
	var found []byte
	for _, file := range files {
		state, _, err := readStat(file)
		if err == nil && state != gone && state != dead {
			found = append(found, state)
		}
	}
	return found
}

func describe(states []byte) string {
	if len(states) == 0 {
		return "none"
	}
	return string(states)
}

// readStat returns state and parent from a stat file; the state is gone when
// there is none. The name in it may itself contain blanks and parentheses.
func readStat(file string) (state byte, parent int, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return gone, 0, nil
	}
	if err != nil {
		return gone, 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 2 {
		return gone, 0, fmt.Errorf("%s contains %q; want: pid (name) state parent", file, text)
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0][0], parent, err
}
