package sqlitelock

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitonlock/piton"
)

// parts are what this test binary does in processes of its own.
var parts = map[string]func() error{
	"contend":        contend,
	"hold":           hold,
	"open-as-nobody": openAsNobody,
}

func part(name, path string, more ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(more, "PITON_TEST_PART="+name, "PITON_TEST_PATH="+path)...)
	return cmd
}

const rounds = 30

// contend takes the lock some times. While it has it, it makes a file that must
// not be there yet, and writes its token at the end of a log.
func contend() error {
	path := os.Getenv("PITON_TEST_PATH")
	c, err := Open(path)
	if err != nil {
		return err
	}
	for i := range rounds {
		r := piton.Request{Lock: "contended", Holder: fmt.Sprintf("%d-%d", os.Getpid(), i), TTL: 30 * time.Second}
		g, err := c.Acquire(context.Background(), r)
		for ; errors.Is(err, piton.ErrHeld); g, err = c.Acquire(context.Background(), r) {
			<-time.After(time.Millisecond)
		}
		if err != nil {
			return err
		}
		witness, err := os.OpenFile(path+".witness", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("two holders: %w", err)
		}
		log, err := os.OpenFile(path+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(log, g.Token)
		if err := errors.Join(err, log.Close(), witness.Close(), os.Remove(witness.Name()), c.Release(context.Background(), g)); err != nil {
			return err
		}
	}
	return c.Close()
}

func TestManyProcessesContend(t *testing.T) {
	const processes = 6
	path := newPath(t)
	var running []*exec.Cmd
	var outputs []*bytes.Buffer
	for range processes {
		cmd, out := part("contend", path), new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running, outputs = append(running, cmd), append(outputs, out)
	}
	for i, cmd := range running {
		if err := cmd.Wait(); err != nil {
			t.Errorf("process %d: %v: %s", i, err, outputs[i])
		}
	}
	raw, err := os.ReadFile(path + ".log")
	if err != nil {
		t.Fatal(err)
	}
	tokens := strings.Fields(string(raw))
	if len(tokens) != processes*rounds {
		t.Fatalf("%d grants, want %d", len(tokens), processes*rounds)
	}
	last := 0
	for i, field := range tokens {
		token, err := strconv.Atoi(field)
		if err != nil || token <= last {
			t.Fatalf("grant %d has token %q after %d", i, field, last)
		}
		last = token
	}
}

const holdTTL = 1500 * time.Millisecond

// hold takes the lock, says so with the boot times around it, and hangs.
func hold() error {
	c, err := Open(os.Getenv("PITON_TEST_PATH"))
	if err != nil {
		return err
	}
	before, err := c.machine.now()
	if err != nil {
		return err
	}
	g, err := c.Acquire(context.Background(), piton.Request{Lock: "a", Holder: "killed", TTL: holdTTL})
	if err != nil {
		return err
	}
	after, err := c.machine.now()
	if err != nil {
		return err
	}
	fmt.Println(before, after, g.Token)
	_, err = os.Stdin.Read(make([]byte, 1))
	return err
}

func TestAKilledHolderFreesAfterItsTTL(t *testing.T) {
	path := newPath(t)
	c := openReal(t, path)
	cmd := part("hold", path)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	kill := cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || kill != nil {
		t.Fatal(err, kill)
	}
	var before, after int64
	var token piton.Token
	if _, err := fmt.Sscan(line, &before, &after, &token); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	var g piton.Grant
	tries := 0
	poll(t, holdTTL+2*time.Second, "the lock is free", func() bool {
		tries++
		g, err = c.Acquire(ctx, request("a", "next"))
		if err != nil && !errors.Is(err, piton.ErrHeld) {
			t.Fatal(err)
		}
		return err == nil
	})
	now, err := c.machine.now()
	if err != nil {
		t.Fatal(err)
	}
	if now < before+int64(holdTTL) {
		t.Errorf("granted %v after the request, the TTL is %v", time.Duration(now-before), holdTTL)
	}
	if now > after+int64(holdTTL+time.Second) {
		t.Errorf("granted only %v after the grant, the TTL is %v", time.Duration(now-after), holdTTL)
	}
	if g.Token <= token || tries < 3 {
		t.Errorf("token %d after %d, %d tries", g.Token, token, tries)
	}
}

// openAsNobody prints the error of Open for a user without privileges.
func openAsNobody() error {
	if os.Getuid() == 0 {
		if err := errors.Join(syscall.Setgid(65534), syscall.Setuid(65534)); err != nil {
			return err
		}
	}
	_, err := Open(os.Getenv("PITON_TEST_PATH"))
	if err == nil {
		return errors.New("it was opened")
	}
	fmt.Println(err)
	return nil
}

// Two coordinators of one process and many goroutines, under the race detector.
func TestManyGoroutinesContend(t *testing.T) {
	path := newPath(t)
	both := []*Coordinator{openReal(t, path), openReal(t, path)}
	inside := make(chan struct{}, 1)
	results := make(chan error)
	for i := range 8 {
		go func() { results <- passThrough(both[i%2], fmt.Sprint("h", i), inside) }()
	}
	for range 8 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

func passThrough(c *Coordinator, holder string, inside chan struct{}) error {
	for i := range 10 {
		r := request("a", fmt.Sprint(holder, i))
		g, err := c.Acquire(ctx, r)
		for ; errors.Is(err, piton.ErrHeld); g, err = c.Acquire(ctx, r) {
			<-time.After(time.Millisecond)
		}
		if err != nil {
			return err
		}
		select {
		case inside <- struct{}{}:
		default:
			return errors.New("two holders")
		}
		<-inside
		if err := c.Release(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

func TestTimeNamespaceOffset(t *testing.T) {
	for _, test := range []struct {
		file string
		want int64
		fail bool
	}{
		{"monotonic           0         0\nboottime            0         0\n", 0, false},
		{"monotonic 5 0\nboottime -7 250000000\n", -6_750_000_000, false},
		{"1 0 0\n7 86400 1\n", 86_400_000_000_001, false},
		{"", 0, true},
		{"boottime x 0\n", 0, true},
	} {
		got, err := parseOffset([]byte(test.file))
		if got != test.want || (err != nil) != test.fail {
			t.Errorf("%q: %d, %v", test.file, got, err)
		}
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	for _, synchronous := range []string{"FULL", "OFF"} {
		b.Run("synchronous="+synchronous, func(b *testing.B) {
			m, err := thisMachine()
			if err != nil {
				b.Fatal(err)
			}
			c, err := open(filepath.Join(b.TempDir(), "locks.db"), settings{machine: m, synchronous: synchronous})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			for b.Loop() {
				g, err := c.Acquire(ctx, request("a", "h"))
				if err != nil {
					b.Fatal(err)
				}
				if err := c.Release(ctx, g); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
