package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pitonlock/piton/internal/servertest"
	"github.com/rogpeppe/go-internal/testscript"
)

// The test binary is also the program: as piton in the scripts, as its watcher,
// and wherever a test starts it with PITON_TEST_MAIN.
func TestMain(m *testing.M) {
	if watching() || proving() {
		return
	}
	if os.Getenv("PITON_TEST_MAIN") != "" {
		main()
	}
	if filepath.Base(os.Args[0]) != "piton" {
		// Under nohup programs inherit that HUP is ignored, which piton respects;
		// those that a Go program starts while it handles HUP do not.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	testscript.Main(servers{m}, map[string]func(){"piton": main})
}

// servers runs the tests and then stops the servers that they shared.
type servers struct{ *testing.M }

func (s servers) Run() int { return servertest.Main(s.M) }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "state"))
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits,
			"usage": usage,
		},
		Condition: func(cond string) (bool, error) {
			if cond != "ci" {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			return os.Getenv("CI") != "", nil
		},
		RequireExplicitExec: true,
	})
}

// exits CODE COMMAND...: the exit code is CODE, and stdout and stderr can be looked at.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// usage REGEXP ARG...: piton ARG... ends with 64 and exactly one line on stderr.
func usage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: usage REGEXP ARG...")
	}
	exits(ts, false, append([]string{"64", "piton"}, args[1:]...))
	stderr, stdout := ts.ReadFile("stderr"), ts.ReadFile("stdout")
	if stdout != "" {
		ts.Fatalf("stdout is not empty: %q", stdout)
	}
	if strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "piton: ") {
		ts.Fatalf("stderr is not one line of piton: %q", stderr)
	}
	if !regexp.MustCompile(args[0]).MatchString(stderr) {
		ts.Fatalf("stderr %q does not match %q", stderr, args[0])
	}
	if strings.Contains(stderr, "s3cret") {
		ts.Fatalf("stderr shows a password: %q", stderr)
	}
}
