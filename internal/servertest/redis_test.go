package servertest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton/internal/process"
)

// redisCall sends an inline command and returns the first line of the answer.
func redisCall(r *Redis, command string, within time.Duration) (string, error) {
	conn, err := net.DialTimeout("tcp", r.Addr(), within)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

func expectRedis(t *testing.T, r *Redis, command, want string) {
	t.Helper()
	if got, err := redisCall(r, command, 5*time.Second); err != nil || got != want {
		t.Errorf("%s: %q, %v; want %q", command, got, err, want)
	}
}

func TestRedisRestartKeepsPortAndData(t *testing.T) {
	r := StartRedis(t)
	addr, pid := r.Addr(), r.Pid()
	if r.URL() != "redis://"+addr {
		t.Errorf("URL is %s; want redis://%s", r.URL(), addr)
	}
	expectRedis(t, r, "INCR n", ":1")
	r.Kill(t)
	if process.Alive(pid) {
		t.Errorf("process %d is alive after Kill", pid)
	}
	if _, err := redisCall(r, "PING", time.Second); err == nil {
		t.Error("a killed server answers")
	}
	r.Restart(t)
	if r.Addr() != addr || r.Pid() == pid {
		t.Errorf("restarted as process %d on %s; want another than %d on %s", r.Pid(), r.Addr(), pid, addr)
	}
	expectRedis(t, r, "INCR n", ":2")
	r.Restart(t) // in good order
	expectRedis(t, r, "INCR n", ":3")
}

func TestRedisArgumentsWin(t *testing.T) {
	r := StartRedis(t, "--appendonly", "no")
	expectRedis(t, r, "INCR n", ":1")
	r.Kill(t)
	r.Restart(t)
	expectRedis(t, r, "INCR n", ":1")
}

func TestRedisPauseResume(t *testing.T) {
	r := StartRedis(t)
	r.Pause(t)
	if got, err := redisCall(r, "PING", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a paused server: %q, %v; want a timeout", got, err)
	}
	r.Resume(t)
	expectRedis(t, r, "PING", "+PONG")
}

func TestRedisEndsWithItsTest(t *testing.T) {
	var r *Redis
	t.Run("test", func(t *testing.T) {
		r = StartRedis(t)
		r.Pause(t)
	})
	if process.Alive(r.Pid()) {
		t.Errorf("process %d is alive after its test", r.Pid())
	}
	if _, err := os.Stat(r.folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder of an ended server: %v", err)
	}
}

func TestSharedRedisIsOne(t *testing.T) {
	if a, b := SharedRedis(t), SharedRedis(t); a != b {
		t.Errorf("two servers, on %s and %s; want one", a.Addr(), b.Addr())
	}
	expectRedis(t, SharedRedis(t), "PING", "+PONG")
}
