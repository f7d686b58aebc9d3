package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/process"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/redis/redislock"
	"github.com/redis/go-redis/v9"
)

const full = 100 // what careless fills the account up to

// careless decides under the lock how much the account lacks, waits until it is
// told to go on, and writes without asking whether it still has the lease.
func careless() int {
	err := func() error {
		s, err := parse(os.Args[1:], os.Stderr)
		if err != nil {
			return err
		}
		options, err := redis.ParseURL(s.redis)
		if err != nil {
			return err
		}
		coordinator, err := redislock.New(redis.NewClient(options))
		if err != nil {
			return err
		}
		db, err := openPostgres(s.postgres)
		if err != nil {
			return err
		}
		repo, err := NewRepository(db)
		if err != nil {
			return err
		}
		locker, err := piton.New(coordinator, piton.WithTTL(s.ttl), piton.WithGuards(repo))
		if err != nil {
			return err
		}
		return locker.Do(context.Background(), LockName(1), func(ctx context.Context, lease *piton.Lease) error {
			balance, err := repo.ReadWithFencing(ctx, lease.Fence(), 1)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "decided token=%d\n", lease.Token())
			if _, err := io.ReadFull(os.Stdin, make([]byte, 1)); err != nil {
				return err
			}
			err = repo.MutateWithFencing(context.WithoutCancel(ctx), lease.Fence(), 1, full-balance)
			var stale *piton.StaleError
			if errors.As(err, &stale) {
				fmt.Fprintf(os.Stderr, "refused: %d is older than %d\n", stale.Fence.Token, stale.Mark.Token)
			}
			return err
		})
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func pause(t *testing.T, p *program) {
	t.Helper()
	if err := process.Pause(p.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
}

func resume(t *testing.T, p *program) {
	t.Helper()
	if err := process.Resume(p.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
}

// goOn answers a program that waits for its input.
func (p *program) goOn(t *testing.T) {
	t.Helper()
	if _, err := p.stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
}

// The phantom write: decided under the lock, written after another has had it.
func TestAFrozenWorkersWriteIsRefused(t *testing.T) {
	b := newBank(t)
	old := b.start(t, "careless", "--ttl", "1s")
	old.more(t, "decided", 1)
	pause(t, old)
	next := b.start(t, "careless", "--ttl", "1s")
	next.more(t, "decided", 1)
	next.goOn(t)
	next.end(t)
	resume(t, old)
	old.goOn(t)
	if err := old.exit(t); err == nil {
		t.Error("the old holder ended well")
	}
	want := fmt.Sprintf("refused: %s is older than %s", old.tokens("decided")[0], next.tokens("decided")[0])
	if old.count(want) != 1 {
		t.Errorf("the old holder did not say %q", want)
	}
	if got := b.balance(t); got != full {
		t.Errorf("the balance is %d; want %d", got, full)
	}
}

// A worker that is frozen in its transaction, with the row locked: the server ends
// it when the lease is over.
func TestAWorkerFrozenInItsTransactionBlocksNobody(t *testing.T) {
	const ttl = 2 * time.Second
	b := newBank(t)
	a := b.start(t, "stubborn", "--ttl", ttl.String())
	a.more(t, "msg=read", 1)
	unlock := b.lockRow(t)
	a.goOn(t)
	b.waitForBlocked(t)
	pause(t, a)
	unlock() // now it is a that has the row
	frozen := time.Now()
	next := b.start(t, "accounts", "--ttl", ttl.String(), "--every", "10ms")
	next.wait(t, "msg=changed", 0, 3)
	if took := time.Since(frozen); took > ttl+2*time.Second { // a second for the start of a process
		t.Errorf("the next worker went on after %v", took)
	}
	resume(t, a)
	servertest.Eventually(t, 10*time.Second, func() bool { return a.count("rolled back")+a.count("perhaps changed") > 0 }, "it was not committed")
	terminate(t, next)
	b.checkSum(t, next)
}

// Two workers, each frozen past its TTL at several moments.
func TestFrozenWorkersLoseNothing(t *testing.T) {
	const ttl = time.Second
	b := newBank(t)
	args := []string{"--ttl", ttl.String(), "--every", "5ms", "--think", "20ms"}
	workers := []*program{b.start(t, "accounts", args...), b.start(t, "accounts", args...)}
	for _, p := range workers {
		p.wait(t, "msg=changed", 0, 2)
	}
	for round, moment := range []string{"msg=read", "msg=changed", "piton: acquired", "msg=read"} {
		frozen, other := workers[round%2], workers[1-round%2]
		frozen.more(t, moment, 1)
		pause(t, frozen)
		since, before := time.Now(), other.count("msg=changed")
		servertest.Eventually(t, 20*time.Second, func() bool {
			return time.Since(since) > ttl*3/2 && other.count("msg=changed") >= before+3
		}, "the other worker goes on")
		resume(t, frozen)
		frozen.more(t, "msg=changed", 2)
	}
	terminate(t, workers...)
	b.checkSum(t, workers...)
}

// A worker that needs longer than its TTL keeps the lock by its heartbeat.
func TestTheHeartbeatKeepsTheLock(t *testing.T) {
	b := newBank(t)
	a := b.start(t, "accounts", "--ttl", "1s", "--think", "3s")
	a.more(t, "msg=read", 1)
	next := b.start(t, "accounts", "--ttl", "1s", "--every", "10ms")
	a.wait(t, "msg=changed", 0, 1)
	if n := a.count("piton: renewed"); n < 6 {
		t.Errorf("%d renewals in 3 s; want one every third of a second", n)
	}
	next.wait(t, "msg=changed", 0, 1)
	terminate(t, next, a)
	if a.count("lost") > 0 {
		t.Error("the lease was lost")
	}
	b.checkSum(t, a, next)
}

// SIGTERM in mid-transaction: roll back, release, exit 0; the next one starts at
// once.
func TestTerminationInATransaction(t *testing.T) {
	b := newBank(t)
	a := b.start(t, "stubborn", "--ttl", "20s")
	a.more(t, "msg=read", 1)
	next := b.start(t, "accounts", "--ttl", "20s", "--every", "10ms")
	next.wait(t, "piton: waiting", 0, 1)
	unlock := b.lockRow(t)
	a.goOn(t)
	b.waitForBlocked(t)
	a.signal(t, syscall.SIGTERM)
	told := time.Now()
	a.wait(t, "piton: released", 0, 1)
	unlock() // which next waits for
	next.wait(t, "msg=changed", 0, 1)
	if took := time.Since(told); took > 2*time.Second {
		t.Errorf("the next worker began after %v", took)
	}
	a.end(t)
	want := []string{"msg=stopping", "rolled back", "piton: released"}
	if got := a.steps(append(want, "msg=changed")...); !slices.Equal(got, want) {
		t.Errorf("the order was %q; want %q", got, want)
	}
	terminate(t, next)
	b.checkSum(t, next)
}

// SIGTERM while the work takes no notice: stop the renewal, wait for the work, roll
// back, release, exit 0; the next one starts at once.
func TestTermination(t *testing.T) {
	const ttl = 3 * time.Second
	b := newBank(t)
	a := b.start(t, "stubborn", "--ttl", ttl.String())
	a.more(t, "msg=read", 1)
	next := b.start(t, "accounts", "--ttl", ttl.String(), "--every", "10ms")
	next.wait(t, "piton: waiting", 0, 1)
	a.more(t, "piton: renewed", 1)

	a.signal(t, syscall.SIGTERM)
	key := "piton:{" + LockName(1) + "}:lock"
	left := func() time.Duration { return b.redis.PTTL(t.Context(), key).Val() }
	// A renewal every second would never let it come so far down.
	servertest.Eventually(t, ttl, func() bool { return left() < ttl/2 }, "the renewal stops")
	if left() <= 0 || next.count("msg=changed") > 0 {
		t.Error("the lock was given back while the work was running")
	}
	a.goOn(t)
	told := time.Now()
	next.wait(t, "msg=changed", 0, 1)
	if took := time.Since(told); took > time.Second { // of the 1.5 s that are left
		t.Errorf("the next worker began after %v", took)
	}
	a.end(t)
	want := []string{"msg=stopping", "rolled back", "piton: released"}
	if got := a.steps(append(want, "msg=changed")...); !slices.Equal(got, want) {
		t.Errorf("the order was %q; want %q", got, want)
	}
	if lines := a.output(); slices.ContainsFunc(lines[slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "stopping") }):], func(l string) bool {
		return strings.Contains(l, "renewed")
	}) {
		t.Error("it renewed after SIGTERM")
	}
	terminate(t, next)
	b.checkSum(t, next)
}

// SIGTERM while the worker waits: for the lock, for the next round, in its work.
func TestTerminationAtAnyMoment(t *testing.T) {
	b := newBank(t)
	holder := b.start(t, "accounts", "--think", "1h")
	holder.more(t, "msg=read", 1)
	waiting := b.start(t, "accounts")
	waiting.wait(t, "piton: waiting", 0, 1)
	terminate(t, waiting, holder)
	idle := b.start(t, "accounts", "--every", "1h")
	idle.wait(t, "piton: released", 0, 1)
	terminate(t, idle)
	b.checkSum(t, holder, waiting, idle)
	if held, err := b.redis.Exists(t.Context(), "piton:{"+LockName(1)+"}:lock").Result(); held != 0 || err != nil {
		t.Errorf("the lock is still there: %d, %v", held, err)
	}
}

// kill -9 in mid-transaction: the lock is free after its TTL.
func TestAKilledWorkerIsReplaced(t *testing.T) {
	const ttl = 2 * time.Second
	b := newBank(t)
	a := b.start(t, "accounts", "--ttl", ttl.String(), "--think", "1h")
	a.more(t, "msg=read", 1)
	next := b.start(t, "accounts", "--ttl", ttl.String(), "--every", "10ms")
	next.wait(t, "piton: waiting", 0, 1)
	a.signal(t, syscall.SIGKILL)
	killed := time.Now()
	next.wait(t, "msg=changed", 0, 1)
	if took := time.Since(killed); took > ttl+time.Second {
		t.Errorf("replaced after %v; want %v and at most a second more", took, ttl)
	}
	terminate(t, next)
	b.checkSum(t, next)
}

// Redis forgets everything while the lock is held, and its clock is behind the
// tokens that it has granted: the row still gets ever higher ones.
func TestRedisForgets(t *testing.T) {
	b := newBank(t)
	const ahead = "UPDATE account_balances SET last_fencing_token = extract(epoch FROM now() + interval '1 hour')::bigint * 1000, last_fencing_holder = 'before'"
	if _, err := b.db.Exec(ahead); err != nil {
		t.Fatal(err)
	}
	args := []string{"--ttl", "2s", "--every", "5ms", "--think", "50ms"}
	workers := []*program{b.start(t, "accounts", args...), b.start(t, "accounts", args...)}
	for _, p := range workers {
		p.wait(t, "msg=changed", 0, 1)
	}
	for range 5 {
		repaired := workers[0].count("piton: repaired") + workers[1].count("piton: repaired")
		workers[0].more(t, "msg=read", 1)
		if err := b.redis.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		servertest.Eventually(t, 20*time.Second, func() bool {
			return workers[0].count("piton: repaired")+workers[1].count("piton: repaired") > repaired
		}, "a repair")
	}
	for _, p := range workers {
		p.more(t, "msg=changed", 2)
	}
	terminate(t, workers...)
	b.checkSum(t, workers...)
	for _, p := range workers {
		if tokens := p.tokens("msg=changed"); !slices.IsSorted(tokens) || tokens[0] == tokens[len(tokens)-1] {
			t.Errorf("the tokens do not grow: %q", tokens)
		}
	}
}

func TestAWorkerOnAMissingAccountSaysSo(t *testing.T) {
	b := newBank(t)
	p := b.start(t, "accounts", "--account", "7")
	if err := p.exit(t); err == nil || p.count("account 7: no such account") == 0 {
		t.Errorf("ended with %v", err)
	}
	made := b.start(t, "accounts", "--account", "7", "--migrate")
	made.more(t, "msg=changed", 1)
	terminate(t, made)
}

func TestCommandLine(t *testing.T) {
	db := []string{"--postgres", "postgres://me@127.0.0.1:1/me"}
	t.Setenv("ACCOUNTS_EVERY", "")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, 2, "give --postgres"},
		{[]string{"--help"}, 0, "-every"},
		{[]string{"--nonsense"}, 2, "nonsense"},
		{append(db, "more"), 2, "argument without a flag"},
		{append(db, "--every", "0s"), 2, "--every is 0s"},
		{append(db, "--amount", "much"), 2, "amount"},
		{append(db, "--redis", "redis://127.0.0.1:1"), 1, "redis: "},
	} {
		var out bytes.Buffer
		if code := run(c.args, &out, Add); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%q: exit code %d: %s", c.args, code, out.String())
		}
	}
	t.Setenv("ACCOUNTS_EVERY", "often")
	if _, err := parse(db, io.Discard); err == nil || !strings.Contains(err.Error(), "ACCOUNTS_EVERY") {
		t.Errorf("a wrong variable: %v", err)
	}
	t.Setenv("ACCOUNTS_EVERY", "3s")
	t.Setenv("ACCOUNTS_MIGRATE", "true")
	t.Setenv("ACCOUNTS_TTL", "9s")
	s, err := parse(append(db, "--ttl", "7s"), io.Discard)
	if err != nil || s.every != 3*time.Second || s.ttl != 7*time.Second || !s.migrate {
		t.Errorf("%+v, %v; want the variables where there is no flag", s, err)
	}
}

func TestPasswordsAreNotShown(t *testing.T) {
	b := newBank(t)
	t.Setenv("ACCOUNTS_REDIS", "redis://u:geheim@127.0.0.1:1")
	t.Setenv("ACCOUNTS_POSTGRES", "postgres://u:geheim@127.0.0.1:1/d")
	for _, args := range [][]string{
		{"--help"},
		{"--nonsense"},
		{"redis://u:geheim@127.0.0.1:1"},
		{"--redis", "redis://u:geheim@%zz"},
		{"--redis", "redis://u:geheim/x@127.0.0.1:1"},
		{"--redis", b.args[1], "--postgres", "postgres://u:geheim@%zz/d"},
		{"--redis", b.args[1], "--postgres", "postgres://u:geheim/x@h/d"},
		{"--redis", b.args[1], "--migrate"},
		{},
	} {
		var out bytes.Buffer
		run(args, &out, Add)
		if out.Len() == 0 || strings.Contains(out.String(), "geheim") {
			t.Errorf("%q: %s", args, out.String())
		}
	}
}
