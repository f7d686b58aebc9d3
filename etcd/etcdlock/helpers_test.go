package etcdlock_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/etcd/etcdlock"
	"github.com/pitonlock/piton/internal/servertest"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

// client is a coordinator with a connection of its own, as a process has it.
type client struct {
	*etcdlock.Coordinator
	etcd *clientv3.Client
}

func (c client) Close() error { return c.etcd.Close() }

func connect(endpoint string, opts ...grpc.DialOption) (client, error) {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialOptions: opts})
	if err != nil {
		return client{}, err
	}
	c, err := etcdlock.New(etcd)
	return client{c, etcd}, err
}

func dial(tb testing.TB, endpoint string, opts ...grpc.DialOption) client {
	tb.Helper()
	c, err := connect(endpoint, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, context.Canceled) {
			tb.Error(err)
		}
	})
	return c
}

func open(tb testing.TB, endpoint string) client {
	tb.Helper()
	return dial(tb, endpoint)
}

// fresh is a coordinator on a server of the test's own.
func fresh(tb testing.TB) (client, *servertest.Etcd) {
	tb.Helper()
	server := servertest.StartEtcd(tb)
	return open(tb, server.Endpoint()), server
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

// kept counts the keys without a lease whose names contain part.
func (c client) kept(ctx context.Context, part string) (n int, err error) {
	all, err := c.etcd.Get(ctx, "piton/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return 0, err
	}
	for _, kv := range all.Kvs {
		if kv.Lease == 0 && strings.Contains(string(kv.Key), part) {
			n++
		}
	}
	return n, nil
}
