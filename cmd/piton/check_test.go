//go:build linux

package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/cmd/piton/internal/backend"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/locktest"
)

// A sound server keeps every law, and has nothing more of the check afterwards.
func TestCheckOfSoundServers(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) string{
		"SQLite":     func(t *testing.T) string { return fileWithLocks(t) },
		"Redis":      func(t *testing.T) string { return servertest.StartRedis(t).URL() },
		"etcd":       func(t *testing.T) string { return servertest.StartEtcd(t).URL() },
		"PostgreSQL": func(t *testing.T) string { return servertest.SharedPostgres(t).NewDatabase(t).URL() },
		"MariaDB":    func(t *testing.T) string { return servertest.SharedMariaDB(t).NewDatabase(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := open(t)
			before := tokenOf(t, url, "somebody else's")
			out, err := pitonCommand([]string{state(t)}, "check", "--json", url).Output()
			if err != nil {
				t.Errorf("check: %v: %s", err, out)
			}
			var outcome checkJSON
			if err := json.Unmarshal(out, &outcome); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
			for _, l := range outcome.Laws {
				if !l.Kept {
					t.Errorf("%s: %s", l.Law, l.Error)
				}
			}
			if len(outcome.Laws) != len(locktest.Laws) || !outcome.Kept {
				t.Errorf("%d laws, kept %v", len(outcome.Laws), outcome.Kept)
			}
			nothingLeft(t, url)
			// Laws ask for tokens near the end of all numbers; other locks don't feel it.
			if after := tokenOf(t, url, "somebody else's"); after <= before || after > before+1<<41 {
				t.Errorf("the token of another lock is %d after %d", after, before)
			}
		})
	}
}

func fileWithLocks(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "locks.db")
	url := "sqlite://" + path
	tokenOf(t, url, "first")
	return url
}

// tokenOf takes a lock and gives it back.
func tokenOf(t *testing.T, url, lock string) piton.Token {
	t.Helper()
	b, err := backend.OpenCoordinator(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	g, err := b.Coordinator.Acquire(t.Context(), piton.Request{Lock: lock, Holder: "h", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Coordinator.Release(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	return g.Token
}

func nothingLeft(t *testing.T, url string) {
	t.Helper()
	b, err := backend.OpenCoordinator(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	held, err := b.Coordinator.(piton.Inspector).List(context.Background(), "piton-check-", 0)
	if err != nil || len(held) > 0 {
		t.Errorf("left: %+v, %v", held, err)
	}
}

// A check that is interrupted removes what it made, too.
func TestAnInterruptedCheckLeavesNothing(t *testing.T) {
	for signal, code := range map[os.Signal]int{os.Interrupt: 130, syscall.SIGTERM: 143} {
		redis := servertest.StartRedis(t)
		p := start(t, []string{state(t)}, "check", redis.URL())
		servertest.Eventually(t, 20*time.Second, func() bool {
			keys, _ := redis.Command(t, "KEYS", "*piton-check-*").([]any)
			return len(keys) > 0
		}, "keys of the check")
		if err := p.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		p.exits(code)
		if keys := redis.Command(t, "KEYS", "*piton-check-*").([]any); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
		if s := p.stderr.String(); !strings.Contains(s, "interrupted") || strings.Count(s, "\n") != 1 {
			t.Errorf("stderr: %q", s)
		}
	}
}

// A law that does not hold is named, with what to change; a setting that is
// dangerous is named, too.
func TestCheckOfAServerWithMistakes(t *testing.T) {
	redis := servertest.StartRedis(t, "--maxmemory-policy", "allkeys-lru")
	redis.Command(t, "ACL", "SETUSER", "mute", "on", ">s3cret", "~*", "+@all", "resetchannels")
	cmd := pitonCommand([]string{state(t)}, "check", "redis://mute:s3cret@"+redis.Addr())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 {
		t.Errorf("check: %v", err)
	}
	if s := stderr.String(); !strings.Contains(s, "maxmemory-policy is allkeys-lru") || !strings.Contains(s, "does not keep every law") || strings.Contains(s, "s3cret") {
		t.Errorf("stderr: %q", s)
	}
	if s := string(out); strings.Count(s, "FAILS") != 1 || !strings.Contains(s, "NOPERM") || !strings.Contains(s, "ACL SETUSER name &piton:*") {
		t.Errorf("stdout: %s", s)
	}
}
