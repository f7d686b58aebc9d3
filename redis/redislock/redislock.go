package redislock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitonlock/piton"
	"github.com/redis/go-redis/v9"
)

var (
	_ piton.Coordinator  = (*Coordinator)(nil)
	_ piton.Waiter       = (*Coordinator)(nil)
	_ piton.BatchRenewer = (*Coordinator)(nil)
	_ piton.Inspector    = (*Coordinator)(nil)
	_ piton.Breaker      = (*Coordinator)(nil)
)

// Idle is how long the counter of a lock outlives its last grant or renewal.
const Idle = time.Hour

var (
	//go:embed acquire.lua
	acquireSource string
	//go:embed renew.lua
	renewSource string
	//go:embed release.lua
	releaseSource string
	//go:embed break.lua
	breakSource string

	acquireScript = redis.NewScript(acquireSource)
	renewScript   = redis.NewScript(renewSource)
	releaseScript = redis.NewScript(releaseSource)
	breakScript   = redis.NewScript(breakSource)
)

// Coordinator grants leases on one Redis. It implements [piton.Coordinator],
// [piton.Waiter], [piton.BatchRenewer], [piton.Inspector] and [piton.Breaker], and
// is safe for concurrent use. [New] makes one.
type Coordinator struct {
	client redis.UniversalClient
	hints  hints
}

// New returns a coordinator on c. It sends nothing. The client stays the
// caller's, who closes it after the Coordinator.
func New(c redis.UniversalClient) (*Coordinator, error) {
	if c == nil {
		return nil, errors.New("redislock: New was given a nil client")
	}
	co := &Coordinator{client: c}
	co.hints.done = make(chan struct{})
	co.hints.open = func(ctx context.Context) *redis.PubSub { return c.Subscribe(ctx) }
	return co, nil
}

// Close ends the subscriptions. Leases are left as they are and end with their
// TTL. It may be called twice.
func (c *Coordinator) Close() error { return c.hints.close() }

var escaper = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

func key(lock, part string) string { return "piton:{" + escaper.Replace(lock) + "}:" + part }

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

// Acquire implements [piton.Coordinator].
func (c *Coordinator) Acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
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
	keys := []string{key(r.Lock, "lock"), key(r.Lock, "token")}
	reply, err := acquireScript.Run(ctx, c.client, keys, r.Holder, r.Owner, milliseconds(r.TTL),
		int64(r.Floor), int64(piton.MaxToken), Idle.Milliseconds()).Slice()
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
	keys, args := renewal(g)
	reply, err := renewScript.Run(ctx, c.client, keys, args...).Slice()
	return renewed(g, reply, err)
}

func renewal(g piton.Grant) (keys []string, args []any) {
	return []string{key(g.Lock, "lock"), key(g.Lock, "token")}, []any{g.Holder, int64(g.Token), milliseconds(g.TTL), Idle.Milliseconds()}
}

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

// Release implements [piton.Coordinator].
func (c *Coordinator) Release(ctx context.Context, g piton.Grant) error {
	if err := piton.ValidateLock(g.Lock); err != nil {
		return err
	}
	reply, err := releaseScript.Run(ctx, c.client, []string{key(g.Lock, "lock")}, g.Holder, int64(g.Token), key(g.Lock, "end")).Slice()
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

// Break implements [piton.Breaker].
func (c *Coordinator) Break(ctx context.Context, lock string, token piton.Token) (bool, error) {
	if err := piton.ValidateLock(lock); err != nil {
		return false, err
	}
	reply, err := breakScript.Run(ctx, c.client, []string{key(lock, "lock")}, int64(token), key(lock, "end")).Slice()
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

// Check looks for settings of the server under which it forgets locks, and
// returns one sentence for each. It needs no privileges beyond INFO.
func (c *Coordinator) Check(ctx context.Context) (warnings []string, err error) {
	info, err := c.client.Info(ctx, "memory").Result()
	if err != nil {
		return nil, fmt.Errorf("redislock: check: %w", err)
	}
	for line := range strings.Lines(info) {
		policy, ok := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:")
		if ok && policy != "noeviction" {
			warnings = append(warnings, fmt.Sprintf("maxmemory-policy is %s, under which a full server may evict a lock that is held; set noeviction", policy))
		}
	}
	slices.Sort(warnings)
	return warnings, nil
}
