//go:build !linux

package main

import "runtime"

func watching() bool { return false }

func proving() bool { return false }

// Run refuses: without the kernel's child subreaper and parent-death signal,
// piton could not promise that nothing of the command outlives the lease.
func (c *runCmd) Run() error {
	return &exitError{exitUsage, "piton run works on Linux only, not on " + runtime.GOOS + ": it needs the kernel's child subreaper to end everything that the command started"}
}

// Run refuses: the workers of the proof must die with it, stopped or not.
func (c *proveCmd) Run() error {
	return &exitError{exitUsage, "piton prove works on Linux only, not on " + runtime.GOOS + ": its workers are tied to it by the kernel's parent-death signal"}
}
