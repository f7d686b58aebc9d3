package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pitonlock/piton"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	shortestPause = 50 * time.Millisecond // before a watch that was lost is made anew
	longestPause  = 2 * time.Second
)

// Watch implements [piton.Waiter] by a watch of the lock's key, for its deletion.
// It returns when etcd has confirmed the watch, or with ctx's error. A watch that
// was lost, as by a member that is cut off from its leader, is made anew, and gives
// a hint, since ends may have been missed. It ends by stop or with the client.
func (c *Coordinator) Watch(ctx context.Context, lock string) (<-chan struct{}, func(), error) {
	if err := piton.ValidateLock(lock); err != nil {
		return nil, nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := &watch{client: c.client, key: lockKey(lock), hints: make(chan struct{}, 1), ready: make(chan struct{}), ended: make(chan struct{})}
	go w.run(running)
	select {
	case <-w.ready:
		return w.hints, cancel, nil
	case <-w.ended:
		cancel()
		return nil, nil, fmt.Errorf("etcdlock: watch %q: %w", lock, errors.New("the client was closed"))
	case <-ctx.Done():
		cancel()
		return nil, nil, fmt.Errorf("etcdlock: watch %q: %w", lock, context.Cause(ctx))
	}
}

type watch struct {
	client *clientv3.Client
	key    string
	hints  chan struct{}
	ready  chan struct{} // closed when etcd has confirmed the first time
	told   bool          // ready is closed
	ended  chan struct{} // closed when the client was closed, or the watch stopped
}

// run watches until it is stopped, one time after the other.
func (w *watch) run(ctx context.Context) {
	defer close(w.ended)
	pause := shortestPause
	for {
		if w.receive(ctx) {
			pause = shortestPause
		}
		select {
		case <-time.After(pause): // a cluster without a leader; waiters look by their own timers
			pause = min(2*pause, longestPause)
		case <-ctx.Done():
			return
		case <-w.client.Ctx().Done():
			return
		}
	}
}

// receive passes deletions on for as long as one watch lasts, and reports whether
// it was ever confirmed.
func (w *watch) receive(ctx context.Context) (confirmed bool) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for answer := range w.client.Watch(ctx, w.key, clientv3.WithFilterPut(), clientv3.WithCreatedNotify()) {
		switch {
		case answer.Err() != nil:
			return confirmed
		case answer.Created && !w.told:
			w.told = true
			close(w.ready)
		default: // an end, or the confirmation of a new watch, before which ends were not told
			tell(w.hints)
		}
		confirmed = true
	}
	return confirmed
}

func tell(hints chan<- struct{}) {
	select {
	case hints <- struct{}{}:
	default:
	}
}
