package redislock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/locktest"
	"github.com/pitonlock/piton/redis/redislock"
	"github.com/redis/go-redis/v9"
)

// client is a coordinator with a connection of its own, as a process has it.
type client struct {
	*redislock.Coordinator
	redis redis.UniversalClient
}

func (c client) Close() error { return errors.Join(c.Coordinator.Close(), c.redis.Close()) }

func TestLaws(t *testing.T) {
	server := servertest.StartRedis(t)
	laws(t, func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	})
}

func TestLawsBehindSentinel(t *testing.T) {
	s := servertest.StartRedisSentinel(t)
	laws(t, func() redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: s.Name, SentinelAddrs: s.Addrs(), ContextTimeoutEnabled: true})
	})
}

func TestLawsOnACluster(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	laws(t, func() redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), ContextTimeoutEnabled: true})
	})
}

func laws(t *testing.T, open func() redis.UniversalClient) {
	admin := open()
	t.Cleanup(func() { must(t, admin.Close()) })
	locktest.Run(t, locktest.Harness{
		New: func(context.Context) (piton.Coordinator, error) {
			r := open()
			c, err := redislock.New(r)
			return client{c, r}, err
		},
		Forget: func(ctx context.Context) error {
			return onPrimaries(ctx, admin, func(ctx context.Context, r redis.Cmdable) error { return r.FlushAll(ctx).Err() })
		},
		Left: func(ctx context.Context, prefix string) (int, error) {
			var left atomic.Int64
			err := onPrimaries(ctx, admin, func(ctx context.Context, r redis.Cmdable) error {
				for keys := r.Scan(ctx, 0, "piton:*", 1000).Iterator(); keys.Next(ctx); {
					ttl, err := r.PTTL(ctx, keys.Val()).Result()
					if err != nil {
						return err
					}
					if strings.Contains(keys.Val(), prefix) && (ttl == -1 || ttl > redislock.Idle) {
						left.Add(1)
					}
				}
				return nil
			})
			return int(left.Load()), err
		},
	})
}

func onPrimaries(ctx context.Context, client redis.UniversalClient, f func(ctx context.Context, r redis.Cmdable) error) error {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, r *redis.Client) error { return f(ctx, r) })
	}
	return f(ctx, client)
}

// A Ring may send one lock to several servers.
func TestARingIsRefused(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { must(t, ring.Close()) })
	if _, err := redislock.New(ring); err == nil || !strings.Contains(err.Error(), "Ring") {
		t.Errorf("got %v", err)
	}
}
