package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/cmd/piton/internal/backend"
	"github.com/pitonlock/piton/cmd/piton/internal/group"
)

const (
	// releaseTimeout bounds giving a lock back; the lease ends by itself otherwise.
	releaseTimeout = 5 * time.Second
	// lastLook bounds the look at the lock after the waiting.
	lastLook = time.Second
)

// watching runs the watcher when this process was started as one.
func watching() bool {
	if len(os.Args) < 2 || os.Args[1] != group.WatchArg {
		return false
	}
	os.Exit(group.Watch())
	return true
}

// Run holds the lock while the command runs.
func (c *runCmd) Run() error {
	if err := c.check(); err != nil {
		return err
	}
	path, err := group.LookPath(c.Command[0], os.Getenv("PATH"))
	if err != nil {
		return notExecuted(c.Command[0], err)
	}
	signals := make(chan os.Signal, 16)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		if !signal.Ignored(s) { // nohup, background jobs
			signal.Notify(signals, s)
		}
	}
	group.Deafen(syscall.SIGPIPE) // a closed stderr must not end the holder

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	opened := make(chan struct{})
	watched := make(chan struct{})
	go func() { // until the lock is held, a signal ends piton
		defer close(watched)
		select {
		case s := <-signals:
			cancel(&exitError{exitSignal + int(s.(syscall.Signal)), ""})
		case <-opened:
		}
	}()
	locker, closeAll, err := c.open(ctx)
	var lease *piton.Lease
	if err == nil {
		defer closeAll()
		lease, err = c.acquire(ctx, locker)
	}
	close(opened)
	<-watched
	var stopped *exitError
	if cause := context.Cause(ctx); errors.As(cause, &stopped) {
		if lease != nil {
			c.release(lease)
		}
		return stopped
	}
	if err != nil {
		return err
	}
	return c.hold(locker, lease, path, signals)
}

// open connects to the coordinator and the guards.
func (c *runCmd) open(ctx context.Context) (*piton.Locker, func(), error) {
	var closers []func() error
	closeAll := func() {
		for i := len(closers) - 1; i >= 0; i-- {
			_ = closers[i]() // what was to be kept is kept; the process ends
		}
	}
	if c.Wait != nil { // who waits briefly for a lock waits briefly for a server
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(*c.Wait, lastLook))
		defer cancel()
	}
	b, err := c.connection.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, b.Close)
	if b.Local {
		say("coordinator memory: excludes nobody outside of this process; use it for trying things only")
	}
	for _, warning := range b.Warnings {
		say("coordinator %s: %s", b.Redacted, warning)
	}
	var guards []piton.Guard
	for _, raw := range c.Guard {
		g, closeGuard, err := backend.OpenGuard(ctx, raw)
		if err != nil {
			closeAll()
			return nil, nil, openError(err)
		}
		closers = append(closers, closeGuard)
		guards = append(guards, g)
	}
	locker, err := piton.New(b.Coordinator, piton.WithTTL(c.TTL), piton.WithGuards(guards...), piton.WithOwner(c.owner()), piton.WithObserver(c.tellWaiting))
	if err != nil {
		closeAll()
		return nil, nil, &exitError{exitUsage, err.Error()}
	}
	closers = append(closers, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
		defer cancel()
		return locker.Close(ctx)
	})
	return locker, closeAll, nil
}

// tellWaiting says once who has the lock, and for how long.
func (c *runCmd) tellWaiting(e piton.Event) {
	var held *piton.HeldError
	if e.Kind == piton.EventWaiting && errors.As(e.Err, &held) {
		say("waiting for lock %q, held %s", c.Lock, holder(held.Owner, held.Token, held.Remaining))
	}
}

// errWaited ends a wait that took as long as --wait says.
var errWaited = errors.New("waited in vain")

// acquire gets the lock, waiting as the flags say.
func (c *runCmd) acquire(ctx context.Context, locker *piton.Locker) (*piton.Lease, error) {
	if c.NoWait {
		lease, err := locker.TryAcquire(ctx, c.Lock)
		return lease, c.acquireError(err, "")
	}
	waiting := ctx
	if c.Wait != nil {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeoutCause(ctx, *c.Wait, errWaited)
		defer cancel()
	}
	lease, err := locker.Acquire(waiting, c.Lock)
	if !errors.Is(err, errWaited) {
		return lease, c.acquireError(err, "")
	}
	// Who has it may have changed since the waiting began, and whether anybody
	// answers at all: this last look tells.
	last, cancel := context.WithTimeout(ctx, lastLook)
	defer cancel()
	lease, err = locker.TryAcquire(last, c.Lock)
	return lease, c.acquireError(err, fmt.Sprintf("gave up after %v: ", *c.Wait))
}

// acquireError gives an error of the Locker its exit code, and gaveUp before its text.
func (c *runCmd) acquireError(err error, gaveUp string) error {
	var held *piton.HeldError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, piton.ErrStale):
		return &exitError{exitRefused, c.scrub(err)}
	case errors.As(err, &held):
		return &exitError{exitHeld, fmt.Sprintf("%slock %q is held %s", gaveUp, c.Lock, holder(held.Owner, held.Token, held.Remaining))}
	case errors.Is(err, piton.ErrHeld):
		return &exitError{exitHeld, gaveUp + c.scrub(err)}
	}
	return &exitError{exitUnavailable, gaveUp + c.scrub(err)}
}

// hold runs the command under the lease and gives the lease back.
func (c *runCmd) hold(locker *piton.Locker, lease *piton.Lease, path string, signals <-chan os.Signal) error {
	g, err := group.Start(group.Command{
		Path: path, Args: c.Command, Env: c.environ(lease.Fence()),
		Grace: c.grace(), Margin: c.margin(), Until: lease.Until(), Terminal: group.WantsTerminal(),
	})
	if err != nil {
		c.release(lease)
		if errors.Is(err, syscall.ENOENT) { // the file itself was found before
			return &exitError{exitNotRunnable, fmt.Sprintf("%s: cannot be executed: the interpreter that it names (#! line, or loader) does not exist", plain(c.Command[0]))}
		}
		return notExecuted(c.Command[0], err)
	}
	group.DropStreams(0, 1) // they are the command's
	// A holder that is suspended cannot renew.
	group.Deafen(syscall.SIGTSTP)
	resumed := make(chan os.Signal, 1)
	signal.Notify(resumed, syscall.SIGCONT)
	tick := time.NewTicker(max(c.TTL/20, time.Millisecond))
	defer tick.Stop()
	lost := lease.Done()
	stopping := false
	for running := true; running; {
		select {
		case <-g.Done():
			running = false
		case <-lost:
			lost = nil
			tick.Stop() // the trusted end moves no more
			g.End()
		case <-tick.C:
			g.Trust(lease.Until())
		case s := <-signals:
			switch {
			case s != syscall.SIGTERM:
				g.Signal(s.(syscall.Signal))
			case stopping: // a second TERM: no more patience than the grace
				g.End()
			default:
				g.Signal(syscall.SIGTERM)
				stopping, lost = true, nil
				stopRenewal(locker)
			}
		case <-resumed:
			g.Resume()
		}
	}
	group.TakeTerminal()
	return c.finish(lease, stopping, g.Result())
}

// stopRenewal leaves the command the rest of the lease: one that ignores TERM is
// ended with it.
func stopRenewal(locker *piton.Locker) {
	atOnce, cancel := context.WithCancel(context.Background())
	cancel()
	_ = locker.Close(atOnce) // the lease is still in use; the waiting comes after the release
}

// finish gives the lock back, now that nothing of the command runs any more, and
// turns the result into an exit code.
func (c *runCmd) finish(lease *piton.Lease, stopping bool, r group.Result) error {
	lostErr := lease.Err()
	releaseErr := c.release(lease)
	switch {
	case stopping && r.Overdue:
		say("the command had not ended when the lease of lock %q was about to end; it was killed", c.Lock)
	case errors.Is(lostErr, piton.ErrLost):
		return &exitError{exitLost, c.scrub(lostErr) + "; the command was stopped"}
	case r.Overdue:
		return &exitError{exitLost, fmt.Sprintf("the lease on %q with token %d could not be renewed in time; the command was stopped", c.Lock, lease.Token())}
	case errors.Is(releaseErr, piton.ErrLost):
		return &exitError{exitLost, c.scrub(releaseErr) + "; the command had ended by itself"}
	case r.Err != nil:
		return &exitError{exitSignal + int(syscall.SIGKILL), r.Err.Error()}
	}
	if releaseErr != nil {
		say("lock %q was not given back and ends by itself within %s: %s", c.Lock, rough(c.TTL), c.scrub(releaseErr))
	}
	if r.Status.Signaled() {
		return &exitError{exitSignal + int(r.Status.Signal()), ""}
	}
	return &exitError{r.Status.ExitStatus(), ""}
}

func (c *runCmd) release(lease *piton.Lease) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	return lease.Release(ctx)
}

func (c *runCmd) scrub(err error) string {
	return backend.Scrub(err, append([]string{c.Coordinator}, c.Guard...)...).Error()
}

// environ is the command's environment: piton's own, with the fence, without
// the URLs that were moved there to hide them.
func (c *runCmd) environ(f piton.Fence) []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "PITON_LOCK", "PITON_TOKEN", "PITON_HOLDER", "PITON_FENCE":
		default:
			if !movedHere(name) {
				env = append(env, kv)
			}
		}
	}
	return append(env, "PITON_LOCK="+f.Lock, fmt.Sprintf("PITON_TOKEN=%d", f.Token), "PITON_HOLDER="+f.Holder, "PITON_FENCE="+f.String())
}

func notExecuted(name string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		return &exitError{exitNotFound, fmt.Sprintf("%s: command not found", plain(name))}
	case errors.Is(err, syscall.ENOEXEC):
		return &exitError{exitNotRunnable, fmt.Sprintf("%s: not a program; a script starts with #!, as in #!/bin/sh", plain(name))}
	}
	return &exitError{exitNotRunnable, fmt.Sprintf("%s: cannot be executed: %v", plain(name), err)}
}
