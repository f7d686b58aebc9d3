package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/process"
	"github.com/pitonlock/piton/internal/servertest"
)

// TestMain is the program itself when a test has started it as such.
func TestMain(m *testing.M) {
	if os.Getenv("ACCOUNTS_TEST_PROGRAM") != "" {
		main()
		return
	}
	os.Exit(servertest.Main(m))
}

// bank is a Redis, a database and account 1.
type bank struct {
	redis *servertest.Redis
	dsn   string
	db    *sql.DB
	repo  *Repository
}

func newBank(t *testing.T) *bank {
	t.Helper()
	b := &bank{redis: servertest.StartRedis(t), dsn: servertest.SharedPostgres(t).NewDatabase(t).DSN()}
	var err error
	if b.db, err = sql.Open("pgx", b.dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.db.Close() })
	if b.repo, err = NewRepository(b.db); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.repo.Migrate(t.Context()), b.repo.Open(t.Context(), 1, 0)); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bank) balance(t *testing.T) (balance int64) {
	t.Helper()
	if err := b.db.QueryRow("SELECT balance FROM account_balances WHERE id = 1").Scan(&balance); err != nil {
		t.Fatal(err)
	}
	return balance
}

// program is a running worker.
type program struct {
	cmd *exec.Cmd

	mu    sync.Mutex
	lines []string
	ended chan error
}

func (b *bank) start(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{ended: make(chan error, 1)}
	p.cmd = exec.Command(os.Args[0], append([]string{"--redis", b.redis.URL(), "--postgres", b.dsn}, args...)...)
	p.cmd.Env = append(os.Environ(), "ACCOUNTS_TEST_PROGRAM=1")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.mu.Unlock()
		}
		p.ended <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("worker %d:\n%s", p.cmd.Process.Pid, strings.Join(p.output(), "\n"))
		}
	})
	return p
}

func (p *program) output() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.lines...)
}

func (p *program) count(text string) (n int) {
	for _, line := range p.output() {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// wait until the worker has said something for the n-th time.
func (p *program) wait(t *testing.T, text string, n int) {
	t.Helper()
	servertest.Eventually(t, 20*time.Second, func() bool { return p.count(text) >= n }, text)
}

func (p *program) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// A worker that froze between reading and writing: nothing is lost, and its
// write is refused or ended by the server.
func TestAFrozenWorkerLosesNothing(t *testing.T) {
	b := newBank(t)
	a := b.start(t, "--ttl", "1s", "--every", "10ms", "--think", "50ms")
	a.wait(t, "msg=added", 2)
	a.wait(t, "msg=read", a.count("msg=read")+1)
	if err := process.Pause(a.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	other := b.start(t, "--ttl", "1s", "--every", "10ms")
	other.wait(t, "msg=added", 3)
	if err := process.Resume(a.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	a.wait(t, "msg=added", a.count("msg=added")+2)
	for _, p := range []*program{a, other} {
		p.signal(t, syscall.SIGTERM)
		if err := <-p.ended; err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	}
	if got, want := b.balance(t), int64(a.count("msg=added")+other.count("msg=added")); got != want {
		t.Errorf("the balance is %d after %d additions", got, want)
	}
}

// The storage's refusal names both tokens.
func TestAStaleTokenIsToldFromAMissingAccount(t *testing.T) {
	b := newBank(t)
	nothing := func(context.Context, int64) error { return nil }
	old := piton.Fence{Lock: LockName(1), Token: 10, Holder: "old"}
	next := piton.Fence{Lock: LockName(1), Token: 11, Holder: "next"}
	twin := piton.Fence{Lock: LockName(1), Token: 11, Holder: "twin"}
	if err := errors.Join(b.repo.Seal(t.Context(), old), b.repo.Seal(t.Context(), next)); err != nil {
		t.Fatal(err)
	}
	for _, f := range []piton.Fence{old, twin} {
		var stale *piton.StaleError
		_, err := b.repo.MutateWithFencing(t.Context(), f, 1, 5, nothing)
		if !errors.As(err, &stale) || stale.Fence.Token != f.Token || stale.Mark.Token != 11 || errors.Is(err, ErrNoAccount) {
			t.Errorf("%v: %v", f, err)
		}
	}
	for want := range int64(3) { // as often as it likes under its one token
		if got, err := b.repo.MutateWithFencing(t.Context(), next, 1, 1, nothing); err != nil || got != want+1 {
			t.Errorf("balance %d, %v; want %d", got, err, want+1)
		}
	}
	_, err := b.repo.MutateWithFencing(t.Context(), next, 2, 5, nothing)
	if !errors.Is(err, ErrNoAccount) || errors.Is(err, piton.ErrStale) || !strings.Contains(err.Error(), "account 2") {
		t.Errorf("a missing account: %v", err)
	}
	p := b.start(t, "--account", "7")
	if err := <-p.ended; err == nil || p.count("account 7: no such account") == 0 {
		t.Errorf("a worker on a missing account ended with %v: %q", err, p.output())
	}
}

// SIGTERM in mid-transaction: roll back, release, exit 0; the next one starts at once.
func TestTermination(t *testing.T) {
	b := newBank(t)
	a := b.start(t, "--ttl", "20s", "--think", "1m")
	a.wait(t, "msg=read", 1)
	next := b.start(t, "--ttl", "20s", "--every", "10ms")
	next.wait(t, "piton: waiting", 1)
	start := time.Now()
	a.signal(t, syscall.SIGTERM)
	if err := <-a.ended; err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	next.wait(t, "msg=added", 1)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the next worker began after %v", took)
	}
	var order []string
	for _, line := range a.output() {
		for _, step := range []string{"rolled back", "piton: released", "stopping"} {
			if strings.Contains(line, step) {
				order = append(order, step)
			}
		}
	}
	if got := fmt.Sprint(order); got != "[rolled back piton: released stopping]" {
		t.Errorf("the order was %v", got)
	}
	if a.count("msg=added") > 0 || a.count("renewed") > 0 {
		t.Errorf("the worker went on: %q", a.output())
	}
}

// kill -9: the lock is free after its TTL.
func TestAKilledWorkerIsReplaced(t *testing.T) {
	const ttl = 2 * time.Second
	b := newBank(t)
	a := b.start(t, "--ttl", ttl.String(), "--think", "1m")
	a.wait(t, "msg=read", 1)
	next := b.start(t, "--ttl", ttl.String(), "--every", "10ms")
	next.wait(t, "piton: waiting", 1)
	a.signal(t, syscall.SIGKILL)
	start := time.Now()
	<-a.ended
	next.wait(t, "msg=added", 1)
	if took := time.Since(start); took > ttl+time.Second {
		t.Errorf("replaced after %v; want %v and at most a second more", took, ttl)
	}
}

// Redis forgets everything while a worker holds the lock: no addition is lost.
func TestRedisForgets(t *testing.T) {
	b := newBank(t)
	a := b.start(t, "--ttl", "3s", "--every", "5ms", "--think", "20ms")
	other := b.start(t, "--ttl", "3s", "--every", "5ms", "--think", "20ms")
	a.wait(t, "msg=added", 1)
	other.wait(t, "msg=added", 1)
	for n := range 5 {
		a.wait(t, "msg=read", a.count("msg=read")+1)
		if out, err := exec.Command("redis-cli", "-u", b.redis.URL(), "FLUSHALL").CombinedOutput(); err != nil {
			t.Fatalf("round %d: %v: %s", n, err, out)
		}
	}
	a.wait(t, "msg=added", a.count("msg=added")+2)
	other.wait(t, "msg=added", other.count("msg=added")+2)
	for _, p := range []*program{a, other} {
		p.signal(t, syscall.SIGTERM)
		if err := <-p.ended; err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	}
	if got, want := b.balance(t), int64(a.count("msg=added")+other.count("msg=added")); got != want {
		t.Errorf("the balance is %d after %d additions", got, want)
	}
}

func TestPasswordsAreNotShown(t *testing.T) {
	for _, args := range [][]string{
		{"--redis", "redis://u:geheim@%zz", "--postgres", "postgres://u@h/d"},
		{"--redis", "redis://127.0.0.1:1", "--postgres", "postgres://u:geheim@%zz/d", "--migrate"},
		{"--redis", "redis://u:geheim@127.0.0.1:1", "--postgres", "postgres://u:geheim@127.0.0.1:1/d", "--migrate"},
		{},
	} {
		if err := run(args); err == nil || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%q: %v", args, err)
		}
	}
}
