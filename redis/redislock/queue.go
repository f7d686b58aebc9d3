package redislock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pitonlock/piton"
	"github.com/redis/go-redis/v9"
)

const (
	// An inbox that nobody waits at is kept this long for the next who waits.
	inboxKept = time.Second
	// A server that does not confirm a subscription for so long is given up.
	confirmBound = 5 * time.Second
)

// Turns implements [piton.Queuer]. All who wait on one server through a Coordinator
// share one connection; on a Cluster each lock that is waited for has one of its
// own. It is closed a second after the last has stopped. Turns returns when the
// server has confirmed the subscription, with the server's error if the user may
// not subscribe, with ctx's cause, or with [piton.ErrClosed] when the Coordinator is
// closed. After the connection was lost and made anew everybody is told to look.
func (c *Coordinator) Turns(ctx context.Context, lock, holder string) (<-chan time.Duration, func(), error) {
	if err := piton.ValidateLock(lock); err != nil {
		return nil, nil, err
	}
	channel := "piton:to:" + c.inboxes.id
	if c.scripts == onCluster {
		channel = key(lock, "to:") + c.inboxes.id
	}
	looks, stop, err := c.inboxes.join(ctx, channel, holder)
	if err != nil {
		return nil, nil, fmt.Errorf("redislock: wait for %q: %w", lock, err)
	}
	return looks, stop, nil
}

// inboxes are the channels on which this client is told.
type inboxes struct {
	id        string // 16 characters
	subscribe func(ctx context.Context, channels ...string) *redis.PubSub
	ctx       context.Context // ended by close
	cancel    context.CancelFunc
	running   sync.WaitGroup

	mu   sync.Mutex
	open map[string]*inbox // by channel
}

// inbox is one channel with those who wait at it.
type inbox struct {
	channel string
	ctx     context.Context // ends with the inbox
	cancel  context.CancelFunc
	ready   chan struct{}                 // closed when the server has answered
	err     error                         // that answer
	waiting map[string]chan time.Duration // by holder; guarded by inboxes.mu
}

func newInboxes(subscribe func(ctx context.Context, channels ...string) *redis.PubSub) *inboxes {
	var id [8]byte
	rand.Read(id[:])
	b := &inboxes{id: hex.EncodeToString(id[:]), subscribe: subscribe, open: map[string]*inbox{}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

func (b *inboxes) close() error {
	b.mu.Lock()
	b.cancel() // under the mutex: nothing is opened afterwards
	b.mu.Unlock()
	b.running.Wait()
	return nil
}

func (b *inboxes) join(ctx context.Context, channel, holder string) (<-chan time.Duration, func(), error) {
	b.mu.Lock()
	if b.ctx.Err() != nil {
		b.mu.Unlock()
		return nil, nil, piton.ErrClosed
	}
	in := b.open[channel]
	if in == nil {
		in = &inbox{channel: channel, ready: make(chan struct{}), waiting: map[string]chan time.Duration{}}
		in.ctx, in.cancel = context.WithCancel(b.ctx)
		b.open[channel] = in
		b.running.Go(func() { b.serve(in) })
	}
	looks := make(chan time.Duration, 1)
	in.waiting[holder] = looks
	b.mu.Unlock()
	stop := sync.OnceFunc(func() { b.leave(in, holder, looks) })
	var err error
	select {
	case <-in.ready:
		err = in.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-b.ctx.Done():
		err = piton.ErrClosed
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	return looks, stop, nil
}

func (b *inboxes) leave(in *inbox, holder string, looks chan time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if in.waiting[holder] == looks {
		delete(in.waiting, holder)
	}
	if len(in.waiting) > 0 {
		return
	}
	time.AfterFunc(inboxKept, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(in.waiting) == 0 {
			b.end(in)
		}
	})
}

// end makes the next who waits open another inbox. mu is held.
func (b *inboxes) end(in *inbox) {
	in.cancel()
	if b.open[in.channel] == in {
		delete(b.open, in.channel)
	}
}

// serve runs an inbox until it is cancelled or cannot be opened.
func (b *inboxes) serve(in *inbox) {
	pubsub := b.subscribe(in.ctx, in.channel)
	defer context.AfterFunc(in.ctx, func() { _ = pubsub.Close() })()
	defer pubsub.Close()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.end(in)
	}()
	if _, err := pubsub.ReceiveTimeout(in.ctx, confirmBound); err != nil {
		in.err = err
		close(in.ready)
		return
	}
	close(in.ready)
	// go-redis pings the server every few seconds, and connects and subscribes anew
	// when it must.
	for message := range pubsub.ChannelWithSubscriptions() {
		switch m := message.(type) {
		case *redis.Subscription: // anew; what was told between them is lost
			b.lookAll(in)
		case *redis.Message:
			b.deliver(in, m.Payload)
		}
	}
}

func (b *inboxes) lookAll(in *inbox) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, looks := range in.waiting {
		look(looks, 0)
	}
}

// deliver reads "milliseconds holder".
func (b *inboxes) deliver(in *inbox, payload string) {
	after, holder, _ := strings.Cut(payload, " ")
	ms, err := strconv.ParseInt(after, 10, 64)
	if err != nil {
		return // not of a script of ours
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if looks := in.waiting[holder]; looks != nil {
		look(looks, time.Duration(ms)*time.Millisecond)
	}
}

// look keeps the least of what the holder has not read yet. Callers take turns.
func look(looks chan time.Duration, after time.Duration) {
	select {
	case earlier := <-looks:
		after = min(after, earlier)
	default:
	}
	looks <- after
}
