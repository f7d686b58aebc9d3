package consullock_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/consul/consullock"
	"github.com/pitonlock/piton/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

// client is a coordinator with connections of its own, as a process has it.
type client struct {
	*consullock.Coordinator
	consul    *api.Client
	transport *http.Transport
}

func (c client) Close() error {
	c.transport.CloseIdleConnections()
	return nil
}

func connect(addr string) (client, error) {
	transport := &http.Transport{}
	return connectBy(addr, transport, transport)
}

// connectBy is connect with trips that a test has to do with.
func connectBy(addr string, transport *http.Transport, trips http.RoundTripper) (client, error) {
	consul, err := api.NewClient(&api.Config{Address: addr, HttpClient: &http.Client{Transport: trips}})
	if err != nil {
		return client{}, err
	}
	c, err := consullock.New(consul)
	return client{c, consul, transport}, err
}

func open(tb testing.TB, addr string) client {
	tb.Helper()
	c, err := connect(addr)
	must(tb, err)
	tb.Cleanup(func() { must(tb, c.Close()) })
	return c
}

// fresh is a coordinator on a server of the test's own.
func fresh(tb testing.TB) (client, *servertest.Consul) {
	tb.Helper()
	server := servertest.StartConsul(tb)
	return open(tb, server.Addr()), server
}

func request(lock, holder string) piton.Request {
	return piton.Request{Lock: lock, Holder: holder, Owner: "owner of " + holder, TTL: time.Minute}
}

func grant(tb testing.TB, c piton.Coordinator, r piton.Request) piton.Grant {
	tb.Helper()
	g, err := c.Acquire(context.Background(), r)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

func must(tb testing.TB, errs ...error) {
	tb.Helper()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
}

func wantLost(tb testing.TB, err error, reason piton.Reason, by piton.Token) {
	tb.Helper()
	var lost *piton.LostError
	if !errors.As(err, &lost) || lost.Reason != reason || lost.By != by {
		tb.Errorf("got %v; want lost: %s by %d", err, reason, by)
	}
}

func wantHint(tb testing.TB, hints <-chan struct{}) {
	tb.Helper()
	select {
	case <-hints:
	case <-time.After(10 * time.Second):
		tb.Error("no hint came")
	}
}

func wantSessions(tb testing.TB, c client, want int) {
	tb.Helper()
	all, _, err := c.consul.Session().List(&api.QueryOptions{RequireConsistent: true})
	if err != nil || len(all) != want {
		tb.Errorf("%d sessions, %v; want %d", len(all), err, want)
	}
}

// kept counts the keys without a session that are kept for locks whose names
// contain part.
func (c client) kept(ctx context.Context, part string) (n int, err error) {
	all, _, err := c.consul.KV().List("piton/", (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	if err != nil {
		return 0, err
	}
	for _, pair := range all {
		if pair.Session == "" && strings.Contains(pair.Key, consullock.Escape(part)) {
			n++
		}
	}
	return n, nil
}

func write(ctx context.Context) *api.WriteOptions { return new(api.WriteOptions).WithContext(ctx) }
