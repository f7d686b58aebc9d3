package faultproxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const bufferSize = 32 << 10

// link is one client's connection and the one to the server that belongs to it.
type link struct {
	proxy *Proxy
	pipes [2]*pipe      // by Direction
	done  chan struct{} // closed by close

	mu     sync.Mutex
	closed bool
	conns  []*net.TCPConn
}

func newLink(p *Proxy, client *net.TCPConn) *link {
	l := &link{proxy: p, done: make(chan struct{}), conns: []*net.TCPConn{client}}
	for dir := range l.pipes {
		l.pipes[dir] = &pipe{link: l, dir: Direction(dir), wake: make(chan struct{}, 1)}
	}
	return l
}

// run passes bytes until both directions have ended or the link is closed.
func (l *link) run() {
	defer l.close()
	var running sync.WaitGroup
	defer running.Wait()
	client := l.conns[0]
	running.Go(func() { l.pipes[ToServer].read(client) })
	server := l.dial()
	if server == nil {
		l.reset()
		return
	}
	running.Go(func() { l.pipes[ToServer].write(server) })
	running.Go(func() { l.pipes[ToClient].read(server) })
	l.pipes[ToClient].write(client)
}

// dial connects to the server, as soon as packets would come there. It returns
// nil when the server refuses or the link is closed.
func (l *link) dial() *net.TCPConn {
	for l.proxy.mode(ToServer).blocks() {
		select {
		case <-l.pipes[ToServer].wake:
		case <-l.done:
			return nil
		}
	}
	conn, err := (&net.Dialer{}).DialContext(l.proxy.ctx, "tcp", l.proxy.target)
	if err != nil {
		return nil
	}
	server := conn.(*net.TCPConn)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed { // by a reset; nothing else closes a link that has no server yet
		abort(server)
		return nil
	}
	l.conns = append(l.conns, server)
	return server
}

// reset closes both connections in such a way that their other ends get a reset.
func (l *link) reset() {
	l.mu.Lock()
	for _, conn := range l.conns {
		_ = conn.SetLinger(0) // fails on a connection that has ended already
	}
	l.mu.Unlock()
	l.close()
}

// abort closes a connection in such a way that its other end gets a reset.
func abort(conn *net.TCPConn) {
	_ = conn.SetLinger(0) // fails on a connection that has ended already
	_ = conn.Close()
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	close(l.done)
	for _, conn := range l.conns {
		_ = conn.Close() // whatever it says, it is closed
	}
}

// pipe is one direction of a link. One goroutine reads into the queue, another
// writes what the mode lets out.
type pipe struct {
	link *link
	dir  Direction
	wake chan struct{} // something has changed for the writer

	queue []parcel // under the proxy's lock
}

// parcel is some bytes, or the end of the stream.
type parcel struct {
	data []byte
	due  time.Time // delivered not before
	end  end
}

type end int

const (
	goesOn   end = iota
	finished     // orderly: a FIN
	broken       // by a reset
)

// blocks tells whether nothing gets through.
func (m Mode) blocks() bool { return m.kind == hole || m.kind == drop }

func (p *pipe) read(from *net.TCPConn) {
	buffer := make([]byte, bufferSize)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !p.take(buffer[:n]) {
			return
		}
		if errors.Is(err, io.EOF) {
			p.finish(finished)
			return
		}
		if err != nil {
			p.finish(broken)
			return
		}
	}
}

// take does with arrived bytes what the mode says. It returns false when the
// link is no more.
func (p *pipe) take(data []byte) bool {
	proxy := p.link.proxy
	proxy.arrived(p.dir, data)
	proxy.mu.Lock()
	defer proxy.mu.Unlock()
	switch mode := proxy.modes[p.dir]; mode.kind {
	case drop:
	case reset:
		p.link.reset()
		return false
	default:
		p.put(parcel{data: bytes.Clone(data), due: time.Now().Add(mode.delay)})
	}
	return true
}

// finish queues the end of the stream.
func (p *pipe) finish(end end) {
	p.link.proxy.mu.Lock()
	defer p.link.proxy.mu.Unlock()
	p.put(parcel{end: end})
}

// put needs the proxy's lock.
func (p *pipe) put(last parcel) {
	p.queue = append(p.queue, last)
	p.wakeUp()
}

// forget drops the queued bytes, not the end of the stream. It needs the proxy's
// lock.
func (p *pipe) forget() {
	for i := range p.queue {
		p.queue[i].data = nil
	}
}

func (p *pipe) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// write delivers the queue to one end. When that end has gone, the rest is taken
// and thrown away; the other direction tells the sender.
func (p *pipe) write(to *net.TCPConn) {
	gone := false
	for {
		next, ok := p.next()
		if !ok {
			return
		}
		switch next.end {
		case goesOn:
			if !gone && len(next.data) > 0 {
				_, err := to.Write(next.data)
				gone = err != nil
			}
		case finished:
			_ = to.CloseWrite() // fails when it has gone
			return
		case broken:
			abort(to)
			return
		}
	}
}

// next waits for the next parcel that may be delivered. It returns false when the
// link is closed.
func (p *pipe) next() (parcel, bool) {
	for {
		first, wait := p.look()
		if first != nil {
			return *first, true
		}
		timer := time.NewTimer(wait)
		select {
		case <-p.wake:
		case <-timer.C:
		case <-p.link.done:
			timer.Stop()
			return parcel{}, false
		}
		timer.Stop()
	}
}

// look takes the first parcel if it may be delivered now. Else it tells how long
// to wait for it, unless something changes.
func (p *pipe) look() (first *parcel, wait time.Duration) {
	const forChange = time.Hour
	p.link.proxy.mu.Lock()
	defer p.link.proxy.mu.Unlock()
	if len(p.queue) == 0 || p.link.proxy.modes[p.dir].blocks() {
		return nil, forChange
	}
	if wait = time.Until(p.queue[0].due); wait > 0 {
		return nil, wait
	}
	first = &p.queue[0]
	p.queue = p.queue[1:]
	return first, 0
}
