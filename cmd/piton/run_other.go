//go:build !linux

package main

import "runtime"

func watching() bool { return false }

// Run refuses: without the kernel's child subreaper and parent-death signal,
// piton could not promise that nothing of the command outlives the lease.
func (c *runCmd) Run() error {
	return &exitError{exitUsage, "piton run works on Linux only, not on " + runtime.GOOS + ": it needs the kernel's child subreaper to end everything that the command started"}
}
