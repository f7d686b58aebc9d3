//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/cmd/piton/internal/backend"
	"github.com/pitonlock/piton/internal/process"
)

// noOverlap waits until the contender says that it runs, and fails if anything
// of the holder is alive then, or later than atMost from now.
func noOverlap(t *testing.T, holder, contender *program, atMost time.Duration) {
	t.Helper()
	begin := time.Now()
	var gone time.Duration
	within(t, 30*time.Second, func() error {
		granted := strings.Contains(contender.stdout.String(), "granted")
		left := holder.living()
		if len(left) == 0 && gone == 0 {
			gone = time.Since(begin)
			t.Logf("group gone after %v", gone)
		}
		if len(left) > 0 && time.Since(begin) > atMost {
			t.Fatalf("alive %v after the lease must be over: %v", time.Since(begin), left)
		}
		if !granted {
			return fmt.Errorf("the contender was not granted; stderr %q", contender.stderr.String())
		}
		if len(left) > 0 {
			t.Fatalf("the contender runs, and so do %v", left)
		}
		t.Logf("contender granted after %v", time.Since(begin))
		return nil
	})
}

// The whole of piton is frozen: the watcher ends the group by itself.
func TestGroupEndsWhenPitonIsStopped(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	env := []string{state(t)}
	holder := start(t, env, "run", "--ttl", ttl.String(), "l", "--", "sh", "-c", family)
	holder.says(&holder.stdout, "ready")
	contender := start(t, env, "run", "l", "--", "echo", "granted")
	contender.says(&contender.stderr, "waiting for lock")
	stop(t, holder)
	noOverlap(t, holder, contender, ttl)
	contender.exits(0)
	resume(t, holder)
	holder.exits(exitLost)
	if !strings.Contains(holder.stderr.String(), "the command was stopped") {
		t.Fatalf("stderr %q", holder.stderr.String())
	}
}

// A broken lease ends the command at the next renewal, not at the end of the TTL.
func TestBrokenLeaseEndsTheCommandEarly(t *testing.T) {
	t.Parallel()
	const ttl = 9 * time.Second
	env := []string{state(t)}
	holder := start(t, env, "run", "--ttl", ttl.String(), "l", "--", "sh", "-c", `echo "token $PITON_TOKEN ready"; while :; do sleep 0.02; done`)
	holder.says(&holder.stdout, "ready")
	broken := time.Now()
	start(t, env, "break", "l", "--token", strings.Fields(holder.stdout.String())[1]).exits(0)
	holder.exits(exitLost)
	if took := holder.endedAt.Sub(broken); took > ttl/2 {
		t.Fatalf("the command ran for %v after its lease was broken; the next renewal was due within %v", took, ttl/3)
	}
}

// What the command left behind has ended when the lock is given back.
func TestLeftoversEndBeforeTheNextHolder(t *testing.T) {
	t.Parallel()
	env := []string{state(t)}
	end := filepath.Join(t.TempDir(), "end")
	holder := start(t, env, "run", "--ttl", "5s", "l", "--", "sh", "-c",
		`(setsid sh -c 'trap "" TERM; sleep 603; sleep 604' &); (trap "" TERM; sleep 605; sleep 606) & echo ready; while [ ! -e `+end+` ]; do sleep 0.02; done; exit 5`)
	holder.says(&holder.stdout, "ready")
	contender := start(t, env, "run", "l", "--", "echo", "granted")
	contender.says(&contender.stderr, "waiting for lock")
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	noOverlap(t, holder, contender, 4*time.Second)
	holder.exits(5)
	contender.exits(0)
}

func stop(t *testing.T, p *program) {
	t.Helper()
	if err := process.Pause(p.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
}

// resume lets piton run on. It may end at once, so nobody waits to see it run.
func resume(t *testing.T, p *program) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

func TestGuardIsSealedBeforeTheCommandRuns(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	env := []string{state(t)}
	p := start(t, env, "run", "--guard", url, "l", "--", "sh", "-c", "echo $PITON_TOKEN")
	p.exits(0)
	mark := markOf(t, url, "l")
	if want := fmt.Sprintf("%d\n", mark.Token); p.stdout.String() != want {
		t.Fatalf("the command had token %q, the storage has %q", p.stdout.String(), want)
	}
}

// The storage has recorded the highest token there is, so no repair can help.
func TestStorageRefusesTheFence(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	guard, closeGuard, err := backend.OpenGuard(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer closeGuard()
	if err := guard.Seal(context.Background(), piton.Fence{Lock: "l", Token: piton.MaxToken, Holder: "somebody"}); err != nil {
		t.Fatal(err)
	}
	env := []string{state(t)}
	p := start(t, env, "run", "--guard", url, "l", "--", "echo", "never")
	p.exits(exitRefused)
	if p.stdout.String() != "" || !strings.Contains(p.stderr.String(), "stale") {
		t.Fatalf("stdout %q, stderr %q", p.stdout.String(), p.stderr.String())
	}
	// ... and nothing is left locked.
	q := start(t, env, "show", "l")
	q.exits(0)
	if !strings.Contains(q.stdout.String(), "is free") {
		t.Fatalf("stdout %q", q.stdout.String())
	}
}

// The storage is ahead because the coordinator forgot: piton repairs that.
func TestStorageAheadIsRepaired(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	guard, closeGuard, err := backend.OpenGuard(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer closeGuard()
	const ahead = piton.MaxToken / 2
	if err := guard.Seal(context.Background(), piton.Fence{Lock: "l", Token: ahead, Holder: "somebody"}); err != nil {
		t.Fatal(err)
	}
	p := start(t, []string{state(t)}, "run", "--guard", url, "l", "--", "sh", "-c", fmt.Sprintf("test $PITON_TOKEN -gt %d", ahead))
	p.exits(0)
}

// newDatabase makes an empty SQLite database and returns its URL.
func newDatabase(t *testing.T) string {
	t.Helper()
	url := "sqlite://" + filepath.Join(t.TempDir(), "data.db")
	db, _, closeDB, err := backend.OpenStorage(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	if _, err := db.Exec("CREATE TABLE invoices (id INTEGER PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	return url
}

func markOf(t *testing.T, url, lock string) piton.Fence {
	t.Helper()
	guard, closeGuard, err := backend.OpenGuard(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer closeGuard()
	mark, ok, err := guard.(interface {
		Mark(ctx context.Context, lock string) (piton.Fence, bool, error)
	}).Mark(context.Background(), lock)
	if err != nil || !ok {
		t.Fatalf("mark of %q: %v, %v", lock, ok, err)
	}
	return mark
}
