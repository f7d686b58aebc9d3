// Package pgxlock is the coordinator of piton in PostgreSQL on a pgx pool: that of
// package sqllock, whose tables and promises it shares, with waiting by push
// (LISTEN and NOTIFY) instead of polling.
//
// While anybody waits, one connection listens. It is made for this alone and is
// not of the pool: a transaction pooler between would lose the subscription, so
// [WithListener] takes the address of the server itself where there is one. Without
// a listening connection waiting falls back to polling.
package pgxlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/sqllock"
)

var (
	_ piton.Coordinator  = (*Coordinator)(nil)
	_ piton.Waiter       = (*Coordinator)(nil)
	_ piton.BatchRenewer = (*Coordinator)(nil)
	_ piton.Inspector    = (*Coordinator)(nil)
	_ piton.Breaker      = (*Coordinator)(nil)
)

const (
	dialTimeout = 5 * time.Second
	checkEvery  = 10 * time.Second // of a listening connection that is silent
)

// Coordinator grants leases in one PostgreSQL database. It is safe for concurrent
// use. [New] makes one. Its other methods are those of [sqllock.Coordinator].
type Coordinator struct {
	*sqllock.Coordinator
	db     *sql.DB
	listen *pgx.ConnConfig

	mu       sync.Mutex
	watchers map[string]map[chan struct{}]struct{} // by lock
	closed   bool
	session  *session // nil while nobody waits
	running  sync.WaitGroup
}

// session is one time of listening, from the first watcher to the last.
type session struct {
	ctx    context.Context // ends when the last watcher has left, or by Close
	cancel context.CancelFunc
	ready  chan struct{} // closed when the server has confirmed the first LISTEN
	once   sync.Once
}

// Option configures a [Coordinator].
type Option func(*Coordinator)

// WithListener sets how the connection that listens is made. The default is the
// configuration of the pool.
func WithListener(config *pgx.ConnConfig) Option {
	return func(c *Coordinator) { c.listen = config }
}

// New returns a coordinator on pool. It sends nothing. The pool stays the
// caller's, who closes it after the Coordinator.
func New(pool *pgxpool.Pool, opts ...Option) (*Coordinator, error) {
	if pool == nil {
		return nil, errors.New("pgxlock: New was given a nil pool")
	}
	db := stdlib.OpenDBFromPool(pool)
	locks, err := sqllock.New(db, sqllock.Postgres)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	c := &Coordinator{Coordinator: locks, db: db, listen: pool.Config().ConnConfig, watchers: map[string]map[chan struct{}]struct{}{}}
	for _, o := range opts {
		o(c)
	}
	if c.listen == nil {
		return nil, errors.Join(errors.New("pgxlock: WithListener was given a nil configuration"), db.Close())
	}
	return c, nil
}

// Close ends the listening. Leases are left as they are and end with their TTL. It
// may be called twice.
func (c *Coordinator) Close() error {
	c.mu.Lock()
	c.closed = true
	if c.session != nil {
		c.session.cancel()
	}
	c.mu.Unlock()
	c.running.Wait()
	return c.db.Close()
}

// Watch implements [piton.Waiter]. It returns when the server has confirmed the
// subscription, or with ctx's error, or with [piton.ErrClosed]. After the connection was lost and
// made anew every watcher gets a hint, since releases may have been missed.
func (c *Coordinator) Watch(ctx context.Context, lock string) (<-chan struct{}, func(), error) {
	if err := piton.ValidateLock(lock); err != nil {
		return nil, nil, err
	}
	hint := make(chan struct{}, 1)
	s, err := c.join(lock, hint)
	if err != nil {
		return nil, nil, err
	}
	stop := sync.OnceFunc(func() { c.leave(lock, hint) })
	select {
	case <-s.ready:
		return hint, stop, nil
	case <-s.ctx.Done():
		return nil, nil, piton.ErrClosed
	case <-ctx.Done():
		stop()
		return nil, nil, fmt.Errorf("pgxlock: watch %q: %w", lock, context.Cause(ctx))
	}
}

func (c *Coordinator) join(lock string, hint chan struct{}) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, piton.ErrClosed
	}
	if c.watchers[lock] == nil {
		c.watchers[lock] = map[chan struct{}]struct{}{}
	}
	c.watchers[lock][hint] = struct{}{}
	if c.session == nil {
		s := &session{ready: make(chan struct{})}
		s.ctx, s.cancel = context.WithCancel(context.Background())
		c.session = s
		c.running.Go(func() { c.run(s) })
	}
	return c.session, nil
}

func (c *Coordinator) leave(lock string, hint chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.watchers[lock], hint)
	if len(c.watchers[lock]) == 0 {
		delete(c.watchers, lock)
	}
	if len(c.watchers) == 0 && c.session != nil {
		c.session.cancel()
		c.session = nil
	}
}

// run listens until the session ends, on one connection after the other.
func (c *Coordinator) run(s *session) {
	pause := 50 * time.Millisecond
	for s.ctx.Err() == nil {
		if c.receive(s.ctx, s) {
			pause = 50 * time.Millisecond
		}
		select {
		case <-time.After(pause): // a server that is down; waiters poll by their own timers
			pause = min(2*pause, 2*time.Second)
		case <-s.ctx.Done():
		}
	}
}

// receive passes notifications on for as long as one connection lasts, and
// reports whether it ever listened.
func (c *Coordinator) receive(ctx context.Context, s *session) (listened bool) {
	dial, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(dial, c.listen)
	if err != nil {
		return false
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(closing) // it may be broken
	}()
	if _, err := conn.Exec(dial, "LISTEN "+sqllock.Channel); err != nil {
		return false
	}
	s.once.Do(func() { close(s.ready) })
	c.hintAll()
	for {
		wait, cancel := context.WithTimeout(ctx, checkEvery)
		n, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case err == nil:
			c.hint(n.Payload)
		case ctx.Err() != nil:
			return true
		case errors.Is(err, context.DeadlineExceeded):
			// Silence: is there still somebody at the other end?
			check, cancel := context.WithTimeout(ctx, dialTimeout)
			err := conn.Ping(check)
			cancel()
			if err != nil {
				return true
			}
		default:
			return true
		}
	}
}

func (c *Coordinator) hint(lock string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.watchers[lock] {
		tell(w)
	}
}

// hintAll makes everybody look, since what was released while nobody listened was
// not told.
func (c *Coordinator) hintAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, watchers := range c.watchers {
		for w := range watchers {
			tell(w)
		}
	}
}

func tell(w chan struct{}) {
	select {
	case w <- struct{}{}:
	default:
	}
}
