//go:build linux

package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pitonlock/piton/cmd/piton/internal/group"
)

// program is piton as its user starts it.
type program struct {
	t              *testing.T
	cmd            *exec.Cmd
	mark           string
	stdout, stderr buffer
	ended          chan struct{}
	endedAt        time.Time
}

// buffer is a bytes.Buffer that may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// state gives all programs of a test one embedded coordinator of their own.
func state(t *testing.T) string { return "XDG_STATE_HOME=" + t.TempDir() }

func pitonCommand(env []string, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(exe, args...)
	// The race detector's pause at exit would count as a survivor.
	cmd.Env = append(append(os.Environ(), "PITON_TEST_MAIN=1", "GORACE=atexit_sleep_ms=0"), env...)
	return cmd
}

func start(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	p := &program{t: t, ended: make(chan struct{})}
	p.mark = fmt.Sprintf("PITON_TEST_MARK=%d.%d", os.Getpid(), rand.Int64())
	p.cmd = pitonCommand(append(env, p.mark), args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		p.endedAt = time.Now()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		for _, pid := range p.living() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		<-p.ended
	})
	return p
}

// living returns every process of the command that is alive, wherever it went.
func (p *program) living() []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == p.cmd.Process.Pid {
			continue
		}
		env, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		watcher := bytes.HasSuffix(line, []byte("\x00"+group.WatchArg+"\x00"))
		if bytes.Contains(env, []byte(p.mark+"\x00")) && !watcher {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (p *program) says(stream *buffer, text string) {
	p.t.Helper()
	within(p.t, 20*time.Second, func() error {
		if !strings.Contains(stream.String(), text) {
			return fmt.Errorf("%q not seen; stdout %q, stderr %q", text, p.stdout.String(), p.stderr.String())
		}
		return nil
	})
}

func (p *program) exits(want int) {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second):
		p.t.Fatalf("still running; stdout %q, stderr %q", p.stdout.String(), p.stderr.String())
	}
	if got := p.cmd.ProcessState.ExitCode(); got != want {
		p.t.Fatalf("exit code %d, want %d; stderr %q", got, want, p.stderr.String())
	}
}

func within(t *testing.T, d time.Duration, check func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); ; <-tick.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func TestSignalsAreForwarded(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			// The grandchild gets it too: the signal goes to the group.
			p := start(t, []string{state(t)}, "run", "l", "--", "sh", "-c", fmt.Sprintf(
				`trap 'echo child; exit 9' %d; sh -c 'trap "echo grandchild; exit" %d; echo ready; while :; do sleep 0.02; done'; sleep 5`, s, s))
			p.says(&p.stdout, "ready")
			if err := p.cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			p.exits(9)
			if out := p.stdout.String(); !strings.Contains(out, "grandchild") || !strings.Contains(out, "child\n") {
				t.Fatalf("stdout %q", out)
			}
			q := start(t, []string{state(t)}, "run", "l", "--", "sh", "-c", "echo ready; while :; do sleep 0.02; done")
			q.says(&q.stdout, "ready")
			if err := q.cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			q.exits(128 + int(s))
		})
	}
}

// deaf ignores TERM with everything that it starts.
const deaf = `trap "" TERM; (setsid sleep 601 &); echo ready; sleep 602; sleep 603`

// A command that ignores TERM has the rest of the lease, which is not renewed
// any more.
func TestTermStopsRenewal(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	env := []string{state(t)}
	p := start(t, env, "run", "--ttl", ttl.String(), "l", "--", "sh", "-c", deaf)
	p.says(&p.stdout, "ready")
	told := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	within(t, ttl, func() error {
		if left := p.living(); len(left) > 0 {
			return fmt.Errorf("still alive %v after TERM: %v", time.Since(told), left)
		}
		return nil
	})
	if took := time.Since(told); took < ttl/2 {
		t.Errorf("killed %v after TERM; want the rest of the lease, two thirds of %v or more", took, ttl)
	}
	p.exits(137)
	if s := p.stderr.String(); s != "piton: the command had not ended when the lease of lock \"l\" was about to end; it was killed\n" {
		t.Errorf("stderr %q", s)
	}
	start(t, env, "run", "--no-wait", "l", "--", "true").exits(0)
}

func TestASecondTermLeavesTheGrace(t *testing.T) {
	t.Parallel()
	env := []string{state(t)}
	const stubborn = `trap "echo told" TERM; echo ready; while :; do sleep 0.05; done`
	p := start(t, env, "run", "--ttl", "1h", "--stop-grace", "300ms", "l", "--", "sh", "-c", stubborn)
	p.says(&p.stdout, "ready")
	told := time.Now()
	term := func() {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	term()
	p.says(&p.stdout, "told") // two signals at once may become one
	term()
	p.exits(137)
	if took := time.Since(told); took < 300*time.Millisecond || took > 10*time.Second {
		t.Errorf("it took %v; want a little more than the grace of 300ms", took)
	}
	start(t, env, "run", "--no-wait", "l", "--", "true").exits(0)
}

func TestInterruptWhileWaiting(t *testing.T) {
	t.Parallel()
	env := []string{state(t)}
	holder := start(t, env, "run", "l", "--", "sh", "-c", "echo ready; while [ ! -e "+filepath.Join(t.TempDir(), "go")+" ]; do sleep 0.02; done")
	holder.says(&holder.stdout, "ready")
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		waiter := start(t, env, "run", "l", "--", "echo", "never")
		waiter.says(&waiter.stderr, "waiting for lock")
		if err := waiter.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		waiter.exits(128 + int(s))
		if waiter.stdout.String() != "" || strings.Count(waiter.stderr.String(), "\n") != 1 {
			t.Fatalf("stdout %q, stderr %q", waiter.stdout.String(), waiter.stderr.String())
		}
		if left := waiter.living(); len(left) > 0 {
			t.Fatalf("left over: %v", left)
		}
	}
	if err := holder.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	holder.exits(143)
	// Nothing is left: the lock is free at once.
	next := start(t, env, "run", "--no-wait", "l", "--", "true")
	next.exits(0)
}

func TestStreamsAreIdentical(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	cmd := pitonCommand([]string{state(t)}, "run", "l", "--", "cat")
	source := rand.NewChaCha8([32]byte{1})
	sent, received := sha256.New(), sha256.New()
	cmd.Stdin = io.TeeReader(io.LimitReader(source, size), sent)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(received, out)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	if n != size || !bytes.Equal(sent.Sum(nil), received.Sum(nil)) {
		t.Fatalf("received %d bytes of %d, or other ones", n, size)
	}
}

// A pipe ends when the command closes it, not when piton ends.
func TestStreamsEndWithTheCommand(t *testing.T) {
	t.Parallel()
	reader := pitonCommand([]string{state(t)}, "run", "l", "--", "sh", "-c", "exec >&-; echo closed >&2; while :; do sleep 0.02; done")
	out, err := reader.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	eof := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, out)
		eof <- err
	}()
	select {
	case err := <-eof:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("stdout is still open")
	}
	_ = reader.Process.Signal(syscall.SIGTERM)
	_ = reader.Wait()
}

func TestGroupEndsWhenPitonIsKilled(t *testing.T) {
	t.Parallel()
	p := start(t, []string{state(t)}, "run", "l", "--", "sh", "-c", family)
	p.says(&p.stdout, "ready")
	if n := len(p.living()); n < 6 {
		t.Fatalf("only %d processes run", n)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	within(t, time.Second, func() error {
		if left := p.living(); len(left) > 0 {
			return fmt.Errorf("alive a second after piton was killed: %v", left)
		}
		return nil
	})
}

// family is what must not survive: a foreground child, grandchildren, sessions
// of their own, processes without parents, and all of it partly deaf to TERM.
const family = `
trap "" TERM
sleep 600 &
(trap - TERM; exec sleep 601) &
setsid sleep 602 &
(setsid sh -c 'trap "" TERM HUP; sleep 603 & sleep 604; sleep 605' &)
while [ "$(pgrep -c -g 0 sleep)" -lt 2 ]; do :; done
echo ready
sleep 606; sleep 607
`

func TestPasswordIsNotInTheProcessList(t *testing.T) {
	t.Parallel()
	// A server that takes connections and says nothing keeps piton busy.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := start(t, nil, "run", "--coordinator", "redis://u:s3cret@"+l.Addr().String(), "l", "--", "env")
	within(t, 3*time.Second, func() error {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.cmd.Process.Pid))
		if err != nil {
			return err
		}
		if bytes.Contains(line, []byte("s3cret")) || !bytes.Contains(line, []byte("run\x00l\x00--\x00env")) {
			return fmt.Errorf("command line %q", line)
		}
		return nil
	})
	p.exits(69)
	if strings.Contains(p.stderr.String(), "s3cret") || !strings.Contains(p.stderr.String(), "no answer in time") {
		t.Fatalf("stderr %q", p.stderr.String())
	}
}
