package etcdlock_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/faultproxy"
	"github.com/pitonlock/piton/internal/servertest"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// behind is a coordinator whose connections go through a proxy.
func behind(tb testing.TB, addr string) (client, *faultproxy.Proxy) {
	tb.Helper()
	proxy := faultproxy.Start(tb, addr)
	return open(tb, "http://"+proxy.Addr()), proxy
}

// losing runs a step whose answer is lost, which says nothing about its outcome.
func losing(tb testing.TB, c client, proxy *faultproxy.Proxy, step func(ctx context.Context) error) {
	tb.Helper()
	must(tb, c.Release(tb.Context(), grant(tb, c, request("warm", "h")))) // a connection is open
	proxy.Set(faultproxy.ToClient, faultproxy.Drop)
	ctx, cancel := context.WithTimeout(tb.Context(), 300*time.Millisecond)
	defer cancel()
	if err := step(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, piton.ErrHeld) || errors.Is(err, piton.ErrLost) {
		tb.Errorf("without an answer: %v; want unknown", err)
	}
	proxy.ResetAll() // bytes are missing in the stream
	proxy.Heal()
}

// A step that was carried out without its answer is done again without harm.
func TestLostAnswers(t *testing.T) {
	direct, server := fresh(t)
	c, proxy := behind(t, server.Addr())
	g := grant(t, c, request("a", "h"))
	losing(t, c, proxy, func(ctx context.Context) error {
		_, err := c.Renew(ctx, g)
		return err
	})
	if again, err := c.Renew(t.Context(), g); err != nil || again != g {
		t.Errorf("the second renewal: %v, %v", again, err)
	}
	losing(t, c, proxy, func(ctx context.Context) error { return c.Release(ctx, g) })
	if _, ok, err := direct.Get(t.Context(), "a"); ok || err != nil {
		t.Errorf("after the release: %v, %v", ok, err)
	}
	must(t, c.Release(t.Context(), g))
	wantLeases(t, direct, 0)
}

// grantAgain asks until there is an answer, as piton does.
func grantAgain(tb testing.TB, c piton.Coordinator, r piton.Request) (g piton.Grant) {
	tb.Helper()
	servertest.Eventually(tb, 10*time.Second, func() bool {
		var err error
		g, err = c.Acquire(tb.Context(), r)
		if errors.Is(err, piton.ErrHeld) {
			tb.Fatal(err)
		}
		return err == nil
	}, "a grant after the connection broke")
	return g
}

// An acquisition is cut off at each of its requests in turn, which is lost, or its
// answer is: it is done again under the same holder, or given up, and neither
// leaves a second lease.
func TestAcquisitionsThatAreCutOff(t *testing.T) {
	direct, server := fresh(t)
	proxy := faultproxy.Start(t, server.Addr())
	var before func(method string)
	c := dial(t, "http://"+proxy.Addr(), grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			before(method)
			return invoke(ctx, method, req, reply, cc, opts...)
		}))
	steps := []string{"/etcdserverpb.KV/Txn", "/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.KV/Txn"}
	for at := range steps {
		for _, lost := range []faultproxy.Direction{faultproxy.ToServer, faultproxy.ToClient} {
			for _, again := range []bool{true, false} {
				var seen []string
				before = func(method string) {
					if seen = append(seen, method); len(seen) == at+1 {
						proxy.Set(lost, faultproxy.Drop)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				_, err := c.Acquire(ctx, request("a", "h"))
				cancel()
				if !slices.Equal(seen, steps[:at+1]) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, piton.ErrHeld) {
					t.Errorf("cut off %v after %v: %v; want unknown", lost, seen, err)
				}
				before = func(string) {}
				proxy.ResetAll()
				proxy.Heal()
				if again {
					g := grantAgain(t, c, request("a", "h"))
					wantLeases(t, direct, 1)
					must(t, c.Release(t.Context(), g))
				} else {
					whatever := piton.Grant{Fence: piton.Fence{Lock: "a", Holder: "h"}}
					servertest.Eventually(t, 10*time.Second, func() bool { return c.Release(t.Context(), whatever) == nil }, "the clean-up")
				}
				if _, ok, err := direct.Get(t.Context(), "a"); ok || err != nil {
					t.Errorf("cut off %v at request %d, again %v: held %v, %v", lost, at, again, ok, err)
				}
				wantLeases(t, direct, 0)
			}
		}
	}
}

// The write of an acquisition that was given up arrives late: it does nothing.
func TestARequestThatArrivesLateDoesNothing(t *testing.T) {
	direct, server := fresh(t)
	c, proxy := behind(t, server.Addr())
	must(t, c.Release(t.Context(), grant(t, c, request("warm", "w"))))
	var held, late atomic.Bool
	proxy.OnData(func(dir faultproxy.Direction, data []byte) {
		switch write := bytes.Contains(data, []byte(`{"holder":"h"`)); {
		case dir == faultproxy.ToServer && write:
			held.Store(true)
			proxy.Set(faultproxy.ToServer, faultproxy.Hole)
		case dir == faultproxy.ToClient && held.Load():
			late.Store(true)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Acquire(ctx, request("a", "h")); !errors.Is(err, context.DeadlineExceeded) || !held.Load() {
		t.Fatalf("held back %v: %v", held.Load(), err)
	}
	must(t, direct.Release(t.Context(), piton.Grant{Fence: piton.Fence{Lock: "a", Holder: "h"}}))
	late.Store(false)
	proxy.Heal()
	servertest.Eventually(t, 10*time.Second, late.Load, "the server's answer to what arrived late")
	if held, ok, err := direct.Get(t.Context(), "a"); ok || err != nil {
		t.Errorf("after the clean-up: %+v, %v, %v", held, ok, err)
	}
	wantLeases(t, direct, 0)
}

// older makes renewals look as if a member of an earlier term had answered.
type older struct {
	grpc.ClientStream
	by uint64
}

func (o older) RecvMsg(m any) error {
	err := o.ClientStream.RecvMsg(m)
	if answer, ok := m.(*pb.LeaseKeepAliveResponse); ok && err == nil {
		answer.Header.RaftTerm -= o.by
	}
	return err
}

// A leader that was replaced while it was frozen answers renewals that nobody else
// knows of. Its term tells.
func TestARenewalByALeaderOfThePastDoesNotCount(t *testing.T) {
	server := servertest.StartEtcd(t)
	for by, counts := range map[uint64]bool{0: true, 1: false} {
		c := dial(t, server.Endpoint(), grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				stream, err := streamer(ctx, desc, cc, method, opts...)
				return older{stream, by}, err
			}))
		g := grant(t, c, request("a", "h"))
		_, renewal := c.Renew(t.Context(), g)
		_, again := c.Acquire(t.Context(), request("a", "h"))
		for what, err := range map[string]error{"Renew": renewal, "Acquire": again, "RenewBatch": c.RenewBatch(t.Context(), []piton.Grant{g})[0].Err} {
			if (err == nil) != counts || errors.Is(err, piton.ErrLost) || errors.Is(err, piton.ErrHeld) {
				t.Errorf("%s, answered %d terms ago: %v; want it to count: %v", what, by, err, counts)
			}
		}
		must(t, c.Release(t.Context(), g))
	}
}

func TestAnOutageIsNoRefusal(t *testing.T) {
	c, server := fresh(t)
	g := grant(t, c, request("a", "h"))
	server.Stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, acquired := c.Acquire(ctx, request("b", "h"))
	_, renewed := c.Renew(ctx, g)
	_, _, got := c.Get(ctx, "a")
	_, listed := c.List(ctx, "", 0)
	_, broken := c.Break(ctx, "a", g.Token)
	for what, err := range map[string]error{"Acquire": acquired, "Renew": renewed, "Release": c.Release(ctx, g), "Get": got, "List": listed, "Break": broken} {
		if err == nil || errors.Is(err, piton.ErrHeld) || errors.Is(err, piton.ErrLost) {
			t.Errorf("%s without a server: %v", what, err)
		}
	}
	l, err := piton.New(c)
	must(t, err)
	wait, end := context.WithTimeout(t.Context(), time.Second)
	defer end()
	if _, err := l.Acquire(wait, "a"); !errors.Is(err, piton.ErrUnavailable) {
		t.Errorf("waiting without a server: %v; want %v", err, piton.ErrUnavailable)
	}
	must(t, l.Close(t.Context()))
}
