//go:build linux

package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/pitonlock/piton/internal/servertest"
)

// The commands on coordinators in SQL databases.
func TestLocksInADatabase(t *testing.T) {
	t.Run("PostgreSQL", func(t *testing.T) {
		locksInADatabase(t, servertest.StartPostgres(t).NewDatabase(t).URL())
	})
	t.Run("MariaDB", func(t *testing.T) {
		locksInADatabase(t, servertest.StartMariaDB(t).NewDatabase(t).URL())
	})
}

func locksInADatabase(t *testing.T, url string) {
	env := []string{"PITON_COORDINATOR=" + url, state(t)}
	holder := start(t, env, "run", "--ttl", "3s", "--owner", "me", "night shift/7", "--", "sh", "-c", "echo token $PITON_TOKEN; exec sleep 60")
	holder.says(&holder.stdout, "token 1\n")
	piton := func(wantCode int, wantText string, args ...string) {
		t.Helper()
		out, err := pitonCommand(env, args...).CombinedOutput()
		code := 0
		if exit, ok := err.(*exec.ExitError); ok {
			code = exit.ExitCode()
		}
		if code != wantCode || !strings.Contains(string(out), wantText) {
			t.Errorf("piton %s: code %d, %q; want %d, %q", strings.Join(args, " "), code, out, wantCode, wantText)
		}
	}
	piton(75, "", "run", "--no-wait", "night shift/7", "--", "true")
	piton(0, "me", "show", "night shift/7")
	piton(0, "night shift/7", "locks", "night")
	piton(7, "", "run", "day", "--", "sh", "-c", "exit 7")
	piton(0, "", "break", "--token", "1", "night shift/7")
	piton(0, "token 2", "run", "--wait", "20s", "night shift/7", "--", "sh", "-c", "echo token $PITON_TOKEN")
	holder.exits(76) // at its next heartbeat
}
