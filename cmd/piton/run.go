package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"time"

	"github.com/alecthomas/kong"
)

type runCmd struct {
	connection
	Guard     []string       `env:"PITON_GUARD" sep:" " placeholder:"URL" help:"Storage that refuses late writes: postgres://, mysql://, sqlite:///path. May be repeated; in the variable separated by blanks."`
	TTL       time.Duration  `name:"ttl" env:"PITON_TTL" default:"30s" placeholder:"DUR" help:"How long the lock outlives piton, the machine or the network. Renewed every third of it. Default ${default}."`
	Wait      *time.Duration `env:"PITON_WAIT" placeholder:"DUR" help:"Give up waiting for the lock after this, and for a server that does not answer, too. Default: for ever, and 5s for a server."`
	NoWait    bool           `env:"PITON_NO_WAIT" help:"Do not wait at all."`
	StopGrace *time.Duration `env:"PITON_STOP_GRACE" placeholder:"DUR" help:"Between TERM and KILL when the command has to end. Less than half of the TTL. Default: a fifth of the TTL, at most 5s."`
	Owner     string         `env:"PITON_OWNER" placeholder:"LABEL" help:"What others read about the holder. Default: user, host, pid and command."`
	Lock      string         `arg:"" help:"Name of the lock: any text of 1 to 512 bytes."`
	Command   []string       `kong:"-"`
}

func (runCmd) Help() string {
	return `The command comes after -- and runs while the lock is held:

    piton run nightly-report -- ./report.sh --all
    piton run --no-wait --ttl 10s cleanup -- find /tmp/jobs -mtime +7 -delete
    piton run --wait 2m --coordinator redis://cache:6379 deploy -- make deploy
    PITON_COORDINATOR=rediss://:secret@cache:6379 \
    PITON_GUARD=postgres://app:secret@db/app piton run invoices -- ./invoices

It finds in its environment PITON_LOCK, PITON_TOKEN, PITON_HOLDER and PITON_FENCE. --guard records the
fence in a database when the lock is acquired; what the command writes there is refused after a loss
only if it shows its fence: piton admit --help has the SQL. stdin, stdout and stderr are its own.

INT, HUP, QUIT, USR1 and USR2 are passed on. So is TERM, and renewal stops: the command has the rest of
the lease to end, two thirds of the TTL or more. A second TERM leaves it only the grace.

When the lease cannot be kept, everything that the command started gets TERM, and KILL before the
lease ends. The same happens to what is left when the command itself ends; then the lock is given
back. A grace above a third of the TTL leaves the renewal only one try.

A password in a URL on the command line is moved to the environment at once; other users may see it
for a moment. The variable avoids that.

Exit codes: the command's own; 128+n when signal n ended it, or piton while it waited; 126 it cannot be executed; 127 it was
not found; 64 usage; 69 the coordinator or a guard does not answer; 75 the lock is held; 76 the lease
was lost and the command was stopped; 77 a guard refused the fence.`
}

// AfterApply decides between waiting and not: what is written in the command
// outweighs a variable.
func (c *runCmd) AfterApply(parsed *kong.Context) error {
	if c.Wait == nil || !c.NoWait {
		return nil
	}
	written := map[string]bool{}
	for _, p := range parsed.Path {
		if p.Flag != nil {
			written[p.Flag.Name] = true
		}
	}
	switch {
	case written["wait"] == written["no-wait"]:
		return errors.New("--wait and --no-wait contradict each other; write one of them")
	case written["wait"]:
		c.NoWait = false
	default:
		c.Wait = nil
	}
	return nil
}

// check refuses values that cannot work, before anything is opened.
func (c *runCmd) check() error {
	usage := func(format string, args ...any) error {
		return &exitError{exitUsage, fmt.Sprintf(format, args...)}
	}
	switch {
	case len(c.Command) > 0 && c.Command[0] == "":
		return usage("the command is empty; write it after --: piton run %s -- COMMAND [ARG...]", plain(c.Lock))
	case len(c.Command) == 0:
		return usage("the command is missing; write it after --: piton run %s -- COMMAND [ARG...]", plain(c.Lock))
	case c.TTL <= 0:
		return usage("--ttl %v is not positive; write how long the lock may outlive its holder, as --ttl 30s", c.TTL)
	case c.Wait != nil && *c.Wait <= 0:
		return usage("--wait %v is not positive; write --wait 10s, or --no-wait", *c.Wait)
	case c.StopGrace != nil && *c.StopGrace < 0:
		return usage("--stop-grace %v is negative; write 0s, or a time below half of the TTL (%v)", *c.StopGrace, c.TTL/2)
	case c.StopGrace != nil && *c.StopGrace >= (c.TTL+1)/2:
		return usage("--stop-grace %v is not below half of the TTL of %v; write less than %v, or a longer --ttl", *c.StopGrace, c.TTL, c.TTL/2)
	}
	return checkLock(c.Lock)
}

// grace is the time between TERM and KILL.
func (c *runCmd) grace() time.Duration {
	if c.StopGrace != nil {
		return *c.StopGrace
	}
	return min(c.TTL/5, 5*time.Second)
}

// margin is how long before the trusted end KILL is sent: time for the kernel to
// end a large group on a loaded machine.
func (c *runCmd) margin() time.Duration {
	return min(max(c.TTL/30, 20*time.Millisecond), 500*time.Millisecond, c.TTL/10)
}

// owner is the label: never the arguments, which may hold secrets.
func (c *runCmd) owner() string {
	if c.Owner != "" {
		return c.Owner
	}
	name := "uid " + fmt.Sprint(os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s@%s pid %d: %s", name, host, os.Getpid(), filepath.Base(c.Command[0]))
}
