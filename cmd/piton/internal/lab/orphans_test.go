//go:build linux

package lab

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const parentVar = "PITON_LAB_TEST_PARENT"

// beParent runs a laboratory until it is killed.
func beParent() {
	exe, err := os.Executable()
	if err == nil {
		_, err = Run(context.Background(), Config{Rounds: 10, TTL: time.Minute, Worker: []string{exe}, WorkerEnv: []string{workerVar + "=1"}})
	}
	os.Stderr.WriteString(err.Error() + "\n")
	os.Exit(1)
}

// TestWorkersDieWithTheLaboratory kills it while workers are stopped.
func TestWorkersDieWithTheLaboratory(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), parentVar+"=1", "TMPDIR="+t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var workers []string
	eventually(t, "a stopped worker", func() bool {
		lists, _ := filepath.Glob("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/task/*/children")
		workers = nil
		stopped := false
		for _, list := range lists {
			children, _ := os.ReadFile(list)
			for _, pid := range strings.Fields(string(children)) {
				workers = append(workers, pid)
				stopped = stopped || state(pid) == 'T'
			}
		}
		return stopped
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "the end of the workers", func() bool {
		for _, pid := range workers {
			if s := state(pid); s != 0 && s != 'Z' {
				return false
			}
		}
		return true
	})
}

// state is the state letter of a process, 0 when there is none.
func state(pid string) byte {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if errors.Is(err, os.ErrNotExist) || len(stat) == 0 {
		return 0
	}
	return stat[strings.LastIndexByte(string(stat), ')')+2]
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(15 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
