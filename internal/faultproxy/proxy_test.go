package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const soon = 60 * time.Millisecond // within which nothing must arrive

// server is the real other end: the test reads and writes its connections.
type server struct {
	net.Listener
	conns chan net.Conn
}

func serve(t *testing.T) *server {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	s := &server{listener, make(chan net.Conn, 10)}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.conns <- conn
		}
	}()
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// accepted is the server's end of the connection.
func (s *server) accepted(t *testing.T) net.Conn {
	t.Helper()
	select {
	case conn := <-s.conns:
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	case <-time.After(5 * time.Second):
		t.Fatal("no connection has come to the server")
		return nil
	}
}

// pair is a proxy with one connection through it.
func pair(t *testing.T) (p *Proxy, client, far net.Conn) {
	t.Helper()
	s := serve(t)
	p = Start(t, s.Addr().String())
	client = dial(t, p.Addr())
	return p, client, s.accepted(t)
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_, err := conn.Write([]byte(text))
	must(t, err)
}

func expect(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	must(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("received %q, %v; want %q", got[:n], err, want)
	}
}

func expectError(t *testing.T, conn net.Conn, within time.Duration, want error) {
	t.Helper()
	must(t, conn.SetReadDeadline(time.Now().Add(within)))
	got := make([]byte, 100)
	if n, err := conn.Read(got); !errors.Is(err, want) {
		t.Fatalf("received %q, %v; want %v", got[:n], err, want)
	}
}

func expectNothing(t *testing.T, conn net.Conn) {
	t.Helper()
	expectError(t, conn, soon, os.ErrDeadlineExceeded)
}

// bothWays runs the test for each direction; from and to are its two ends.
func bothWays(t *testing.T, test func(t *testing.T, p *Proxy, dir Direction, from, to net.Conn)) {
	for _, dir := range []Direction{ToServer, ToClient} {
		t.Run(dir.String(), func(t *testing.T) {
			p, client, far := pair(t)
			if dir == ToServer {
				test(t, p, dir, client, far)
			} else {
				test(t, p, dir, far, client)
			}
		})
	}
}

func TestPassesBytesAndEnds(t *testing.T) {
	bothWays(t, func(t *testing.T, _ *Proxy, _ Direction, from, to net.Conn) {
		long := strings.Repeat("0123456789abcdef", 100_000)
		go func() { _, _ = from.Write([]byte(long)) }()
		expect(t, to, long)
		must(t, from.(*net.TCPConn).CloseWrite())
		expectError(t, to, 5*time.Second, io.EOF)
		send(t, to, "half open")
		expect(t, from, "half open")
	})
}

func TestDelay(t *testing.T) {
	bothWays(t, func(t *testing.T, p *Proxy, dir Direction, from, to net.Conn) {
		const delay = 150 * time.Millisecond
		p.Set(dir, Delay(delay))
		began := time.Now()
		send(t, from, "one")
		send(t, from, "two")
		send(t, to, "prompt")
		expect(t, from, "prompt")
		if passed := time.Since(began); passed >= delay {
			t.Errorf("the other direction took %v", passed)
		}
		expect(t, to, "onetwo")
		if passed := time.Since(began); passed < delay {
			t.Errorf("delivered after %v; want %v", passed, delay)
		}
	})
}

func TestHoleDeliversLate(t *testing.T) {
	bothWays(t, func(t *testing.T, p *Proxy, dir Direction, from, to net.Conn) {
		p.Set(dir, Hole)
		send(t, from, "late")
		must(t, from.Close()) // has given up
		expectNothing(t, to)
		p.Heal()
		expect(t, to, "late")
		expectError(t, to, 5*time.Second, io.EOF)
	})
}

func TestDropLoses(t *testing.T) {
	bothWays(t, func(t *testing.T, p *Proxy, dir Direction, from, to net.Conn) {
		arrived := arrivals(p)
		p.Set(dir, Drop)
		send(t, from, "lost")
		<-arrived
		send(t, to, "other direction")
		expect(t, from, "other direction")
		expectNothing(t, to)
		p.Heal()
		send(t, from, "kept")
		expect(t, to, "kept")
	})
}

// arrivals tells of bytes that have arrived at the proxy.
func arrivals(p *Proxy) <-chan string {
	arrived := make(chan string, 100)
	p.OnData(func(_ Direction, data []byte) { arrived <- string(data) })
	return arrived
}

func TestDropLosesWhatAHoleHolds(t *testing.T) {
	bothWays(t, func(t *testing.T, p *Proxy, dir Direction, from, to net.Conn) {
		arrived := arrivals(p)
		p.Set(dir, Hole)
		send(t, from, "held")
		<-arrived
		expectNothing(t, to)
		p.Set(dir, Drop)
		p.Heal()
		send(t, from, "kept")
		expect(t, to, "kept")
	})
}

func TestResetAtNextBytes(t *testing.T) {
	bothWays(t, func(t *testing.T, p *Proxy, dir Direction, from, to net.Conn) {
		p.Set(dir, Reset)
		send(t, to, "other direction")
		expect(t, from, "other direction")
		send(t, from, "trigger")
		expectError(t, to, 5*time.Second, syscall.ECONNRESET)
		expectError(t, from, 5*time.Second, syscall.ECONNRESET)
	})
}

func TestResetAll(t *testing.T) {
	p, client, far := pair(t)
	p.ResetAll()
	expectError(t, client, 5*time.Second, syscall.ECONNRESET)
	expectError(t, far, 5*time.Second, syscall.ECONNRESET)
	if got := p.mode(ToServer); got != Pass {
		t.Errorf("mode after ResetAll is %v; want %v", got, Pass)
	}
}

func TestResetOfOneEndReachesTheOther(t *testing.T) {
	bothWays(t, func(t *testing.T, _ *Proxy, _ Direction, from, to net.Conn) {
		must(t, from.(*net.TCPConn).SetLinger(0))
		must(t, from.Close())
		expectError(t, to, 5*time.Second, syscall.ECONNRESET)
	})
}

func TestCutIsSilentForNewConnections(t *testing.T) {
	s := serve(t)
	p := Start(t, s.Addr().String())
	p.Cut()
	client := dial(t, p.Addr())
	send(t, client, "lost")
	expectNothing(t, client)
	if len(s.conns) > 0 {
		t.Error("a connection has come through the cut")
	}
	p.Heal()
	far := s.accepted(t)
	send(t, client, "kept")
	expect(t, far, "kept")
	send(t, far, "answer")
	expect(t, client, "answer")
}

func TestRefusedConnectionIsReset(t *testing.T) {
	s := serve(t)
	p := Start(t, s.Addr().String())
	must(t, s.Close())
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr())
	if errors.Is(err, syscall.ECONNRESET) {
		return // faster than dialing
	}
	must(t, err)
	defer conn.Close()
	expectError(t, conn, 5*time.Second, syscall.ECONNRESET)
}

func TestOnDataHitsTheExactMessage(t *testing.T) {
	p, client, far := pair(t)
	p.OnData(func(dir Direction, data []byte) {
		if dir == ToServer && bytes.Contains(data, []byte("COMMIT")) {
			p.Set(ToServer, Drop)
		}
	})
	send(t, client, "INSERT")
	expect(t, far, "INSERT")
	send(t, client, "COMMIT")
	expectNothing(t, far)
	p.OnData(nil)
	p.Heal()
	send(t, client, "COMMIT again")
	expect(t, far, "COMMIT again")
}

func TestCloseLeavesNoGoroutine(t *testing.T) {
	s := serve(t)
	before := runtime.NumGoroutine()
	for _, mode := range []Mode{Pass, Hole, Drop, Reset, Delay(time.Hour)} {
		p, err := New(t.Context(), s.Addr().String())
		must(t, err)
		healthy := dial(t, p.Addr())
		far := s.accepted(t)
		p.Set(ToServer, mode)
		p.Set(ToClient, mode)
		send(t, healthy, "x")
		broken := dial(t, p.Addr())
		send(t, broken, "x")
		var closing sync.WaitGroup
		closing.Go(p.Close)
		p.Close()
		closing.Wait()
		for _, conn := range []net.Conn{healthy, far} {
			must(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("mode %v: a connection is open after Close", mode)
			}
		}
		if _, err := net.Dial("tcp", p.Addr()); err == nil {
			t.Errorf("mode %v: the proxy accepts after Close", mode)
		}
	}
	// A goroutine that has told that it is done may still take a moment to end.
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; <-tick.C {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines; want the %d before\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func TestCloseWaitsForTheHook(t *testing.T) {
	p, client, _ := pair(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	p.OnData(func(Direction, []byte) {
		close(entered)
		<-leave
	})
	send(t, client, "x")
	<-entered
	closed := make(chan struct{})
	go func() {
		p.Close()
		close(closed)
	}()
	select {
	case <-closed:
		t.Error("Close has returned while the hook runs")
	case <-time.After(soon):
	}
	close(leave)
	<-closed
}

func TestContextEndsProxy(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	p, err := New(ctx, s.Addr().String())
	must(t, err)
	client := dial(t, p.Addr())
	far := s.accepted(t)
	send(t, client, "x")
	expect(t, far, "x")
	cancel()
	expectError(t, client, 5*time.Second, syscall.ECONNRESET)
	expectError(t, far, 5*time.Second, syscall.ECONNRESET)
	p.Close()
}

func TestTargetNeedsPort(t *testing.T) {
	if _, err := New(t.Context(), "localhost"); err == nil || !strings.Contains(err.Error(), "want host:port") {
		t.Errorf("error is %v", err)
	}
}

func TestModeText(t *testing.T) {
	for text, mode := range map[string]Mode{
		"pass": Pass, "hole": Hole, "drop": Drop, "reset": Reset,
		"delay 20ms": Delay(20 * time.Millisecond), "delay 1m30s": Delay(90 * time.Second),
	} {
		if got := mode.String(); got != text {
			t.Errorf("%#v prints as %q; want %q", mode, got, text)
		}
		if got, err := ParseMode(text); err != nil || got != mode {
			t.Errorf("%q is parsed as %v, %v; want %v", text, got, err, mode)
		}
	}
	for _, text := range []string{"", "Pass", "delay", "delay 0s", "delay -1s", "delay x", "hole "} {
		if got, err := ParseMode(text); err == nil {
			t.Errorf("%q is parsed as %v; want an error", text, got)
		}
	}
	if got := Delay(-1); got != Pass {
		t.Errorf("a negative delay is %v; want %v", got, Pass)
	}
}
