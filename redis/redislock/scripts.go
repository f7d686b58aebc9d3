package redislock

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"

	"github.com/pitonlock/piton"
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

// script is one step.
type script struct{ source, hash string }

// scripts are all steps.
type scripts struct {
	acquire, renew, release, breaks script
}

// newScripts sets the constants, and how an inbox is reached.
func newScripts(publish, channel string) *scripts {
	head := fmt.Sprintf("local most, idle, claim, linger, publish = %d, %d, %d, %d, '%s'\nlocal function channel(inbox) return %s end\n",
		int64(piton.MaxToken), Idle.Milliseconds(), Claim.Milliseconds(), linger.Milliseconds(), publish, channel)
	step := func(source string) script {
		source = head + commonSource + source
		hash := sha1.Sum([]byte(source)) // Redis's own name for a script
		return script{source, hex.EncodeToString(hash[:])}
	}
	return &scripts{acquire: step(acquireSource), renew: step(renewSource), release: step(releaseSource), breaks: step(breakSource)}
}
