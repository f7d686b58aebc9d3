package redislock

import (
	"context"

	"github.com/pitonlock/piton"
	"github.com/redis/go-redis/v9"
)

// mostInPipeline bounds how long one pipeline keeps the server busy and how much is
// repeated when its answer is lost.
const mostInPipeline = 250

// RenewBatch implements [piton.BatchRenewer] by pipelines of at most 250.
func (c *Coordinator) RenewBatch(ctx context.Context, grants []piton.Grant) []piton.RenewResult {
	results := make([]piton.RenewResult, len(grants))
	for start := 0; start < len(grants); start += mostInPipeline {
		end := min(start+mostInPipeline, len(grants))
		c.pipeline(ctx, grants[start:end], results[start:end])
	}
	return results
}

func (c *Coordinator) pipeline(ctx context.Context, grants []piton.Grant, results []piton.RenewResult) {
	all := make([]int, len(grants))
	for i := range all {
		all[i] = i
	}
	refused := c.send(ctx, grants, results, all)
	if len(refused) == 0 {
		return
	}
	// The server has lost the script, perhaps halfway. Only what it refused is sent
	// again, so that a renewal that was carried out keeps its result.
	if err := c.client.ScriptLoad(ctx, c.scripts.renew.source).Err(); err == nil {
		c.send(ctx, grants, results, refused)
	}
}

// send renews some of the grants by one pipeline. It returns those for which the
// server did not know the script.
func (c *Coordinator) send(ctx context.Context, grants []piton.Grant, results []piton.RenewResult, which []int) (refused []int) {
	pipe := c.client.Pipeline()
	commands := make(map[int]*redis.Cmd, len(which))
	for _, i := range which {
		if err := checkGrant(grants[i]); err != nil {
			results[i] = piton.RenewResult{Err: err}
			continue
		}
		commands[i] = pipe.EvalSha(ctx, c.scripts.renew.hash, keys(grants[i].Lock), renewal(grants[i])...)
	}
	_, err := pipe.Exec(ctx) // each command has its own error, too
	c.refresh(err)
	for i, command := range commands {
		reply, err := command.Slice()
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			refused = append(refused, i)
		}
		results[i].Grant, results[i].Err = renewed(grants[i], reply, err)
	}
	return refused
}
