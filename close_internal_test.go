package piton

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// granting grants everything.
type granting struct{ n atomic.Int64 }

func (c *granting) Acquire(_ context.Context, r Request) (Grant, error) {
	return Grant{Fence: Fence{Lock: r.Lock, Holder: r.Holder, Token: Token(c.n.Add(1))}, TTL: r.TTL}, nil
}
func (c *granting) Renew(_ context.Context, g Grant) (Grant, error) { return g, nil }
func (c *granting) Release(context.Context, Grant) error            { return nil }

// A lease that is granted while Close begins is ended like all others. The heartbeat's
// mutex is held for a moment, so that the lease is on the way between the two.
func TestCloseEndsALeaseThatIsJustGranted(t *testing.T) {
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	for range 1000 {
		l, err := New(&granting{}, WithTTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan *Lease, 1)
		l.beats.mu.Lock()
		go func() {
			lease, _ := l.Acquire(context.Background(), "a")
			got <- lease
		}()
		for busy := 0; busy < 2; { // until the lease has been counted
			l.mu.Lock()
			busy = l.busy
			l.mu.Unlock()
		}
		l.beats.mu.Unlock()
		_ = l.Close(dead)
		if lease := <-got; lease != nil {
			if err := lease.Err(); !errors.Is(err, ErrClosed) {
				t.Fatalf("Close has returned, a lease was handed out, and its Err is %v", err)
			}
			_ = lease.Release(context.Background())
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
