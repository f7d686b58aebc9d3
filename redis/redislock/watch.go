package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pitonlock/piton"
	"github.com/redis/go-redis/v9"
)

// Watch implements [piton.Waiter]. All watchers of a Coordinator share one
// connection, which is made for the first and closed with the last. Watch returns
// when the server has confirmed the subscription, or with ctx's error, or with
// [piton.ErrClosed] when the Coordinator is closed. After the connection was lost
// and made anew every watcher gets a hint, since releases may have been missed.
func (c *Coordinator) Watch(ctx context.Context, lock string) (<-chan struct{}, func(), error) {
	if err := piton.ValidateLock(lock); err != nil {
		return nil, nil, err
	}
	return c.hints.watch(ctx, key(lock, "end"))
}

// hints shares one subscribing connection among watchers.
type hints struct {
	open func(ctx context.Context) *redis.PubSub
	done chan struct{} // closed by close

	mu       sync.Mutex
	pubsub   *redis.PubSub // nil while nobody watches
	channels map[string]*channel
	closed   bool
	running  sync.WaitGroup

	sending    sync.Mutex      // taken before mu
	told       *redis.PubSub   // guarded by sending, as is
	subscribed map[string]bool // what it was told
}

// channel is one Redis channel with those who watch it.
type channel struct {
	watchers  map[chan struct{}]struct{}
	confirmed chan struct{} // closed when the server has confirmed the subscription
	known     bool          // confirmed is closed
}

func (h *hints) watch(ctx context.Context, name string) (<-chan struct{}, func(), error) {
	hint := make(chan struct{}, 1)
	ch, err := h.join(ctx, name, hint)
	if err != nil {
		return nil, nil, err
	}
	stop := sync.OnceFunc(func() { h.leave(name, hint) })
	select {
	case <-ch.confirmed:
		return hint, stop, nil
	case <-ctx.Done():
		stop()
		return nil, nil, context.Cause(ctx)
	case <-h.done:
		stop()
		return nil, nil, piton.ErrClosed
	}
}

func (h *hints) join(ctx context.Context, name string, hint chan struct{}) (*channel, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, piton.ErrClosed
	}
	if h.pubsub == nil {
		h.pubsub, h.channels = h.open(context.WithoutCancel(ctx)), map[string]*channel{}
		pubsub := h.pubsub
		h.running.Go(func() { h.read(pubsub) })
	}
	ch := h.channels[name]
	if ch == nil {
		ch = &channel{watchers: map[chan struct{}]struct{}{}, confirmed: make(chan struct{})}
		h.channels[name] = ch
		h.settle(name)
	}
	ch.watchers[hint] = struct{}{}
	return ch, nil
}

func (h *hints) leave(name string, hint chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.channels[name]
	if ch == nil {
		return
	}
	delete(ch.watchers, hint)
	if len(ch.watchers) > 0 {
		return
	}
	delete(h.channels, name)
	if len(h.channels) > 0 {
		h.settle(name)
		return
	}
	pubsub := h.pubsub
	h.pubsub = nil
	h.running.Go(func() { _ = pubsub.Close() })
}

// settle tells the server whether a channel is watched, by what is true when its
// turn comes: requests that overtake one another must not end a subscription.
// What fails is sent by go-redis with its next connection. mu is held.
func (h *hints) settle(name string) {
	h.running.Go(func() {
		h.sending.Lock()
		defer h.sending.Unlock()
		h.mu.Lock()
		pubsub, watched := h.pubsub, h.channels[name] != nil
		h.mu.Unlock()
		if pubsub == nil {
			return
		}
		if h.told != pubsub {
			h.told, h.subscribed = pubsub, map[string]bool{}
		}
		switch was := h.subscribed[name]; {
		case watched && was:
			h.confirm(name, false)
		case watched:
			h.subscribed[name] = true
			_ = pubsub.Subscribe(context.Background(), name)
		case was:
			delete(h.subscribed, name)
			_ = pubsub.Unsubscribe(context.Background(), name)
		}
	})
}

func (h *hints) close() error {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		close(h.done)
	}
	pubsub := h.pubsub
	h.pubsub, h.channels = nil, nil
	h.mu.Unlock()
	var err error
	if pubsub != nil {
		err = pubsub.Close()
	}
	h.running.Wait()
	if errors.Is(err, redis.ErrClosed) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("redislock: close: %w", err)
	}
	return err
}

// read passes messages on until its connection is closed for good. go-redis pings
// the server every few seconds, and connects and subscribes anew when it must.
func (h *hints) read(pubsub *redis.PubSub) {
	for message := range pubsub.ChannelWithSubscriptions() {
		switch m := message.(type) {
		case *redis.Subscription:
			if m.Kind == "subscribe" {
				h.confirm(m.Channel, true)
			}
		case *redis.Message:
			h.hint(m.Channel)
		}
	}
}

// confirm notes that the server has subscribed a channel. A repeated
// confirmation comes from a new connection: what was released between them was
// not told.
func (h *hints) confirm(name string, fresh bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.channels[name]
	switch {
	case ch == nil:
	case !ch.known:
		ch.known = true
		close(ch.confirmed)
	case fresh:
		ch.hint()
	}
}

func (h *hints) hint(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ch := h.channels[name]; ch != nil {
		ch.hint()
	}
}

func (ch *channel) hint() {
	for w := range ch.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}
