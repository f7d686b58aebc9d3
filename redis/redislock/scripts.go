package redislock

import (
	_ "embed"
	"fmt"

	"github.com/pitonlock/piton"
	"github.com/redis/go-redis/v9"
)

var (
	//go:embed common.lua
	commonSource string
	//go:embed acquire.lua
	acquireSource string
	//go:embed renew.lua
	renewSource string
	//go:embed release.lua
	releaseSource string
	//go:embed break.lua
	breakSource string

	onServer = newScripts("PUBLISH", "'piton:to:' .. inbox")
	// What is published on a Cluster in the usual way reaches every node, and its
	// sender learns nothing of who listens; a sharded channel lives with its slot.
	onCluster = newScripts("SPUBLISH", "string.sub(KEYS[1], 1, -5) .. 'to:' .. inbox")
)

// scripts are the steps, each one script.
type scripts struct {
	acquire, renew, release, breaks *redis.Script
}

// newScripts sets the constants, and how an inbox is reached.
func newScripts(publish, channel string) *scripts {
	head := fmt.Sprintf("local most, idle, claim, linger, publish = %d, %d, %d, %d, '%s'\nlocal function channel(inbox) return %s end\n",
		int64(piton.MaxToken), Idle.Milliseconds(), Claim.Milliseconds(), linger.Milliseconds(), publish, channel)
	script := func(source string) *redis.Script { return redis.NewScript(head + commonSource + source) }
	return &scripts{acquire: script(acquireSource), renew: script(renewSource), release: script(releaseSource), breaks: script(breakSource)}
}
