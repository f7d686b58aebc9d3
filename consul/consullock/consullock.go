package consullock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/consul/api"
	"github.com/pitonlock/piton"
)

var (
	_ piton.Coordinator = (*Coordinator)(nil)
	_ piton.Waiter      = (*Coordinator)(nil)
	_ piton.Inspector   = (*Coordinator)(nil)
	_ piton.Breaker     = (*Coordinator)(nil)
)

// Coordinator grants leases in one Consul datacenter. It implements
// [piton.Coordinator], [piton.Waiter], [piton.Inspector] and [piton.Breaker], and is
// safe for concurrent use. [New] makes one; there is nothing to close.
type Coordinator struct {
	client  *api.Client
	watches atomic.Int64

	// unsettled has, by name, the sessions under which a lock was asked for without an
	// answer. The next attempt takes the same one: a request that arrives late, after
	// the lease's end, finds no session then. Whoever gives up releases, which
	// removes the entry.
	unsettled sync.Map
}

// New returns a coordinator on c. It sends nothing. The client stays the caller's;
// its datacenter, ACL token and namespace count.
func New(c *api.Client) (*Coordinator, error) {
	if c == nil {
		return nil, errors.New("consullock: New was given a nil client")
	}
	return &Coordinator{client: c}, nil
}

// Acquire implements [piton.Coordinator]. A TTL below Consul's setting
// session_ttl_min (10 s by default) or above 24 h is an error that says so; others
// are granted as they are. An empty holder and a floor of [piton.MaxToken] or more
// are errors, too.
func (c *Coordinator) Acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	if err := checkRequest(r); err != nil {
		return piton.Grant{}, err
	}
	g, err := c.acquire(ctx, r)
	if err != nil && !errors.Is(err, piton.ErrHeld) {
		return piton.Grant{}, fmt.Errorf("consullock: acquire %q: %w", r.Lock, err)
	}
	return g, err
}

func checkRequest(r piton.Request) error {
	if err := piton.ValidateLock(r.Lock); err != nil {
		return err
	}
	switch {
	case r.Holder == "" || strings.ContainsRune(r.Holder, 0):
		return fmt.Errorf("consullock: the holder is %q; want the random id of the acquisition", r.Holder)
	case r.TTL <= 0:
		return fmt.Errorf("consullock: TTL %v is too short; want more than 0", r.TTL)
	case r.Floor >= piton.MaxToken:
		return fmt.Errorf("consullock: no token above the floor %d is left; want a floor below %d", r.Floor, piton.MaxToken)
	}
	return nil
}

// acquire reads first, so that asking for a lock that is held writes nothing. A
// transaction whose conditions fail means that somebody else got on.
func (c *Coordinator) acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	s, err := c.look(ctx, r.Lock)
	if err != nil {
		return piton.Grant{}, err
	}
	if s.held == nil {
		return c.take(ctx, r, s)
	}
	if s.held.Holder != r.Holder {
		return piton.Grant{}, refusal(s.held)
	}
	return c.again(ctx, r, s)
}

// take grants a lock that was free.
func (c *Coordinator) take(ctx context.Context, r piton.Request, s state) (piton.Grant, error) {
	if _, full := s.grant(r, sessionInfo{}); full != nil {
		return piton.Grant{}, full
	}
	name := sessionName(r.Lock, r.Holder)
	session, err := c.session(ctx, name, r)
	if err != nil {
		return piton.Grant{}, err
	}
	for {
		g, after, err := c.try(ctx, r, s, session)
		switch {
		case err != nil:
			c.unsettled.Store(name, session.id)
			return g, err
		case g.Token > piton.MaxToken:
			return piton.Grant{}, c.without(ctx, session, errors.New("the last token was used up meanwhile"))
		case g.Token > 0:
			return g, nil
		case after.held != nil && after.held.Holder != r.Holder:
			return piton.Grant{}, c.without(ctx, session, refusal(after.held))
		case after.held != nil: // an earlier attempt of this holder arrived late
			if after.held.session != session.id {
				_ = c.destroy(ctx, session.id)
			}
			return c.again(ctx, r, after)
		}
		s = after
	}
}

// session makes the session of an acquisition, or takes that of an attempt whose
// answer was lost.
func (c *Coordinator) session(ctx context.Context, name string, r piton.Request) (sessionInfo, error) {
	if id, ok := c.unsettled.LoadAndDelete(name); ok {
		session, err := c.renewSession(ctx, id.(string))
		if err != nil && !errors.Is(err, errEnded) {
			c.unsettled.Store(name, id)
		}
		if !errors.Is(err, errEnded) {
			return session, err
		}
	}
	session, err := c.begin(ctx, name, r.TTL)
	if err != nil || r.Floor == 0 {
		return session, err
	}
	return c.lookUp(ctx, session.id) // its index makes the token a near one
}

// again answers a holder that has the lock already: its time starts anew, and its
// token is lifted above the floor.
func (c *Coordinator) again(ctx context.Context, r piton.Request, s state) (piton.Grant, error) {
	session, err := c.renewSession(ctx, s.held.session)
	if err != nil {
		return piton.Grant{}, err
	}
	c.unsettled.Delete(sessionName(r.Lock, r.Holder))
	if s.held.token() > r.Floor {
		return grantOf(r, s.held.token(), session), nil
	}
	g, _, err := c.try(ctx, r, s, session)
	switch {
	case err != nil:
		return piton.Grant{}, err
	case g.Token == 0:
		return piton.Grant{}, errors.New("something changed while the token was lifted")
	case g.Token > piton.MaxToken:
		return piton.Grant{}, c.without(ctx, session, errors.New("the last token was used up meanwhile"))
	}
	return g, nil
}

// look reads the state of a lock.
func (c *Coordinator) look(ctx context.Context, lock string) (state, error) {
	ok, answer, _, err := c.client.Txn().Txn(reads(lock), consistent(ctx))
	switch {
	case err != nil:
		return state{}, err
	case !ok:
		return state{}, refused(answer)
	}
	return stateOf(lock, answer.Results)
}

// try commits the step from s to a grant, or returns no grant and the state that was
// in its way.
func (c *Coordinator) try(ctx context.Context, r piton.Request, s state, session sessionInfo) (piton.Grant, state, error) {
	next, err := s.grant(r, session)
	if err != nil {
		return piton.Grant{}, s, err
	}
	ok, answer, _, err := c.client.Txn().Txn(next.ops, consistent(ctx))
	if err != nil {
		return piton.Grant{}, s, err
	}
	if !ok && !overtaken(answer) {
		return piton.Grant{}, s, refused(answer) // the session has ended, or an ACL says no
	}
	if !ok {
		after, err := c.look(ctx, r.Lock)
		return piton.Grant{}, after, err
	}
	for _, result := range slices.Backward(answer.Results) { // the condition on the key has a result, too
		if result.KV.Key == holderKey(r.Lock) {
			return grantOf(r, piton.Token(int64(result.KV.ModifyIndex)+next.offset), session), s, nil
		}
	}
	return piton.Grant{}, s, errors.New("consul's answer to the transaction lacks the lock's key")
}

// overtaken tells whether a step was rolled back because the state had changed. It may
// be the same again by now, when somebody had the lock only for a moment.
func overtaken(answer *api.TxnResponse) bool {
	return slices.ContainsFunc(answer.Errors, func(e *api.TxnError) bool {
		return e.OpIndex < conditions && !strings.Contains(e.What, "Permission denied")
	})
}

// refused is the error of a transaction that was rolled back.
func refused(answer *api.TxnResponse) error {
	var all []error
	for _, e := range answer.Errors {
		all = append(all, errors.New(e.What))
	}
	return fmt.Errorf("consul rolled the transaction back: %w", errors.Join(all...))
}

func grantOf(r piton.Request, t piton.Token, session sessionInfo) piton.Grant {
	return piton.Grant{Fence: piton.Fence{Lock: r.Lock, Token: t, Holder: r.Holder}, TTL: session.ttl, Ref: session.id}
}

// refusal says who holds the lock, though not for how long, which Consul does not tell.
func refusal(held *record) error {
	return &piton.HeldError{Lock: held.lock, Owner: held.Owner, Token: held.token()}
}

// without ends a session that came to nothing, and returns why. If it cannot be
// ended now it ends by itself, as nobody renews it.
func (c *Coordinator) without(ctx context.Context, session sessionInfo, why error) error {
	_ = c.destroy(ctx, session.id)
	return why
}

// Renew implements [piton.Coordinator]: it looks whether the grant is there, by a
// read that only the leader of a majority can answer, and only then starts its time
// anew, to the TTL of its session.
func (c *Coordinator) Renew(ctx context.Context, g piton.Grant) (piton.Grant, error) {
	if err := piton.ValidateLock(g.Lock); err != nil {
		return piton.Grant{}, err
	}
	renewed, err := c.renew(ctx, g)
	if err != nil && !errors.Is(err, piton.ErrLost) {
		return piton.Grant{}, fmt.Errorf("consullock: renew %q: %w", g.Lock, err)
	}
	return renewed, err
}

func (c *Coordinator) renew(ctx context.Context, g piton.Grant) (piton.Grant, error) {
	held, err := c.present(ctx, g.Lock)
	if err == nil {
		err = lost(g, held)
	}
	if err != nil {
		return piton.Grant{}, err
	}
	session, err := c.renewSession(ctx, held.session)
	if errors.Is(err, errEnded) {
		// The session of a key that is there cannot have ended. Who says so may be a
		// leader that has not caught up; the key decides.
		if held, again := c.present(ctx, g.Lock); again == nil && lost(g, held) != nil {
			return piton.Grant{}, lost(g, held)
		}
	}
	if err != nil {
		return piton.Grant{}, err
	}
	g.TTL = session.ttl
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

// Release implements [piton.Coordinator]. It ends the session of the grant, so that
// a request of the same acquisition that arrives later does nothing. With token 0 it
// lists the datacenter's sessions for those of the acquisition.
func (c *Coordinator) Release(ctx context.Context, g piton.Grant) error {
	if err := piton.ValidateLock(g.Lock); err != nil {
		return err
	}
	err := c.release(ctx, g)
	if err != nil && !errors.Is(err, piton.ErrLost) {
		return fmt.Errorf("consullock: release %q: %w", g.Lock, err)
	}
	return err
}

func (c *Coordinator) release(ctx context.Context, g piton.Grant) error {
	name := sessionName(g.Lock, g.Holder)
	c.unsettled.Delete(name)
	if g.Token == 0 {
		if err := c.destroyAll(ctx, name); err != nil {
			return err
		}
	}
	held, err := c.present(ctx, g.Lock)
	switch {
	case err != nil:
		return err
	case held != nil && held.Holder == g.Holder && (g.Token == 0 || held.token() == g.Token):
		return c.destroy(ctx, held.session)
	case held == nil || held.session != g.Ref:
		// The key is gone, or another's, and the session may be there all the same.
		if err := c.destroy(ctx, g.Ref); err != nil {
			return err
		}
	}
	if held == nil {
		return nil
	}
	return lost(g, held)
}
