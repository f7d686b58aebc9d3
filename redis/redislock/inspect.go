package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pitonlock/piton"
	"github.com/redis/go-redis/v9"
)

// Get implements [piton.Inspector].
func (c *Coordinator) Get(ctx context.Context, lock string) (piton.Held, bool, error) {
	if err := piton.ValidateLock(lock); err != nil {
		return piton.Held{}, false, err
	}
	list, err := c.describe(ctx, []string{lock})
	if err != nil || len(list) == 0 {
		return piton.Held{}, false, err
	}
	return list[0], true, nil
}

// List implements [piton.Inspector]. It goes through all keys of the server, or of
// each primary, by SCAN, which does not hold it up; locks that come or go meanwhile
// may be missing.
func (c *Coordinator) List(ctx context.Context, prefix string, limit int) ([]piton.Held, error) {
	var mu sync.Mutex
	var names []string
	err := c.eachPrimary(ctx, func(ctx context.Context, r redis.Cmdable) error {
		some, err := scan(ctx, r, prefix)
		mu.Lock()
		defer mu.Unlock()
		names = append(names, some...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("redislock: list: %w", err)
	}
	slices.Sort(names)
	names = slices.Compact(names) // SCAN may return a key twice
	var list []piton.Held
	for chunk := range slices.Chunk(names, mostInPipeline) {
		held, err := c.describe(ctx, chunk)
		if err != nil {
			return nil, err
		}
		list = append(list, held...)
		if limit > 0 && len(list) >= limit {
			return list[:limit], nil
		}
	}
	return list, nil
}

// scan returns the names of the locks that one server has.
func scan(ctx context.Context, r redis.Cmdable, prefix string) (names []string, err error) {
	pattern := "piton:{" + globEscaper.Replace(escaper.Replace(prefix)) + "*}:lock"
	for cursor := uint64(0); ; {
		keys, next, err := r.Scan(ctx, cursor, pattern, 1000).Result()
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			if name, ok := lockOf(key); ok && strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
		if cursor = next; cursor == 0 {
			return names, nil
		}
	}
}

var globEscaper = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)

// describe looks locks up, leaving out those that are free.
func (c *Coordinator) describe(ctx context.Context, locks []string) ([]piton.Held, error) {
	pipe := c.client.Pipeline()
	fields := make([]*redis.SliceCmd, len(locks))
	left := make([]*redis.DurationCmd, len(locks))
	for i, lock := range locks {
		fields[i] = pipe.HMGet(ctx, key(lock, "lock"), "token", "owner")
		left[i] = pipe.PTTL(ctx, key(lock, "lock"))
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		c.refresh(err)
		return nil, fmt.Errorf("redislock: inspect: %w", err)
	}
	var list []piton.Held
	for i, lock := range locks {
		values := fields[i].Val()
		text, _ := values[0].(string)
		token, err := strconv.ParseInt(text, 10, 64)
		if err != nil || left[i].Val() < 0 {
			continue
		}
		owner, _ := values[1].(string)
		list = append(list, piton.Held{Lock: lock, Token: piton.Token(token), Owner: owner, Remaining: max(left[i].Val(), time.Millisecond)})
	}
	return list, nil
}
