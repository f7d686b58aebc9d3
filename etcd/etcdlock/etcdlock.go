package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pitonlock/piton"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var (
	_ piton.Coordinator  = (*Coordinator)(nil)
	_ piton.Waiter       = (*Coordinator)(nil)
	_ piton.BatchRenewer = (*Coordinator)(nil)
	_ piton.Inspector    = (*Coordinator)(nil)
	_ piton.Breaker      = (*Coordinator)(nil)
)

// Coordinator grants leases in one etcd. It implements [piton.Coordinator],
// [piton.Waiter], [piton.BatchRenewer], [piton.Inspector] and [piton.Breaker], and
// is safe for concurrent use. [New] makes one; there is nothing to close.
type Coordinator struct {
	client *clientv3.Client
	leases pb.LeaseClient // what the client has no methods for: ids of one's own, one request without repetition
}

// New returns a coordinator on c. It sends nothing. The client stays the
// caller's, who closes it after the last lease has ended.
func New(c *clientv3.Client) (*Coordinator, error) {
	if c == nil {
		return nil, errors.New("etcdlock: New was given a nil client")
	}
	if c.ActiveConnection() == nil {
		return nil, errors.New("etcdlock: New was given a client without a connection; want one of clientv3.New")
	}
	return &Coordinator{client: c, leases: clientv3.RetryLeaseClient(c)}, nil
}

// Acquire implements [piton.Coordinator]. The TTL is rounded up to whole seconds,
// and etcd may raise it (to one and a half times its election timeout); the grant
// has what etcd answered. TTLs of zero and less, an empty holder and a floor of
// [piton.MaxToken] or more are errors.
func (c *Coordinator) Acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	if err := checkRequest(r); err != nil {
		return piton.Grant{}, err
	}
	g, err := c.acquire(ctx, r)
	if err != nil && !errors.Is(err, piton.ErrHeld) {
		return piton.Grant{}, fmt.Errorf("etcdlock: acquire %q: %w", r.Lock, err)
	}
	return g, err
}

func checkRequest(r piton.Request) error {
	if err := piton.ValidateLock(r.Lock); err != nil {
		return err
	}
	switch {
	case r.Holder == "" || strings.ContainsRune(r.Holder, 0):
		return fmt.Errorf("etcdlock: the holder is %q; want the random id of the acquisition", r.Holder)
	case r.TTL <= 0:
		return fmt.Errorf("etcdlock: TTL %v is too short; want more than 0", r.TTL)
	case r.Floor >= piton.MaxToken:
		return fmt.Errorf("etcdlock: no token above the floor %d is left; want a floor below %d", r.Floor, piton.MaxToken)
	}
	return nil
}

// acquire reads first, so that asking for a lock that is held writes nothing. A
// transaction whose conditions fail has read what has changed; each such turn means
// that somebody else got on.
func (c *Coordinator) acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	id, ttl := leaseOf(r.Lock, r.Holder), time.Duration(0)
	s, err := c.look(ctx, r.Lock)
	for {
		switch {
		case err != nil:
			return piton.Grant{}, err
		case s.held != nil && s.held.Holder != r.Holder:
			return piton.Grant{}, c.refuse(ctx, s.held, id, ttl > 0)
		}
		own := s.held != nil && s.held.token() > r.Floor
		next, full := s.grant(r)
		if full != nil && !own {
			return piton.Grant{}, c.without(ctx, id, ttl > 0 && s.held == nil, full)
		}
		if ttl == 0 {
			if ttl, err = c.begin(ctx, id, r.TTL, s); err != nil {
				return piton.Grant{}, err
			}
		}
		if own {
			return grantOf(r, s.held.token(), s.held.Offset, ttl), nil
		}
		var revision int64
		if revision, s, err = c.try(ctx, next, r.Lock); revision == 0 {
			continue
		}
		g := grantOf(r, piton.Token(revision+next.offset), next.offset, ttl)
		if g.Token > piton.MaxToken {
			return piton.Grant{}, c.without(ctx, id, true, errors.New("the last token was used up meanwhile"))
		}
		return g, nil
	}
}

// look reads the state of a lock.
func (c *Coordinator) look(ctx context.Context, lock string) (state, error) {
	answer, err := c.client.Txn(ctx).Then(reads(lock)...).Commit()
	if err != nil {
		return state{}, err
	}
	return stateOf(answer)
}

// try commits a step and returns its revision, or 0 and the state that was in its way.
func (c *Coordinator) try(ctx context.Context, next step, lock string) (revision int64, s state, err error) {
	answer, err := c.client.Txn(ctx).If(next.conditions...).Then(next.writes...).Else(reads(lock)...).Commit()
	switch {
	case err != nil:
		return 0, s, err
	case answer.Succeeded:
		return answer.Header.Revision, s, nil
	}
	s, err = stateOf(answer)
	return 0, s, err
}

func grantOf(r piton.Request, t piton.Token, offset int64, ttl time.Duration) piton.Grant {
	return piton.Grant{Fence: piton.Fence{Lock: r.Lock, Token: t, Holder: r.Holder}, TTL: ttl, Ref: strconv.FormatInt(offset, 10)}
}

// refuse says who holds the lock. The lease that was made in vain is ended; if
// that fails it ends by itself, and the answer is no other.
func (c *Coordinator) refuse(ctx context.Context, held *record, id clientv3.LeaseID, leased bool) error {
	err := &piton.HeldError{Lock: held.lock, Owner: held.Owner, Token: held.token()}
	_ = c.without(ctx, id, leased, nil)
	left, lookup := c.remaining(ctx, held.lease)
	switch {
	case lookup != nil: // unknown, which is what 0 means
	case left == 0:
		err.Remaining = time.Millisecond // about to be free
	default:
		err.Remaining = left
	}
	return err
}

// without ends a lease that came to nothing, and returns why.
func (c *Coordinator) without(ctx context.Context, id clientv3.LeaseID, leased bool, why error) error {
	if !leased {
		return why
	}
	return errors.Join(why, c.revoke(ctx, id))
}

// Renew implements [piton.Coordinator]: it looks whether the grant is there, and
// only then starts its time anew, to the TTL that etcd granted.
func (c *Coordinator) Renew(ctx context.Context, g piton.Grant) (piton.Grant, error) {
	if err := piton.ValidateLock(g.Lock); err != nil {
		return piton.Grant{}, err
	}
	answer, err := c.client.Get(ctx, lockKey(g.Lock))
	if err != nil {
		return piton.Grant{}, fmt.Errorf("etcdlock: renew %q: %w", g.Lock, err)
	}
	var held *record
	if len(answer.Kvs) > 0 {
		if held, err = parse(answer.Kvs[0]); err != nil {
			return piton.Grant{}, fmt.Errorf("etcdlock: renew %q: %w", g.Lock, err)
		}
	}
	return c.renew(ctx, g, held, answer.Header.RaftTerm)
}

// renew renews a grant for which held was found in that term.
func (c *Coordinator) renew(ctx context.Context, g piton.Grant, held *record, term uint64) (piton.Grant, error) {
	if err := lost(g, held); err != nil {
		return piton.Grant{}, err
	}
	ttl, err := c.keepAlive(ctx, held.lease, term)
	switch {
	case errors.Is(err, errEnded):
		return piton.Grant{}, lost(g, nil)
	case err != nil:
		return piton.Grant{}, fmt.Errorf("etcdlock: renew %q: %w", g.Lock, err)
	}
	g.TTL = ttl
	return g, nil
}

// lost is nil when held is g.
func lost(g piton.Grant, held *record) error {
	e := &piton.LostError{Lock: g.Lock, Token: g.Token, Holder: g.Holder}
	switch {
	case held == nil:
		e.Reason = piton.ReasonExpired
		return e
	case held.Holder != g.Holder:
		e.Reason = piton.ReasonTaken
	case held.token() != g.Token:
		e.Reason = piton.ReasonReplaced
	default:
		return nil
	}
	e.By = held.token()
	return e
}

// Release implements [piton.Coordinator]. It ends the etcd lease of the grant,
// too, so that a request of the same acquisition that arrives later does nothing.
func (c *Coordinator) Release(ctx context.Context, g piton.Grant) error {
	if err := piton.ValidateLock(g.Lock); err != nil {
		return err
	}
	err := c.release(ctx, g)
	if err != nil && !errors.Is(err, piton.ErrLost) {
		return fmt.Errorf("etcdlock: release %q: %w", g.Lock, err)
	}
	return err
}

func (c *Coordinator) release(ctx context.Context, g piton.Grant) error {
	id, key := leaseOf(g.Lock, g.Holder), lockKey(g.Lock)
	remove := c.client.Txn(ctx).Then(clientv3.OpGet(key))
	if g.Token != 0 {
		offset, err := strconv.ParseInt(g.Ref, 10, 64)
		if err != nil {
			return fmt.Errorf("the grant's Ref is %q; want the one that Acquire returned: %w", g.Ref, err)
		}
		// The lease says whose the key is: after a restored backup the same revision
		// may be another holder's.
		mine := []clientv3.Cmp{
			clientv3.Compare(clientv3.ModRevision(key), "=", int64(g.Token)-offset),
			clientv3.Compare(clientv3.LeaseValue(key), "=", id),
		}
		remove = c.client.Txn(ctx).If(mine...).Then(clientv3.OpDelete(key)).Else(clientv3.OpGet(key))
	} else if err := c.revoke(ctx, id); err != nil {
		return err
	}
	answer, err := remove.Commit()
	if err != nil {
		return err
	}
	var held *record
	if kv := found(answer.Responses[0]); kv != nil {
		if held, err = parse(kv); err != nil {
			return err
		}
	}
	if held != nil && held.Holder == g.Holder {
		return lost(g, held) // another token, whose lease this is
	}
	if g.Token != 0 {
		if err := c.revoke(ctx, id); err != nil {
			return err
		}
	}
	if held == nil {
		return nil
	}
	return lost(g, held)
}
