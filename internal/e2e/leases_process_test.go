package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/process"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/redis/redislock"
	"github.com/pitonlock/piton/sqlite/sqlitelock"
	"github.com/redis/go-redis/v9"
)

func init() { helpers["lease-holder"] = leaseHolder }

// leaseHolder is a holder in a process of its own: it says when it has the lock,
// and when it has lost it.
func leaseHolder() error {
	where := os.Getenv("HOLDER_COORDINATOR")
	var c piton.Coordinator
	var err error
	switch {
	case strings.HasPrefix(where, "/"):
		c, err = sqlitelock.Open(where)
	case strings.HasPrefix(where, "http://"):
		c, err = connectEtcd([]string{where})
	default:
		c, err = redislock.New(redis.NewClient(&redis.Options{Addr: where, ContextTimeoutEnabled: true}))
	}
	if err != nil {
		return err
	}
	ttl, err := time.ParseDuration(os.Getenv("HOLDER_TTL"))
	if err != nil {
		return err
	}
	l, err := piton.New(c, piton.WithTTL(ttl))
	if err != nil {
		return err
	}
	lease, err := l.Acquire(context.Background(), os.Getenv("HOLDER_LOCK"))
	if err != nil {
		return err
	}
	fmt.Println(lease.Token())
	<-lease.Done()
	fmt.Println("lost")
	return nil
}

func startLeaseHolder(t *testing.T, where, lock string, ttl time.Duration) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), helperVariable+"=lease-holder", "HOLDER_COORDINATOR="+where, "HOLDER_LOCK="+lock, "HOLDER_TTL="+ttl.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, bufio.NewScanner(out)
}

// eachShared runs a test on every coordinator that several processes can share.
func eachShared(t *testing.T, test func(t *testing.T, where string, c coordinator)) {
	t.Run("sqlitelock", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "locks.db")
		test(t, path, openFile(t, path))
	})
	t.Run("redislock", func(t *testing.T) {
		addr := servertest.StartRedis(t).Addr()
		test(t, addr, onRedis(t, addr))
	})
	t.Run("etcdlock", func(t *testing.T) {
		endpoint := servertest.StartEtcd(t).Endpoint()
		test(t, endpoint, onEtcd(t, endpoint))
	})
}

// Holders are killed at random moments, on their way to the lock and after it:
// the next one gets it within the TTL, without anybody's help.
func TestLockStuckAfterCrash(t *testing.T) {
	const (
		rounds = 24
		ttl    = time.Second
	)
	eachShared(t, func(t *testing.T, where string, c coordinator) {
		l := newLocker(t, c, piton.WithTTL(ttl))
		var all sync.WaitGroup
		slots := make(chan struct{}, 6)
		for n := range rounds {
			lock := fmt.Sprintf("crash %d", n)
			slots <- struct{}{}
			cmd, _ := startLeaseHolder(t, where, lock, ttl)
			all.Go(func() {
				defer func() { <-slots }()
				<-time.After(rand.N(400 * time.Millisecond))
				if err := cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
				_ = cmd.Wait() // it was killed
				killed := time.Now()
				before, held, err := c.Get(t.Context(), lock)
				if err != nil {
					t.Error(err)
				}
				next, err := l.Acquire(t.Context(), lock)
				if err != nil {
					t.Error(err)
					return
				}
				if took := time.Since(killed); took > ttl+time.Second {
					t.Errorf("%s: free %v after the holder was killed", lock, took)
				}
				if held && next.Token() <= before.Token {
					t.Errorf("%s: token %d after %d", lock, next.Token(), before.Token)
				}
				if err := next.Release(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
}

// A holder that was frozen for longer than its TTL knows it when it wakes up.
func TestAFrozenHolderHasLostItsLease(t *testing.T) {
	const ttl = time.Second
	eachShared(t, func(t *testing.T, where string, c coordinator) {
		cmd, lines := startLeaseHolder(t, where, "a", ttl)
		if !lines.Scan() {
			t.Fatal("the holder ended without a word")
		}
		token, err := strconv.ParseInt(lines.Text(), 10, 64)
		must(t, err, process.Pause(cmd.Process.Pid))
		next := acquire(t, newLocker(t, c, piton.WithTTL(ttl)), "a")
		if next.Token() <= piton.Token(token) {
			t.Errorf("token %d after %d", next.Token(), token)
		}
		must(t, process.Resume(cmd.Process.Pid))
		woken := time.Now()
		if !lines.Scan() || lines.Text() != "lost" {
			t.Fatalf("the holder says %q", lines.Text())
		}
		if took := time.Since(woken); took > 500*time.Millisecond { // 100 ms, and a busy machine
			t.Errorf("it knew %v after it woke up", took)
		}
		must(t, cmd.Wait())
		if err := next.Err(); err != nil {
			t.Errorf("the next holder: %v", err)
		}
		release(t, next)
	})
}

// The request's context ends in mid-work, and the lock is free at once.
func TestReleaseDoneOnACancelledContext(t *testing.T) {
	eachCoordinator(t, func(t *testing.T, client func() coordinator) {
		c := client()
		l, other := newLocker(t, c), newLocker(t, client())
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			err := l.Do(ctx, "a", func(ctx context.Context, _ *piton.Lease) error {
				cancel()
				<-ctx.Done()
				return ctx.Err()
			})
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			start := time.Now()
			lease, err := other.TryAcquire(t.Context(), "a")
			if err != nil || time.Since(start) > 500*time.Millisecond {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
			release(t, lease)
		}
	})
}
