//go:build linux

package group

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	osprocess "github.com/pitonlock/piton/internal/process"
)

// The test binary plays three parts: the tests, the program that runs a command
// (a stand-in for piton that lets its lease run out), and the watcher.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == WatchArg {
		os.Exit(Watch())
	}
	if spec := os.Getenv("GROUP_TEST_RUN"); spec != "" {
		os.Unsetenv("GROUP_TEST_RUN")
		os.Exit(runAsHolder(spec))
	}
	os.Exit(m.Run())
}

// holderSpec is what a test asks of the stand-in. Lease counts from before its
// process is started, so that the test's clock and the lease are one.
type holderSpec struct {
	Lease, Grace time.Duration
	Script       string
	Until        int64 // the lease's end by the boot clock; set by hold
}

// margin is generous: a busy machine may need long for one round of KILL.
const margin = 500 * time.Millisecond

// outcome is what the stand-in prints at its end.
type outcome struct {
	Exit, Signal int
	Overdue      bool
	Error        string
	Took         time.Duration
}

func runAsHolder(spec string) int {
	var s holderSpec
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		panic(err)
	}
	until := time.Now().Add(time.Duration(s.Until - bootNow()))
	g, err := Start(Command{
		Path: "/bin/sh", Args: []string{"sh", "-c", s.Script}, Env: os.Environ(),
		Grace: s.Grace, Margin: margin, Until: until,
	})
	if err != nil {
		panic(err)
	}
	<-g.Done()
	r := g.Result()
	o := outcome{Exit: r.Status.ExitStatus(), Overdue: r.Overdue, Took: s.Lease - time.Until(until)}
	if r.Status.Signaled() {
		o.Signal = int(r.Status.Signal())
	}
	if r.Err != nil {
		o.Error = r.Err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(o)
	return 0
}

var marks atomic.Int64

// holder is a running stand-in; everything below it carries a mark in its environment.
type holder struct {
	t     *testing.T
	cmd   *exec.Cmd
	mark  string
	out   bytes.Buffer
	begin time.Time
	ended chan struct{}
}

// hold starts script under a lease and returns when it has printed READY.
func hold(t *testing.T, s holderSpec) *holder {
	t.Helper()
	begin := time.Now()
	s.Until = bootTime(begin.Add(s.Lease))
	spec, _ := json.Marshal(s)
	h := &holder{t: t, begin: begin, mark: fmt.Sprintf("GROUP_TEST_MARK=%d-%d", os.Getpid(), marks.Add(1)), ended: make(chan struct{})}
	h.cmd = exec.Command("/proc/self/exe")
	// The race detector's pause at exit would count as a survivor.
	h.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "GROUP_TEST_RUN="+string(spec), h.mark)
	h.cmd.Stdout = &h.out
	ready, readyWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	h.cmd.Stderr = readyWrite
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	readyWrite.Close()
	t.Cleanup(func() {
		for _, pid := range h.marked() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		ready.Close()
	})
	line := make([]byte, 5)
	if _, err := io.ReadFull(ready, line); err != nil || string(line) != "READY" {
		t.Fatalf("the command said %q (%v), want READY", line, err)
	}
	go func() { _ = h.cmd.Wait(); close(h.ended) }()
	return h
}

// marked returns the living processes below the stand-in, wherever they went,
// without the watcher, which is not at work.
func (h *holder) marked() []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == h.cmd.Process.Pid {
			continue
		}
		env, _ := os.ReadFile("/proc/" + e.Name() + "/environ") // a zombie has none
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if bytes.Contains(env, []byte(h.mark+"\x00")) && !bytes.HasSuffix(line, []byte("\x00"+WatchArg+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// gone waits until nothing marked is alive and returns when that was.
func (h *holder) gone(atMost time.Duration) time.Duration {
	h.t.Helper()
	eventually(h.t, h.begin.Add(atMost), func() error {
		if left := h.marked(); len(left) > 0 {
			return fmt.Errorf("still alive %v after the start: %s", time.Since(h.begin), describe(left))
		}
		return nil
	})
	return time.Since(h.begin)
}

func (h *holder) outcome() outcome {
	h.t.Helper()
	select {
	case <-h.ended:
	case <-time.After(20 * time.Second):
		h.t.Fatal("the holder did not end")
	}
	var o outcome
	if err := json.Unmarshal(h.out.Bytes(), &o); err != nil {
		h.t.Fatalf("outcome %q: %v", h.out.String(), err)
	}
	return o
}

func (h *holder) watcher() int {
	h.t.Helper()
	for _, p := range descendants(h.cmd.Process.Pid) {
		if p.ppid == h.cmd.Process.Pid {
			return p.pid
		}
	}
	h.t.Fatal("no watcher found")
	return 0
}

func describe(pids []int) string {
	var all []string
	for _, pid := range pids {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		all = append(all, fmt.Sprintf("%d %q", pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
	}
	return strings.Join(all, ", ")
}

func eventually(t *testing.T, end time.Time, check func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		<-tick.C
	}
}

// stubborn is the family that must not survive: a foreground child, a background
// grandchild, one that ignores TERM, one in a session of its own, and one whose
// parents are gone and that ignores TERM as well.
const stubborn = `
trap "" TERM
sleep 600 &
(trap - TERM; exec sleep 601) &
setsid sleep 602 &
(setsid sh -c 'trap "" TERM HUP; sleep 603 & sleep 604; sleep 605' &)
while [ "$(pgrep -c -g 0 sleep)" -lt 2 ]; do :; done
printf READY >&2
sleep 606; sleep 607
`

func TestChildSurvivesLockLoss(t *testing.T) {
	const lease = 3 * time.Second
	h := hold(t, holderSpec{Lease: lease, Grace: 800 * time.Millisecond, Script: stubborn})
	if n := len(h.marked()); n < 6 {
		t.Fatalf("only %d processes run; the test would prove nothing", n)
	}
	t.Logf("all gone after %v of %v", h.gone(lease), lease)
	if o := h.outcome(); !o.Overdue || o.Took > lease {
		t.Fatalf("outcome %+v; want overdue before %v", o, lease)
	}
}

func TestGroupGoneWhenHolderIsKilled(t *testing.T) {
	h := hold(t, holderSpec{Lease: time.Minute, Grace: 5 * time.Second, Script: stubborn})
	watcher := h.watcher()
	killed := time.Since(h.begin)
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	t.Logf("all gone %v after the KILL", h.gone(killed+time.Second)-killed)
	eventually(t, time.Now().Add(5*time.Second), func() error {
		if osprocess.Alive(watcher) {
			return errors.New("the watcher is left")
		}
		return nil
	})
}

func TestGroupGoneWhenHolderIsStopped(t *testing.T) {
	const lease = 3 * time.Second
	h := hold(t, holderSpec{Lease: lease, Grace: 800 * time.Millisecond, Script: stubborn})
	stop(t, h.cmd.Process.Pid)
	t.Logf("all gone after %v of %v", h.gone(lease), lease)
	_ = h.cmd.Process.Signal(syscall.SIGCONT)
	if o := h.outcome(); !o.Overdue {
		t.Fatalf("outcome %+v; want overdue", o)
	}
}

func TestGroupGoneWhenWatcherIsKilled(t *testing.T) {
	h := hold(t, holderSpec{Lease: time.Minute, Grace: 5 * time.Second, Script: stubborn})
	killed := time.Since(h.begin)
	if err := syscall.Kill(h.watcher(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	t.Logf("all gone %v after the KILL", h.gone(killed+time.Second)-killed)
	if o := h.outcome(); o.Error == "" {
		t.Fatalf("outcome %+v; want an error that names the watcher", o)
	}
}

func TestGroupGoneWhenWatcherIsStopped(t *testing.T) {
	const lease = 3 * time.Second
	h := hold(t, holderSpec{Lease: lease, Grace: 800 * time.Millisecond, Script: stubborn})
	stop(t, h.watcher())
	t.Logf("all gone after %v of %v", h.gone(lease), lease)
	if o := h.outcome(); !o.Overdue {
		t.Fatalf("outcome %+v; want overdue", o)
	}
}

func TestLeftoversEndWithTheCommand(t *testing.T) {
	h := hold(t, holderSpec{
		Lease: time.Minute, Grace: 200 * time.Millisecond,
		Script: `sleep 600 & (setsid sh -c 'trap "" TERM; sleep 601; sleep 602' &) ; printf READY >&2; exit 42`,
	})
	if o := h.outcome(); o.Exit != 42 || o.Overdue || o.Error != "" {
		t.Fatalf("outcome %+v; want exit 42", o)
	}
	if left := h.marked(); len(left) > 0 {
		t.Fatalf("left over: %s", describe(left))
	}
}

func TestTermComesBeforeKill(t *testing.T) {
	h := hold(t, holderSpec{
		Lease: 3 * time.Second, Grace: 2 * time.Second,
		Script: `trap 'exit 7' TERM; printf READY >&2; while :; do sleep 0.02; done`,
	})
	o := h.outcome()
	if o.Exit != 7 || !o.Overdue {
		t.Fatalf("outcome %+v; want exit 7 of the TERM trap, overdue", o)
	}
	if o.Took < 990*time.Millisecond {
		t.Fatalf("TERM handled after %v; want no earlier than one grace before the end", o.Took)
	}
}

func TestManyProcessesDie(t *testing.T) {
	const lease = 4 * time.Second
	h := hold(t, holderSpec{
		Lease: lease, Grace: 800 * time.Millisecond,
		// Each reacts to TERM by forking another that ignores it.
		Script: `for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
			setsid sh -c 'trap "setsid sh -c \"trap : TERM; sleep 600; sleep 601\" & wait" TERM; while :; do sleep 0.5; done' &
			done; printf READY >&2; wait; sleep 600`,
	})
	t.Logf("all gone after %v of %v", h.gone(lease), lease)
}

func TestStartReportsWhatCannotBeExecuted(t *testing.T) {
	for _, c := range []struct {
		name, path string
		want       error
	}{
		{"missing", "no-such-command", syscall.ENOENT},
		{"missing file", "/nowhere/x", syscall.ENOENT},
		{"not executable", "/etc/passwd", syscall.EACCES},
		{"folder", "/etc", syscall.EACCES},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := LookPath(c.path, "/usr/bin:/bin"); !errors.Is(err, c.want) {
				t.Fatalf("LookPath = %q, %v; want %v", got, err, c.want)
			}
		})
	}
	if got, err := LookPath("sh", "/nowhere:/bin"); err != nil || got != "/bin/sh" {
		t.Fatalf("LookPath(sh) = %q, %v", got, err)
	}
}

func TestParseStatWithOddNames(t *testing.T) {
	p, ok := parseStat(12, []byte("12 (a) R 1 (b) S 7 9 9 0"))
	if !ok || p != (process{12, 7, 9}) {
		t.Fatalf("got %+v %v", p, ok)
	}
	if _, ok := parseStat(12, []byte("12 (x) Z 7 9 9 0")); ok {
		t.Fatal("a zombie counts as alive")
	}
}

func stop(t *testing.T, pid int) {
	t.Helper()
	if err := osprocess.Pause(pid); err != nil {
		t.Fatal(err)
	}
}
