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
	unknown := c.send(ctx, grants, results)
	if !unknown {
		return
	}
	// The server has lost the script. Renewing twice does no harm, so the whole
	// pipeline is sent again.
	if err := renewScript.Load(ctx, c.client).Err(); err == nil {
		c.send(ctx, grants, results)
	}
}

// send renews by one pipeline. unknown says that the server did not know the script.
func (c *Coordinator) send(ctx context.Context, grants []piton.Grant, results []piton.RenewResult) (unknown bool) {
	pipe := c.client.Pipeline()
	commands := make([]*redis.Cmd, len(grants))
	for i, g := range grants {
		if err := checkGrant(g); err != nil {
			results[i] = piton.RenewResult{Err: err}
			continue
		}
		keys, args := renewal(g)
		commands[i] = renewScript.EvalSha(ctx, pipe, keys, args...)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, command := range commands {
		if command == nil {
			continue
		}
		reply, err := command.Slice()
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			unknown = true
		}
		results[i].Grant, results[i].Err = renewed(grants[i], reply, err)
	}
	return unknown
}
