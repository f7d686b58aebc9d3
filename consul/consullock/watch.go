package consullock

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/pitonlock/piton"
)

const (
	// mostWatches leaves room for everything else: an agent serves 200 connections of
	// one address (limits.http_max_conns_per_client), and each watch needs its own.
	mostWatches = 100

	waitTime      = 30 * time.Second // of one blocking query, to which Consul adds up to a sixteenth
	queryTime     = 45 * time.Second // after which an agent counts as gone
	shortestPause = 50 * time.Millisecond
	longestPause  = 2 * time.Second
)

// Watch implements [piton.Waiter] by blocking queries of the lock's key, one after
// the other. It returns when the first answer has told from where on ends are told,
// or with ctx's error. A query that failed is made anew, and gives a hint if the lock
// may have ended meanwhile. While a lock is free, other changes in Consul may give
// hints, too. At most 100 watches run at a time; a further one is an error, and
// waiting for that lock is by polling.
func (c *Coordinator) Watch(ctx context.Context, lock string) (<-chan struct{}, func(), error) {
	if err := piton.ValidateLock(lock); err != nil {
		return nil, nil, err
	}
	w := &watch{kv: c.client.KV(), key: holderKey(lock), hints: make(chan struct{}, 1)}
	if c.watches.Add(1) > mostWatches {
		c.watches.Add(-1)
		return nil, nil, fmt.Errorf("consullock: watch %q: %d watches run already", lock, mostWatches)
	}
	if err := w.ask(ctx); err != nil {
		c.watches.Add(-1)
		return nil, nil, fmt.Errorf("consullock: watch %q: %w", lock, err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer c.watches.Add(-1)
		w.run(running)
	}()
	return w.hints, cancel, nil
}

// watch is what was seen of a lock's key.
type watch struct {
	kv    *api.KV
	key   string
	hints chan struct{}

	index   uint64 // the next answer comes when Consul's is another; 0: at once
	present hold
}

// hold tells one grant of a lock from another; the zero value is a free lock.
type hold struct{ created, taken uint64 }

// ask makes one query and stores what it has found.
func (w *watch) ask(ctx context.Context) error {
	options := &api.QueryOptions{WaitIndex: w.index}
	if w.index > 0 {
		options.WaitTime = waitTime
	}
	pair, meta, err := w.kv.Get(w.key, options.WithContext(ctx))
	if err != nil {
		return err
	}
	w.index = max(meta.LastIndex, 1)
	w.present = hold{}
	if pair != nil && pair.Session != "" {
		w.present = hold{pair.CreateIndex, pair.LockIndex}
	}
	return nil
}

// run watches until it is stopped.
func (w *watch) run(ctx context.Context) {
	pause := shortestPause
	for ctx.Err() == nil {
		before := *w
		query, cancel := context.WithTimeout(ctx, queryTime)
		err := w.ask(query)
		cancel()
		switch {
		case err != nil:
			w.index = 0 // the next answer is not one of waiting
			w.rest(ctx, pause)
			pause = min(2*pause, longestPause)
			continue
		case w.index < before.index: // a restored snapshot
			w.index = 0
			w.tell()
		case w.index == before.index: // its time was over
		case w.present == hold{}, before.present != hold{} && w.present != before.present:
			w.tell()
		}
		pause = shortestPause
		if w.present == (hold{}) {
			// A key that is not there has the index of its neighbours.
			w.rest(ctx, shortestPause)
		}
	}
}

func (w *watch) rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (w *watch) tell() {
	select {
	case w.hints <- struct{}{}:
	default:
	}
}
