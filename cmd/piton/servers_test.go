//go:build linux

package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/pitonlock/piton/internal/servertest"
)

// The commands on coordinators that are servers.
func TestLocksOnServers(t *testing.T) {
	t.Run("Redis", func(t *testing.T) {
		locksOnServer(t, servertest.SharedRedis(t).URL())
	})
	t.Run("Sentinel", func(t *testing.T) {
		s := servertest.StartRedisSentinel(t)
		locksOnServer(t, "redis+sentinel://"+strings.Join(s.Addrs(), ",")+"/"+s.Name)
	})
	t.Run("Cluster", func(t *testing.T) {
		locksOnServer(t, "redis+cluster://"+strings.Join(servertest.StartRedisCluster(t).Addrs()[:2], ","))
	})
	t.Run("etcd", func(t *testing.T) {
		endpoints := strings.Join(servertest.StartEtcdCluster(t).Endpoints(), ",")
		locksOnServer(t, "etcd://"+strings.ReplaceAll(endpoints, "http://", ""))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		locksOnServer(t, servertest.SharedPostgres(t).NewDatabase(t).URL())
	})
	t.Run("MariaDB", func(t *testing.T) {
		locksOnServer(t, servertest.SharedMariaDB(t).NewDatabase(t).URL())
	})
}

func locksOnServer(t *testing.T, url string) {
	env := []string{"PITON_COORDINATOR=" + url, state(t)}
	holder := start(t, env, "run", "--ttl", "3s", "--owner", "me", "night shift/7", "--", "sh", "-c", "echo $PITON_TOKEN; exec sleep 60")
	holder.says(&holder.stdout, "\n")
	token := strings.TrimSpace(holder.stdout.String())
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
	piton(75, `held by "me" with token `+token, "run", "--no-wait", "night shift/7", "--", "true")
	piton(0, "me", "show", "night shift/7")
	piton(0, "night shift/7", "locks", "night")
	piton(7, "", "run", "day", "--", "sh", "-c", "exit 7")
	piton(75, "nothing was broken", "break", "--token", "9007199254740991", "night shift/7")
	piton(0, "is broken", "break", "--token", token, "night shift/7")
	piton(0, "", "run", "--wait", "20s", "night shift/7", "--", "sh", "-c", "test $PITON_TOKEN -gt "+token)
	holder.exits(exitLost) // at its next heartbeat
}

// A server of another kind than the URL says is named, with the right URL.
func TestRedisOfAnotherKind(t *testing.T) {
	s, c := servertest.StartRedisSentinel(t), servertest.StartRedisCluster(t)
	for url, want := range map[string]string{
		"redis+cluster://" + s.Primary.Addr():                   "is a single server, not a Cluster; write redis://",
		"redis://" + c.Addrs()[0]:                               "is a node of a Cluster; write redis+cluster://",
		"redis://" + s.Replica.Addr():                           "is a replica, which takes no writes",
		"redis://" + s.Sentinels[0].Addr():                      "is a Sentinel; write redis+sentinel://",
		"redis+sentinel://" + s.Sentinels[0].Addr():             "the name of the primary is missing; write redis+sentinel://",
		"redis+sentinel://" + s.Sentinels[0].Addr() + "/nobody": "does not know a primary of that name",
		"redis+cluster://" + c.Addrs()[0] + "/3":                "a Cluster has no database 3",
		"redis+cluster://a,a":                                   "names a:6379 twice",
		"redis+sentinel://a,,b/name":                            "a host is missing",
	} {
		out, err := pitonCommand([]string{state(t)}, "locks", "--coordinator", url).CombinedOutput()
		if err == nil || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %q; want one line with %q", url, err, out, want)
		}
	}
}

// Who has the lock at the end of the wait is said, not who had it at its start.
func TestGivingUpNamesThePresentHolder(t *testing.T) {
	t.Parallel()
	env := []string{state(t)}
	first := start(t, env, "run", "--owner", "first", "l", "--", "sh", "-c", "echo $PITON_TOKEN; exec sleep 60")
	first.says(&first.stdout, "\n")
	firstToken := strings.TrimSpace(first.stdout.String())
	second := start(t, env, "run", "--owner", "second", "l", "--", "sh", "-c", "echo ready; exec sleep 60")
	second.says(&second.stderr, `held by "first"`)
	waiter := start(t, env, "run", "--wait", "4s", "l", "--", "echo", "never")
	waiter.says(&waiter.stderr, `held by "first"`)
	stop(t, waiter) // so that the second gets the lock
	start(t, env, "break", "l", "--token", firstToken).exits(0)
	second.says(&second.stdout, "ready")
	resume(t, waiter)
	waiter.exits(exitHeld)
	if s := waiter.stderr.String(); waiter.stdout.String() != "" || strings.Count(s, "\n") != 2 || !strings.Contains(s, `gave up after 4s: lock "l" is held by "second"`) {
		t.Fatalf("stdout %q, stderr %q", waiter.stdout.String(), s)
	}
}

// A Redis that may evict locks is named as such, once, and works.
func TestRedisThatForgetsIsNamed(t *testing.T) {
	redis := servertest.StartRedis(t, "--maxmemory-policy", "allkeys-lru")
	p := start(t, nil, "run", "--coordinator", redis.URL(), "l", "--", "echo", "hello")
	p.exits(0)
	want := fmt.Sprintf("piton: coordinator %s: maxmemory-policy is allkeys-lru, ", redis.URL())
	if s := p.stderr.String(); p.stdout.String() != "hello\n" || strings.Count(s, "\n") != 1 || !strings.HasPrefix(s, want) {
		t.Fatalf("stdout %q, stderr %q", p.stdout.String(), s)
	}
}
