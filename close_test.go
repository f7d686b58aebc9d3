package piton_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton"
)

// D37: the lease is given back when the work has returned, not before.
func TestCloseWaitsForTheWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		l := newLocker(t, c)
		started, ended := make(chan struct{}), make(chan time.Time, 1)
		result := make(chan error, 1)
		go func() {
			result <- l.Do(t.Context(), "a", func(ctx context.Context, _ *piton.Lease) error {
				close(started)
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), piton.ErrClosed) {
					t.Errorf("the work ends with %v", context.Cause(ctx))
				}
				pass(4 * time.Second)
				if !isHeld(t, c, "a") {
					t.Error("the lock was given back before the work returned")
				}
				ended <- time.Now()
				return nil
			})
		}()
		<-started
		next := make(chan time.Time, 1)
		other := newLocker(t, c.Coordinator)
		go func() {
			lease := acquire(t, other, "a")
			next <- time.Now()
			release(t, lease)
		}()
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-result; err != nil {
			t.Errorf("Do: %v", err)
		}
		if last, first := <-ended, <-next; first.Before(last) {
			t.Errorf("the next holder began %v before the end of the work", last.Sub(first))
		}
		if _, err := l.Acquire(t.Context(), "a"); !errors.Is(err, piton.ErrClosed) {
			t.Errorf("Acquire after Close: %v", err)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Errorf("a second Close: %v", err)
		}
	})
}

func TestCloseEndsThoseWhoWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		lease := acquire(t, newLocker(t, c.Coordinator), "a")
		l := newLocker(t, c)
		errs := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := l.Acquire(t.Context(), "a")
				errs <- err
			}()
		}
		pass(time.Second)
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-errs; !errors.Is(err, piton.ErrClosed) {
				t.Error(err)
			}
		}
		release(t, lease)
	})
}

func TestCloseNamesWhatIsStillInUse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newTap()
		l := newLocker(t, c)
		lease := acquire(t, l, "invoices/7")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := l.Close(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `"invoices/7"`) {
			t.Errorf("Close: %v", err)
		}
		if !errors.Is(lease.Err(), piton.ErrClosed) || !isHeld(t, c, "invoices/7") {
			t.Errorf("the lease is %v, held %v; want it ended, not given back", lease.Err(), isHeld(t, c, "invoices/7"))
		}
		release(t, lease)
		if err := l.Close(t.Context()); err != nil || isHeld(t, c, "invoices/7") {
			t.Errorf("Close after the release: %v", err)
		}
	})
}

// Nobody releases: the lease ends with its TTL, and so does Close.
func TestCloseWaitsNoLongerThanTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLocker(t, newTap())
		acquire(t, l, "a")
		start := time.Now()
		if err := l.Close(t.Context()); err != nil || time.Since(start) > ttl {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// D06 and the other options that cannot be.
func TestOptionsAreChecked(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []piton.Option
		want []string // in the message; none: accepted
	}{
		{"defaults", nil, nil},
		{"TTL 0", []piton.Option{piton.WithTTL(0)}, []string{"TTL 0s", "20ms"}},
		{"TTL negative", []piton.Option{piton.WithTTL(-time.Second)}, []string{"TTL -1s"}},
		{"TTL = a day", []piton.Option{piton.WithTTL(24 * time.Hour)}, nil},
		{"TTL > a day", []piton.Option{piton.WithTTL(24*time.Hour + 1)}, []string{"TTL 24h0m0.000000001s", "24h0m0s"}},
		{"heartbeat = TTL", []piton.Option{piton.WithTTL(10 * time.Second), piton.WithHeartbeat(10 * time.Second)}, []string{"10s", "5s"}},
		{"heartbeat = 0.9 TTL", []piton.Option{piton.WithTTL(10 * time.Second), piton.WithHeartbeat(9 * time.Second)}, []string{"9s", "10s", "5s"}},
		{"heartbeat > TTL", []piton.Option{piton.WithHeartbeat(time.Minute)}, []string{"1m0s", "30s"}},
		{"heartbeat negative", []piton.Option{piton.WithHeartbeat(-1)}, []string{"-1ns"}},
		{"heartbeat = TTL/2", []piton.Option{piton.WithHeartbeat(15 * time.Second)}, nil},
		{"nil guard", []piton.Option{piton.WithGuards(nil)}, []string{"nil guard"}},
	} {
		_, err := piton.New(newTap(), c.opts...)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", c.name, err, part)
			}
		}
	}
	if _, err := piton.New(nil); err == nil {
		t.Error("a nil coordinator is accepted")
	}
}

// D06: an accepted heartbeat loses nothing on a healthy coordinator with latency.
func TestAcceptedHeartbeatsLoseNothing(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 2 * time.Second, 10 * time.Second, 30 * time.Second} {
		for _, beat := range []time.Duration{0, ttl / 10, ttl / 2} {
			bubble(t, func(t *testing.T) {
				c := newTap()
				c.onRenew = func(ctx context.Context, n int, _ piton.Grant, call renewCall) (piton.Grant, error) {
					hang(time.Duration(50+n*37%50) * time.Millisecond)
					g, err := call(ctx)
					hang(time.Duration(50+n*53%50) * time.Millisecond)
					return g, err
				}
				opts := []piton.Option{piton.WithTTL(ttl)}
				if beat > 0 {
					opts = append(opts, piton.WithHeartbeat(beat))
				}
				lease := acquire(t, newLocker(t, c, opts...), "a")
				pass(20 * ttl)
				if lease.Err() != nil {
					t.Errorf("TTL %v, heartbeat %v: %v", ttl, beat, lease.Err())
				}
				release(t, lease)
			})
		}
	}
}
