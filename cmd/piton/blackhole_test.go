//go:build linux

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton/internal/faultproxy"
	"github.com/pitonlock/piton/internal/servertest"
)

// The coordinator is cut off without a reset: the whole group has ended before
// the lease does, and no contender is granted earlier.
func TestGroupEndsInABlackHole(t *testing.T) {
	redis := servertest.SharedRedis(t)
	proxy := faultproxy.Start(t, redis.Addr())
	const ttl = 3 * time.Second
	holder := start(t, nil, "run", "--ttl", ttl.String(), "--coordinator", "redis://"+proxy.Addr(), "cut off", "--", "sh", "-c", family)
	holder.says(&holder.stdout, "ready")
	contender := start(t, nil, "run", "--coordinator", redis.URL(), "cut off", "--", "echo", "granted")
	contender.says(&contender.stderr, "waiting for lock")
	outlive(t, holder, ttl)
	proxy.Cut()
	noOverlap(t, holder, contender, ttl)
	contender.exits(0)
	holder.exits(exitLost)
	if s := holder.stderr.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "the command was stopped") {
		t.Fatalf("stderr %q", s)
	}
}

// The server itself stands still: its TTL runs on, and connections to it still
// succeed, but nothing is answered.
func TestGroupEndsWhileRedisIsStopped(t *testing.T) {
	redis := servertest.StartRedis(t)
	const ttl = 3 * time.Second
	holder := start(t, nil, "run", "--ttl", ttl.String(), "--coordinator", redis.URL(), "l", "--", "sh", "-c", family)
	holder.says(&holder.stdout, "ready")
	outlive(t, holder, ttl)
	redis.Pause(t)
	stopped := time.Now()
	within(t, ttl, func() error {
		if left := holder.living(); len(left) > 0 {
			return fmt.Errorf("alive %v after Redis stopped, with a TTL of %v: %v", time.Since(stopped), ttl, left)
		}
		return nil
	})
	redis.Resume(t)
	holder.exits(exitLost)
	start(t, nil, "run", "--wait", "5s", "--coordinator", redis.URL(), "l", "--", "true").exits(0)
}

// outlive waits until the lease must have been renewed: a TTL and a bit. Nothing
// of the holder may have ended by then.
func outlive(t *testing.T, holder *program, ttl time.Duration) {
	t.Helper()
	renewed := time.Now().Add(ttl + 200*time.Millisecond)
	within(t, 2*ttl, func() error {
		if n := len(holder.living()); n < 6 {
			t.Fatalf("only %d processes run; stderr %q", n, holder.stderr.String())
		}
		if left := time.Until(renewed); left > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
}

// A coordinator that is silent from the start is unreachable, however long the
// user would wait for the lock.
func TestCoordinatorIsSilent(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.Start(t, servertest.SharedRedis(t).Addr())
	proxy.Cut()
	for _, wait := range []string{"--no-wait", "--wait=1s", "--wait=1h"} {
		p := start(t, nil, "run", "--coordinator", "redis://"+proxy.Addr(), wait, "silent", "--", "echo", "never")
		defer p.exits(exitUnavailable)
		defer func() {
			<-p.ended
			if p.stdout.String() != "" || strings.Count(p.stderr.String(), "\n") != 1 || !strings.Contains(p.stderr.String(), "does not answer") {
				t.Errorf("%s: stdout %q, stderr %q", wait, p.stdout.String(), p.stderr.String())
			}
		}()
	}
}

// A coordinator that falls silent while piton waits for the lock.
func TestCoordinatorFallsSilentDuringTheWait(t *testing.T) {
	t.Parallel()
	redis := servertest.SharedRedis(t)
	proxy := faultproxy.Start(t, redis.Addr())
	holder := start(t, nil, "run", "--coordinator", redis.URL(), "falls silent", "--", "sh", "-c", "echo ready; exec sleep 60")
	holder.says(&holder.stdout, "ready")
	waiter := start(t, nil, "run", "--ttl", "3s", "--wait", "2s", "--coordinator", "redis://"+proxy.Addr(), "falls silent", "--", "echo", "never")
	waiter.says(&waiter.stderr, "waiting for lock")
	proxy.Cut()
	waiter.exits(exitUnavailable)
	if s := waiter.stderr.String(); waiter.stdout.String() != "" || strings.Count(s, "\n") != 2 || !strings.Contains(s, "gave up after 2s") {
		t.Fatalf("stdout %q, stderr %q", waiter.stdout.String(), s)
	}
}
