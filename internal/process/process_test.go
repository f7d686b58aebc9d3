//go:build linux

package process

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// start runs a shell script that says "ready" when it is.
func start(t *testing.T, script string) (command *exec.Cmd, output *bufio.Reader) {
	t.Helper()
	command = exec.Command("sh", "-c", script)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = command.Wait() // it was killed
	})
	output = bufio.NewReader(pipe)
	if line, err := output.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the script says %q, %v; want ready", line, err)
	}
	return command, output
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(5 * time.Second); !condition(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within 5s: %s", what)
		}
	}
}

func expectStates(t *testing.T, pid int, paused bool) {
	t.Helper()
	seen := states(pid)
	if len(seen) == 0 || paused != (len(bytes.Trim(seen, "T")) == 0) {
		t.Errorf("threads of process %d are in states %s; want them stopped: %v", pid, describe(seen), paused)
	}
}

func TestPauseAndResume(t *testing.T) {
	command, output := start(t, "echo ready; while :; do echo tick; done")
	pid := command.Process.Pid
	must(t, Pause(pid))
	expectStates(t, pid, true)
	if !Alive(pid) {
		t.Error("a paused process is not alive")
	}
	must(t, Pause(pid)) // once more changes nothing
	must(t, Resume(pid))
	expectStates(t, pid, false)
	must(t, Resume(pid))
	if _, err := io.CopyN(io.Discard, output, 1<<20); err != nil { // more than a pipe holds
		t.Errorf("a resumed process says no more: %v", err)
	}
}

// A Go program has many threads; the test binary is one.
func TestPauseStopsAllThreads(t *testing.T) {
	if os.Getenv("PITON_PROCESS_HELPER") != "" {
		for range 8 {
			go func() {
				for n := 0; n >= 0; n++ { // busy
				}
			}()
		}
		fmt.Println("ready")
		select {}
	}
	command := exec.Command(os.Args[0], "-test.run=^TestPauseStopsAllThreads$")
	command.Env = append(os.Environ(), "PITON_PROCESS_HELPER=1", "GOMAXPROCS=8")
	output, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait() // it was killed
	})
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		must(t, Pause(command.Process.Pid))
		if seen := states(command.Process.Pid); len(seen) < 3 {
			t.Fatalf("only %d threads", len(seen))
		}
		expectStates(t, command.Process.Pid, true)
		must(t, Resume(command.Process.Pid))
	}
}

func TestPauseTreeStopsNewChildrenToo(t *testing.T) {
	command, _ := start(t, "sh -c 'sleep 600; :' & (echo ready; while :; do sleep 0.001; done)")
	pid := command.Process.Pid
	for range 10 {
		must(t, PauseTree(pid))
		pids, err := Descendants(pid)
		must(t, err)
		if len(pids) < 2 {
			t.Fatalf("descendants %v; want at least a shell and its sleep", pids)
		}
		for _, p := range append(pids, pid) {
			expectStates(t, p, true)
		}
		must(t, ResumeTree(pid))
		for _, p := range append(pids, pid) {
			if Alive(p) && bytes.Contains(states(p), []byte{stopped}) {
				t.Errorf("process %d is still stopped after ResumeTree", p)
			}
		}
	}
}

func TestDescendantsParentsFirst(t *testing.T) {
	command, output := start(t, "echo ready; sh -c 'echo $$; sh -c \"echo \\$\\$; sleep 600; :\"; :'; :")
	var want []int
	for range 2 {
		var pid int
		if _, err := fmt.Fscanln(output, &pid); err != nil {
			t.Fatal(err)
		}
		want = append(want, pid)
	}
	eventually(t, fmt.Sprintf("descendants %v and one more", want), func() bool {
		got, err := Descendants(command.Process.Pid)
		must(t, err)
		return len(got) == 3 && slices.Equal(got[:2], want)
	})
}

func TestEndedProcess(t *testing.T) {
	command, _ := start(t, "echo ready; exec sleep 600")
	pid := command.Process.Pid
	must(t, Pause(pid))
	must(t, command.Process.Kill())
	// Nobody has waited for it: it is a zombie.
	eventually(t, "a killed process counts as ended", func() bool { return !Alive(pid) })
	for name, f := range map[string]func(int) error{"Pause": Pause, "Resume": Resume, "PauseTree": PauseTree, "ResumeTree": ResumeTree} {
		err := f(pid)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d", pid)) || !strings.Contains(err.Error(), "state Z") {
			t.Errorf("%s of a zombie: %v; want an error that names process and state", name, err)
		}
	}
	for _, pid := range []int{0, -1, 1 << 30} {
		if err := Pause(pid); err == nil || !strings.Contains(err.Error(), fmt.Sprint(pid)) {
			t.Errorf("pausing process %d: %v; want an error that names it", pid, err)
		}
		if Alive(pid) {
			t.Errorf("process %d is alive", pid)
		}
	}
}
