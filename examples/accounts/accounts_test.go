package main

import (
	"bufio"
	"context"
	"database/sql"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pitonlock/piton/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// programs are what this test binary can be instead of the tests: workers in
// processes of their own.
var programs = map[string]func() int{
	"accounts": func() int { return run(os.Args[1:], os.Stderr, Add) },
	"stubborn": func() int { return run(os.Args[1:], os.Stderr, stubborn) },
	"careless": careless,
}

const programVariable = "ACCOUNTS_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if program := programs[os.Getenv(programVariable)]; program != nil {
		os.Exit(program())
	}
	os.Exit(servertest.Main(m))
}

// bank is a Redis, a database and account 1.
type bank struct {
	redis *redis.Client
	args  []string // of the programs
	db    *sql.DB
	repo  *Repository
}

func newBank(t *testing.T) *bank {
	t.Helper()
	server := servertest.StartRedis(t)
	dsn := servertest.SharedPostgres(t).NewDatabase(t).DSN()
	b := &bank{
		redis: redis.NewClient(&redis.Options{Addr: server.Addr()}),
		args:  []string{"--redis", server.URL(), "--postgres", dsn},
	}
	var err error
	if b.db, err = openPostgres(dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.db.Close(); b.redis.Close() })
	if b.repo, err = NewRepository(b.db); err != nil {
		t.Fatal(err)
	}
	if err := b.repo.Migrate(t.Context(), 1); err != nil {
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

// lockRow keeps everybody else's statements on the row waiting.
func (b *bank) lockRow(t *testing.T) (unlock func()) {
	t.Helper()
	tx, err := b.db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("SELECT 1 FROM account_balances WHERE id = 1 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	unlock = func() { _ = tx.Rollback() }
	t.Cleanup(unlock)
	return unlock
}

// blocked is how many statements wait for the row.
func (b *bank) blocked(t *testing.T) (n int) {
	t.Helper()
	if err := b.db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (b *bank) waitForBlocked(t *testing.T) {
	t.Helper()
	servertest.Eventually(t, 10*time.Second, func() bool { return b.blocked(t) == 1 }, "a statement waits for the row")
}

// checkSum compares the balance with what the workers say they have added, 1 each.
func (b *bank) checkSum(t *testing.T, workers ...*program) {
	t.Helper()
	var least, unknown int64
	for _, p := range workers {
		least += int64(p.count("msg=changed"))
		unknown += int64(p.count("perhaps changed"))
	}
	if got := b.balance(t); got < least || got > least+unknown || unknown > 2 {
		t.Errorf("the balance is %d after %d additions and %d perhaps", got, least, unknown)
	}
}

// program is a running worker.
type program struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan error // what Wait returns

	mu    sync.Mutex
	lines []string
}

func (b *bank) start(t *testing.T, name string, args ...string) *program {
	t.Helper()
	p := &program{ended: make(chan error, 1)}
	p.cmd = exec.Command(os.Args[0], slices.Concat(b.args, args)...)
	p.cmd.Env = append(os.Environ(), programVariable+"="+name)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.mu.Unlock()
		}
		p.ended <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // has ended, or is paused
		<-done
		if t.Failed() {
			lines := p.output()
			t.Logf("%s %d:\n%s", name, p.cmd.Process.Pid, strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
	})
	return p
}

func (p *program) output() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

func (p *program) count(text string) (n int) {
	for _, line := range p.output() {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// wait until the worker has said text n times more than before.
func (p *program) wait(t *testing.T, text string, before, n int) {
	t.Helper()
	servertest.Eventually(t, 20*time.Second, func() bool { return p.count(text) >= before+n }, text)
}

// more is wait from now on.
func (p *program) more(t *testing.T, text string, n int) {
	t.Helper()
	p.wait(t, text, p.count(text), n)
}

// steps returns which of the texts the worker said, in its order.
func (p *program) steps(texts ...string) (said []string) {
	for _, line := range p.output() {
		for _, text := range texts {
			if strings.Contains(line, text) {
				said = append(said, text)
			}
		}
	}
	return said
}

// tokens of the lines that contain text.
func (p *program) tokens(text string) (tokens []string) {
	for _, line := range p.output() {
		if m := regexp.MustCompile(`token=(\d+)`).FindStringSubmatch(line); m != nil && strings.Contains(line, text) {
			tokens = append(tokens, m[1])
		}
	}
	return tokens
}

func (p *program) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// end waits for exit code 0.
func (p *program) end(t *testing.T) {
	t.Helper()
	if err := p.exit(t); err != nil {
		t.Errorf("the worker ended with %v; want exit code 0", err)
	}
}

// exit waits for the end and returns what Wait says.
func (p *program) exit(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.ended:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the worker does not end")
		return nil
	}
}

// terminate ends workers by SIGTERM.
func terminate(t *testing.T, workers ...*program) {
	t.Helper()
	for _, p := range workers {
		p.signal(t, syscall.SIGTERM)
		p.end(t)
	}
}

// stubborn is work that takes no notice of its context: it goes on until it is
// told to end, then wants to add.
func stubborn(amount int64, _ time.Duration) Work {
	return func(context.Context, int64) (int64, error) {
		_, err := bufio.NewReader(os.Stdin).ReadString('\n')
		return amount, err
	}
}
