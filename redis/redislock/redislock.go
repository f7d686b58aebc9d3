package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pitonlock/piton"
	"github.com/redis/go-redis/v9"
)

var (
	_ piton.Coordinator  = (*Coordinator)(nil)
	_ piton.Queuer       = (*Coordinator)(nil)
	_ piton.BatchRenewer = (*Coordinator)(nil)
	_ piton.Inspector    = (*Coordinator)(nil)
	_ piton.Breaker      = (*Coordinator)(nil)
)

const (
	// Idle is how long the counter of a lock outlives its last grant or renewal.
	Idle = time.Hour

	// Claim is how long the next in a lock's queue has to ask for the grant that it
	// was told of. It bounds what a frozen waiter costs those behind it.
	Claim = time.Second

	// linger is how long a queue outlives the lease that it waits for, if nobody looks.
	linger = 10 * time.Second
)

// Coordinator grants leases on one Redis, or one Redis Cluster. It implements
// [piton.Coordinator], [piton.Queuer], [piton.BatchRenewer], [piton.Inspector] and
// [piton.Breaker], and is safe for concurrent use. [New] makes one.
type Coordinator struct {
	client  redis.UniversalClient
	scripts *scripts
	inboxes *inboxes
}

// New returns a coordinator on c: a client of a single server, of a primary that
// Sentinel watches (redis.NewFailoverClient), or of a Cluster. It sends nothing. The
// client stays the caller's, who closes it after the Coordinator. A *redis.Ring is
// refused: which server has a lock depends there on what the client thinks is alive.
func New(c redis.UniversalClient) (*Coordinator, error) {
	if c == nil {
		return nil, errors.New("redislock: New was given a nil client")
	}
	co := &Coordinator{client: c, scripts: onServer}
	subscribe := c.Subscribe
	switch c.(type) {
	case *redis.Ring:
		return nil, errors.New("redislock: New was given a *redis.Ring, whose clients may disagree about which server has a lock; use a Cluster or a single server")
	case *redis.ClusterClient:
		co.scripts, subscribe = onCluster, c.SSubscribe
	}
	co.inboxes = newInboxes(subscribe)
	return co, nil
}

// Close ends the subscriptions. Leases are left as they are and end with their
// TTL. It may be called twice.
func (c *Coordinator) Close() error { return c.inboxes.close() }

var escaper = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

func key(lock, part string) string { return "piton:{" + escaper.Replace(lock) + "}:" + part }

func keys(lock string) []string {
	return []string{key(lock, "lock"), key(lock, "token"), key(lock, "queue")}
}

// lockOf is the reverse of key(lock, "lock").
func lockOf(key string) (string, bool) {
	name, ok := strings.CutPrefix(key, "piton:{")
	if !ok {
		return "", false
	}
	if name, ok = strings.CutSuffix(name, "}:lock"); !ok {
		return "", false
	}
	return strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}").Replace(name), true
}

// milliseconds is a TTL as Redis keeps it.
func milliseconds(ttl time.Duration) int64 { return ttl.Milliseconds() }

func granted(f piton.Fence, ttl time.Duration) piton.Grant {
	return piton.Grant{Fence: f, TTL: ttl.Truncate(time.Millisecond)}
}

// run runs one step.
func (c *Coordinator) run(ctx context.Context, s script, lock string, args ...any) ([]any, error) {
	reply, err := c.call(ctx, "evalsha", s.hash, lock, args)
	if redis.HasErrorPrefix(err, "NOSCRIPT") { // the server has lost it, and has done nothing
		reply, err = c.call(ctx, "eval", s.source, lock, args)
	}
	c.refresh(err)
	return reply, err
}

// once is a command that go-redis does not send again by itself when its answer is
// lost: only who knows that it may have been carried out can judge the second answer.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

func (c *Coordinator) call(ctx context.Context, command, script, lock string, args []any) ([]any, error) {
	all := []any{command, script, 3}
	for _, key := range keys(lock) {
		all = append(all, key)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	cmd.SetFirstKeyPos(3)
	_ = c.client.Process(ctx, once{cmd}) // the command has the error, too
	return cmd.Slice()
}

// refresh makes a Cluster's client ask who has which slot after a node did not answer:
// by itself it does so only once a minute, and a failover is over sooner.
func (c *Coordinator) refresh(err error) {
	var refusal redis.Error
	if cluster, ok := c.client.(*redis.ClusterClient); ok && err != nil && !errors.As(err, &refusal) {
		cluster.ReloadState(context.Background())
	}
}

// Acquire implements [piton.Coordinator]. When the lock is free and others wait for
// it, it goes to the first of them.
func (c *Coordinator) Acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	return c.acquire(ctx, r, "")
}

// Queue implements [piton.Queuer]. The claim time is [Claim].
func (c *Coordinator) Queue(ctx context.Context, r piton.Request) (piton.Grant, error) {
	return c.acquire(ctx, r, c.inboxes.id)
}

// acquire makes one attempt; with an inbox it leaves a place in the queue.
func (c *Coordinator) acquire(ctx context.Context, r piton.Request, inbox string) (piton.Grant, error) {
	if err := piton.ValidateLock(r.Lock); err != nil {
		return piton.Grant{}, err
	}
	switch {
	case r.Holder == "":
		return piton.Grant{}, errors.New("redislock: the holder is empty; want the random id of the acquisition")
	case r.TTL < time.Millisecond:
		return piton.Grant{}, fmt.Errorf("redislock: TTL %v is too short; want at least 1ms", r.TTL)
	case r.Floor >= piton.MaxToken:
		return piton.Grant{}, fmt.Errorf("redislock: no token above the floor %d is left; want a floor below %d", r.Floor, piton.MaxToken)
	}
	reply, err := c.run(ctx, c.scripts.acquire, r.Lock, r.Holder, r.Owner, milliseconds(r.TTL), int64(r.Floor), inbox)
	if err != nil {
		return piton.Grant{}, fmt.Errorf("redislock: acquire %q: %w", r.Lock, err)
	}
	a, err := parse(reply)
	switch {
	case err != nil:
		return piton.Grant{}, fmt.Errorf("redislock: acquire %q: %w", r.Lock, err)
	case !a.done:
		return piton.Grant{}, a.held(r.Lock)
	}
	return granted(piton.Fence{Lock: r.Lock, Token: a.token, Holder: r.Holder}, r.TTL), nil
}

// Renew implements [piton.Coordinator].
func (c *Coordinator) Renew(ctx context.Context, g piton.Grant) (piton.Grant, error) {
	if err := checkGrant(g); err != nil {
		return piton.Grant{}, err
	}
	reply, err := c.run(ctx, c.scripts.renew, g.Lock, renewal(g)...)
	return renewed(g, reply, err)
}

func renewal(g piton.Grant) []any { return []any{g.Holder, int64(g.Token), milliseconds(g.TTL)} }

func renewed(g piton.Grant, reply []any, err error) (piton.Grant, error) {
	if err != nil {
		return piton.Grant{}, fmt.Errorf("redislock: renew %q: %w", g.Lock, err)
	}
	a, err := parse(reply)
	switch {
	case err != nil:
		return piton.Grant{}, fmt.Errorf("redislock: renew %q: %w", g.Lock, err)
	case !a.done:
		return piton.Grant{}, a.lost(g)
	}
	return granted(g.Fence, g.TTL), nil
}

// Release implements [piton.Coordinator]. It grants the lock to the first waiter
// that is there, in the same step.
func (c *Coordinator) Release(ctx context.Context, g piton.Grant) error {
	if err := piton.ValidateLock(g.Lock); err != nil {
		return err
	}
	reply, err := c.run(ctx, c.scripts.release, g.Lock, g.Holder, int64(g.Token), c.inboxes.id)
	if err != nil {
		return fmt.Errorf("redislock: release %q: %w", g.Lock, err)
	}
	a, err := parse(reply)
	switch {
	case err != nil:
		return fmt.Errorf("redislock: release %q: %w", g.Lock, err)
	case a.done || a.free:
		return nil
	}
	return a.lost(g)
}

// Break implements [piton.Breaker]. The first waiter gets the lock, as by a release.
func (c *Coordinator) Break(ctx context.Context, lock string, token piton.Token) (bool, error) {
	if err := piton.ValidateLock(lock); err != nil {
		return false, err
	}
	reply, err := c.run(ctx, c.scripts.breaks, lock, int64(token))
	if err != nil {
		return false, fmt.Errorf("redislock: break %q: %w", lock, err)
	}
	a, err := parse(reply)
	switch {
	case err != nil:
		return false, fmt.Errorf("redislock: break %q: %w", lock, err)
	case a.done || a.free:
		return a.done, nil
	}
	return false, a.held(lock)
}

// answer is what a script says.
type answer struct {
	done  bool        // granted, renewed, released, broken
	free  bool        // nobody has the lock
	token piton.Token // of the grant, or of who has the lock
	owner string      // in answers to acquire and break
	left  time.Duration
	own   bool // in answers to renew and release: the holder is right, the token is not
}

func parse(reply []any) (answer, error) {
	var a answer
	bad := fmt.Errorf("the server's answer is %v; is the script's key used by something else?", reply)
	if len(reply) == 0 {
		return a, bad
	}
	done, ok := reply[0].(int64)
	if !ok {
		return a, bad
	}
	a.done = done == 1
	if len(reply) == 1 {
		a.free = !a.done
		return a, nil
	}
	text, ok := reply[1].(string)
	token, err := strconv.ParseInt(text, 10, 64)
	if !ok || err != nil {
		return a, bad
	}
	a.token = piton.Token(token)
	switch len(reply) {
	case 3:
		own, _ := reply[2].(int64)
		a.own = own == 1
	case 4:
		a.owner, _ = reply[2].(string)
		ms, _ := reply[3].(int64)
		a.left = time.Duration(max(ms, 0)) * time.Millisecond
	}
	return a, nil
}

func (a answer) held(lock string) error {
	return &piton.HeldError{Lock: lock, Owner: a.owner, Token: a.token, Remaining: a.left}
}

func (a answer) lost(g piton.Grant) error {
	e := &piton.LostError{Lock: g.Lock, Token: g.Token, Holder: g.Holder, Reason: piton.ReasonTaken, By: a.token}
	switch {
	case a.free:
		e.Reason = piton.ReasonExpired
	case a.own:
		e.Reason = piton.ReasonReplaced
	}
	return e
}

func checkGrant(g piton.Grant) error {
	if err := piton.ValidateLock(g.Lock); err != nil {
		return err
	}
	if g.TTL < time.Millisecond {
		return fmt.Errorf("redislock: TTL %v is too short; want at least 1ms", g.TTL)
	}
	return nil
}
