//go:build linux

package main

import (
	"io"
	"net"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pitonlock/piton/cmd/piton/internal/backend"
)

// hole is a proxy that, once shut, swallows every byte without closing anything:
// packets dropped, no reset.
type hole struct {
	listener net.Listener
	shut     atomic.Bool
}

func newHole(t *testing.T, target string) *hole {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	h := &hole{listener: l}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			t.Cleanup(func() { client.Close(); server.Close() })
			go h.pass(client, server)
			go h.pass(server, client)
		}
	}()
	return h
}

func (h *hole) pass(to io.WriteCloser, from io.Reader) {
	page := make([]byte, 32<<10)
	for {
		n, err := from.Read(page)
		if err != nil {
			if !h.shut.Load() {
				to.Close()
			}
			return
		}
		if !h.shut.Load() {
			_, _ = to.Write(page[:n])
		}
	}
}

// freeRedis starts a server of its own for one test and returns its address.
func freeRedis(t *testing.T) string {
	t.Helper()
	server, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(server, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	within(t, 10*time.Second, func() error {
		b, err := backend.OpenCoordinator(t.Context(), "redis://"+addr)
		if err != nil {
			return err
		}
		return b.Close()
	})
	return addr
}

// The coordinator is cut off without a reset: the whole group has ended before
// the lease does, and no contender is granted earlier.
func TestGroupEndsInABlackHole(t *testing.T) {
	addr := freeRedis(t)
	proxy := newHole(t, addr)
	const ttl = 3 * time.Second
	holder := start(t, nil, "run", "--ttl", ttl.String(), "--coordinator", "redis://"+proxy.listener.Addr().String(), "l", "--", "sh", "-c", family)
	holder.says(&holder.stdout, "ready")
	contender := start(t, nil, "run", "--coordinator", "redis://"+addr, "l", "--", "echo", "granted")
	contender.says(&contender.stderr, "waiting for lock")
	// Let it renew at least once: the lease is older than its TTL by then.
	time.AfterFunc(ttl+200*time.Millisecond, func() { proxy.shut.Store(true) })
	within(t, 2*ttl, func() error {
		if !proxy.shut.Load() {
			return io.ErrNoProgress
		}
		return nil
	})
	if n := len(holder.living()); n < 6 {
		t.Fatalf("only %d processes run after the first renewals; stderr %q", n, holder.stderr.String())
	}
	noOverlap(t, holder, contender, ttl)
	contender.exits(0)
	holder.exits(exitLost)
	if s := holder.stderr.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "the command was stopped") {
		t.Fatalf("stderr %q", s)
	}
}

// A coordinator that goes away while piton waits, or is frozen from the start.
func TestCoordinatorIsCutOff(t *testing.T) {
	addr := freeRedis(t)
	proxy := newHole(t, addr)
	proxy.shut.Store(true)
	p := start(t, nil, "run", "--coordinator", "redis://"+proxy.listener.Addr().String(), "l", "--", "echo", "never")
	p.exits(exitUnavailable)
	if p.stdout.String() != "" || strings.Count(p.stderr.String(), "\n") != 1 {
		t.Fatalf("stdout %q, stderr %q", p.stdout.String(), p.stderr.String())
	}
}
