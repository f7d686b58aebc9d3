//go:build linux

package lab

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed renew.lua
var renewLua string

//go:embed release.lua
var releaseLua string

var (
	renewScript   = redis.NewScript(renewLua)
	releaseScript = redis.NewScript(releaseLua)
)

type redisServer struct{ client redis.UniversalClient }

func (s redisServer) prepare(ctx context.Context) error { return s.client.Ping(ctx).Err() }
func (s redisServer) clean(context.Context) error       { return nil }
func (s redisServer) close() error                      { return s.client.Close() }
func (s redisServer) lock(name string) usual            { return redisLock{s.client, name} }

func (s redisServer) forget(ctx context.Context, name string) error {
	l := redisLock{s.client, name}
	return s.client.Del(ctx, l.key(), l.counter()).Err()
}

type redisLock struct {
	client redis.UniversalClient
	name   string
}

func (l redisLock) key() string     { return "{" + l.name + "}:lock" }
func (l redisLock) counter() string { return "{" + l.name + "}:counter" }

func (l redisLock) take(ctx context.Context, owner string, ttl time.Duration) (bool, error) {
	err := l.client.SetArgs(ctx, l.key(), owner, redis.SetArgs{Mode: "NX", TTL: ttl}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

func (l redisLock) count(ctx context.Context) (int64, error) {
	return l.client.Incr(ctx, l.counter()).Result()
}

func (l redisLock) renew(ctx context.Context, owner string, ttl time.Duration) (bool, error) {
	return renewScript.Run(ctx, l.client, []string{l.key()}, owner, ttl.Milliseconds()).Bool()
}

func (l redisLock) release(ctx context.Context, owner string) error {
	return releaseScript.Run(ctx, l.client, []string{l.key()}, owner).Err()
}
