//go:build linux

package lab

import (
	"context"
	"crypto/rand"
	"sync"
	"time"
)

// usual is a lock as most code has it, on some server.
type usual interface {
	// take is SET NX PX.
	take(ctx context.Context, owner string, ttl time.Duration) (bool, error)
	// count is INCR.
	count(ctx context.Context) (int64, error)
	renew(ctx context.Context, owner string, ttl time.Duration) (bool, error)
	release(ctx context.Context, owner string) error
}

// usualLease holds a usual lock, renews it in the background and knows from its
// own memory until when it should be its own.
type usualLease struct {
	lock  usual
	owner string
	ttl   time.Duration

	mu    sync.Mutex
	until time.Time

	stop context.CancelFunc
	done chan struct{}
}

// acquireUsual waits for the lock by asking again and again.
func acquireUsual(ctx context.Context, lock usual, ttl time.Duration) (*usualLease, error) {
	l := &usualLease{lock: lock, owner: rand.Text(), ttl: ttl, done: make(chan struct{})}
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		sent := time.Now()
		ok, err := lock.take(ctx, l.owner, ttl)
		if err != nil {
			return nil, err
		}
		if ok {
			l.until = sent.Add(ttl)
			beat, stop := context.WithCancel(context.WithoutCancel(ctx))
			l.stop = stop
			go l.heartbeat(beat)
			return l, nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (l *usualLease) heartbeat(ctx context.Context) {
	defer close(l.done)
	tick := time.NewTicker(l.ttl / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		sent := time.Now()
		ok, err := l.lock.renew(ctx, l.owner, l.ttl)
		if err != nil {
			continue // the next beat may succeed; until tells if none does
		}
		l.mu.Lock()
		l.until = sent.Add(l.ttl)
		if !ok {
			l.until = sent
		}
		l.mu.Unlock()
		if !ok {
			return
		}
	}
}

// held is the check in memory that stands before the write in most code.
func (l *usualLease) held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.until)
}

func (l *usualLease) release(ctx context.Context) error {
	l.stop()
	<-l.done
	return l.lock.release(ctx, l.owner)
}
