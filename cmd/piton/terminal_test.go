//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo terminal with a shell as its session leader.
type terminal struct {
	t      *testing.T
	master *os.File
	seen   buffer
	shell  *exec.Cmd
}

// openTerminal runs script in a shell on a new terminal; $PITON is the program.
func openTerminal(t *testing.T, script string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	tt := &terminal{t: t, master: master}
	tt.shell = pitonCommand([]string{state(t)})
	tt.shell.Env = append(tt.shell.Env, "PITON="+tt.shell.Path)
	tt.shell.Path, tt.shell.Args = "/bin/sh", []string{"sh", "-c", script}
	tt.shell.Stdin, tt.shell.Stdout, tt.shell.Stderr = slave, slave, slave
	tt.shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := tt.shell.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		page := make([]byte, 4096)
		for {
			n, err := master.Read(page)
			if err != nil {
				return
			}
			_, _ = tt.seen.Write(page[:n])
		}
	}()
	t.Cleanup(func() {
		_ = tt.shell.Process.Kill()
		_ = tt.shell.Wait()
		_ = master.Close()
	})
	return tt
}

func (tt *terminal) shows(text string) {
	tt.t.Helper()
	within(tt.t, 10*time.Second, func() error {
		if !strings.Contains(tt.seen.String(), text) {
			return fmt.Errorf("terminal shows %q, not %q", tt.seen.String(), text)
		}
		return nil
	})
}

func (tt *terminal) types(keys string) {
	tt.t.Helper()
	if _, err := tt.master.WriteString(keys); err != nil {
		tt.t.Fatal(err)
	}
}

func TestTerminalBelongsToTheCommand(t *testing.T) {
	t.Parallel()
	tt := openTerminal(t, `
trap : INT
"$PITON" run l -- sh -c 'trap "echo interrupted; exit 3" INT; echo one; read x; echo "<$x>"; while :; do sleep 0.02; done'
echo "code=$?"
read y
echo "back=$y"`)
	tt.shows("one")
	tt.types("hello\n") // only the foreground group may read
	tt.shows("<hello>")
	tt.types("\x03") // Ctrl-C reaches the command, not piton
	tt.shows("interrupted")
	tt.shows("code=3")
	tt.types("again\n") // the shell has its terminal back
	tt.shows("back=again")
}

func TestCommandCannotBeSuspended(t *testing.T) {
	t.Parallel()
	tt := openTerminal(t, `"$PITON" run l -- sh -c 'echo one; read x; echo "<$x>"'; echo "code=$?"`)
	tt.shows("one")
	tt.types("\x1a") // Ctrl-Z
	tt.types("hello\n")
	tt.shows("<hello>")
	tt.shows("code=0")
}

func TestTerminalIsHandedOverOnDemand(t *testing.T) {
	t.Parallel()
	// stdout is a pipe: the reader at its end might need the terminal, so that
	// the command gets it only when it reads from it.
	tt := openTerminal(t, `"$PITON" run l -- sh -c 'echo one; read x; echo "<$x>"' | cat; read y; echo "back=$y"`)
	tt.shows("one")
	tt.types("hello\n")
	tt.shows("<hello>")
	tt.types("again\n")
	tt.shows("back=again")
}
