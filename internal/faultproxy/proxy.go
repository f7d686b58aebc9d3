// Package faultproxy is a TCP proxy on the loopback interface that breaks the
// connection between a client and a server the way networks do, each direction
// by itself, without privileges.
//
//	proxy := faultproxy.Start(t, server.Addr())
//	client := dial(proxy.Addr())
//	proxy.Set(faultproxy.ToClient, faultproxy.Drop) // carried out, but the answer is lost
//
// [Proxy.OnData] sets a fault at an exact message:
//
//	proxy.OnData(func(dir faultproxy.Direction, data []byte) {
//		if dir == faultproxy.ToServer && bytes.Contains(data, []byte("COMMIT")) {
//			proxy.Set(faultproxy.ToClient, faultproxy.Reset)
//		}
//	})
//
// What the modes do:
//
//	pass      bytes are delivered as they come
//	delay D   bytes are delivered D later, in order
//	hole      bytes are held back and delivered late, when the mode changes
//	drop      bytes vanish
//	reset     bytes vanish, and with them the connection at both ends
//
// While ToServer is hole or drop, the ends of connections are held back too, and
// new connections are accepted but reach the server only after the mode has
// changed, so clients meet silence and no refusal. A server that refuses a
// connection resets the client's.
package faultproxy

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// Proxy passes connections to a target until it is told otherwise. All methods
// may be called from several goroutines.
type Proxy struct {
	target   string
	listener net.Listener
	ctx      context.Context // of dialing; ends with the proxy
	cancel   context.CancelFunc
	forget   func() bool // stops waiting for the end of the caller's context
	running  sync.WaitGroup

	mu     sync.Mutex // of the queues of the links too
	closed bool
	modes  [2]Mode // by Direction
	links  map[*link]struct{}

	hookMu sync.Mutex // its holder may take mu, not the other way round
	hook   func(Direction, []byte)
}

// New starts a proxy to the target, a host:port, in mode [Pass]. It runs until
// [Proxy.Close] or the end of the context.
func New(ctx context.Context, target string) (*Proxy, error) {
	if _, _, err := net.SplitHostPort(target); err != nil {
		return nil, fmt.Errorf("proxy target %q: %w; want host:port", target, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", target, err)
	}
	p := &Proxy{target: target, listener: listener, links: map[*link]struct{}{}}
	p.ctx, p.cancel = context.WithCancel(ctx)
	p.running.Go(p.accept)
	p.forget = context.AfterFunc(ctx, p.shut)
	return p, nil
}

// TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Context() context.Context
	Cleanup(f func())
	Fatalf(format string, args ...any)
}

// Start starts a proxy to the target that is closed when the test ends.
func Start(tb TB, target string) *Proxy {
	tb.Helper()
	// The test's context would end before its other cleanups have used the proxy.
	p, err := New(context.WithoutCancel(tb.Context()), target)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(p.Close)
	return p
}

// Addr is the proxy's host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Set sets the mode of one direction for all present and future connections. It
// concerns bytes that arrive at the proxy from now on; those on the way in mode
// delay come as planned, unless the new mode is [Hole] or [Drop].
func (p *Proxy) Set(dir Direction, mode Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.modes[dir] = mode
	for l := range p.links {
		if mode.kind == drop {
			l.pipes[dir].forget()
		}
		l.pipes[dir].wakeUp()
	}
}

// Cut drops everything in both directions.
func (p *Proxy) Cut() {
	p.Set(ToServer, Drop)
	p.Set(ToClient, Drop)
}

// Heal sets both directions to [Pass]. What a hole has held back is delivered now.
func (p *Proxy) Heal() {
	p.Set(ToServer, Pass)
	p.Set(ToClient, Pass)
}

// ResetAll resets all present connections at both ends, and with them what was
// delayed or held back. The modes stay.
func (p *Proxy) ResetAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.reset()
	}
}

// OnData sets a function that is called with all bytes as they arrive, before
// the mode of their direction is looked at, so that it may still set the fault
// that these bytes meet. Its calls come one at a time; data is what one read of
// the connection returned, which may be several messages or part of one, and is
// valid during the call only. The function must call neither OnData nor Close.
// A nil function ends the calls.
func (p *Proxy) OnData(f func(dir Direction, data []byte)) {
	p.hookMu.Lock()
	defer p.hookMu.Unlock()
	p.hook = f
}

// Close resets all connections and returns when nothing of the proxy runs any more.
func (p *Proxy) Close() {
	p.forget()
	p.shut()
	p.running.Wait()
}

// shut closes all sockets, which ends all goroutines.
func (p *Proxy) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	p.cancel()
	_ = p.listener.Close() // there is nothing else to do about it
	for l := range p.links {
		l.reset()
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		l := newLink(p, client.(*net.TCPConn))
		if !p.add(l) {
			l.reset()
			return
		}
	}
}

// add registers and starts a connection, unless the proxy is closed.
func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.links[l] = struct{}{}
	p.running.Go(func() {
		l.run()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	})
	return true
}

func (p *Proxy) mode(dir Direction) Mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.modes[dir]
}

func (p *Proxy) arrived(dir Direction, data []byte) {
	p.hookMu.Lock()
	defer p.hookMu.Unlock()
	if p.hook != nil {
		p.hook(dir, data)
	}
}
