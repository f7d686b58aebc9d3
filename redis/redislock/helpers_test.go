package redislock_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/redis/redislock"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

func open(tb testing.TB, addr string) (*redislock.Coordinator, *redis.Client) {
	tb.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	c, err := redislock.New(client)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(c.Close(), client.Close()); err != nil {
			tb.Error(err)
		}
	})
	return c, client
}

// fresh is a coordinator on a server of the test's own.
func fresh(tb testing.TB) (*redislock.Coordinator, *redis.Client, *servertest.Redis) {
	tb.Helper()
	server := servertest.StartRedis(tb)
	c, client := open(tb, server.Addr())
	return c, client, server
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
