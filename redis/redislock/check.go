package redislock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Check looks for settings of the server, or of each primary of a Cluster, under
// which it forgets locks, and returns one sentence for each. It needs no privileges
// beyond INFO.
func (c *Coordinator) Check(ctx context.Context) (warnings []string, err error) {
	var mu sync.Mutex
	err = c.eachPrimary(ctx, func(ctx context.Context, r redis.Cmdable) error {
		info, err := r.Info(ctx, "memory").Result()
		for line := range strings.Lines(info) {
			policy, ok := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:")
			if ok && policy != "noeviction" {
				mu.Lock()
				warnings = append(warnings, fmt.Sprintf("maxmemory-policy is %s, under which a full server may evict a lock that is held; set noeviction", policy))
				mu.Unlock()
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("redislock: check: %w", err)
	}
	slices.Sort(warnings)
	return slices.Compact(warnings), nil
}

// eachPrimary calls f for the server, or for each primary of a Cluster, at the same time.
func (c *Coordinator) eachPrimary(ctx context.Context, f func(ctx context.Context, r redis.Cmdable) error) error {
	if cluster, ok := c.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, r *redis.Client) error { return f(ctx, r) })
	}
	return f(ctx, c.client)
}
