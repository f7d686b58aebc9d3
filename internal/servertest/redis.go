package servertest

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"
)

// Redis is a running redis-server.
type Redis struct{ *Server }

var sharedRedis shared[*Redis]

// StartRedis starts a redis-server for this test with the given further
// command line arguments, of which the later ones win: "--appendonly", "no".
func StartRedis(tb testing.TB, args ...string) *Redis {
	tb.Helper()
	server, err := startRedis(args...)
	return own(tb, server, err)
}

// SharedRedis returns the redis-server that all tests of the binary share. Use
// keys that contain something of the test's own, since nobody empties it.
func SharedRedis(tb testing.TB) *Redis {
	tb.Helper()
	return sharedRedis.get(tb, func() (*Redis, error) { return startRedis() })
}

// URL is redis://127.0.0.1:PORT.
func (r *Redis) URL() string { return "redis://" + r.Addr() }

func startRedis(args ...string) (*Redis, error) {
	binary, err := find("redis-server", "redis-server")
	if err != nil {
		return nil, err
	}
	folder, err := newFolder("redis")
	if err != nil {
		return nil, err
	}
	server := &Server{
		kind: "redis-server", binary: binary, folder: folder, probe: probeRedis, ending: syscall.SIGTERM,
		args: func(port int) []string {
			return append([]string{
				"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", folder,
				"--save", "", "--appendonly", "yes", "--appendfsync", "no",
			}, args...)
		},
	}
	if err := server.start(freePort); err != nil {
		return nil, err
	}
	return &Redis{server}, nil
}

// probeRedis asks whether Redis answers. One that loads its data or wants a
// password says so by an error reply, which begins with a minus; only the
// former means that it is not ready.
func probeRedis(conn net.Conn) error {
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return err
	}
	reply := make([]byte, len("-NOAUTH"))
	if _, err := io.ReadFull(conn, reply); err != nil {
		return err
	}
	switch {
	case string(reply) == "+PONG\r\n", string(reply) == "-NOAUTH":
		return nil
	default:
		return fmt.Errorf("PING was answered by %q", reply)
	}
}
