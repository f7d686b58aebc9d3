package redislock_test

import (
	"context"
	"errors"
	"strings"
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
	redis *redis.Client
}

func (c client) Close() error { return errors.Join(c.Coordinator.Close(), c.redis.Close()) }

func TestLaws(t *testing.T) {
	server := servertest.StartRedis(t)
	_, admin := open(t, server.Addr())
	locktest.Run(t, locktest.Harness{
		New: func(context.Context) (piton.Coordinator, error) {
			r := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
			c, err := redislock.New(r)
			return client{c, r}, err
		},
		Forget: func(ctx context.Context) error { return admin.FlushAll(ctx).Err() },
		Left: func(ctx context.Context, prefix string) (int, error) {
			left := 0
			for keys := admin.Scan(ctx, 0, "piton:*", 1000).Iterator(); keys.Next(ctx); {
				ttl, err := admin.PTTL(ctx, keys.Val()).Result()
				if err != nil {
					return 0, err
				}
				if strings.Contains(keys.Val(), prefix) && (ttl == -1 || ttl > redislock.Idle) {
					left++
				}
			}
			return left, nil
		},
	})
}
