//go:build linux

package group

import (
	"bytes"
	"os"
	"strconv"
)

// process is one line of the process table.
type process struct{ pid, ppid, pgrp int }

// descendants returns every living process below root, parents first. It reads
// /proc once and not atomically: a process born meanwhile is missed, and found
// by the next call.
func descendants(root int) []process {
	children := map[int][]process{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		if p, ok := parseStat(pid, stat); ok {
			children[p.ppid] = append(children[p.ppid], p)
		}
	}
	var found []process
	for next := []int{root}; len(next) > 0; next = next[1:] {
		for _, p := range children[next[0]] {
			found = append(found, p)
			next = append(next, p.pid)
		}
	}
	return found
}

// parseStat reads `pid (comm) state ppid pgrp ...`; comm may hold anything, so
// the fields are counted from the last parenthesis. Zombies are left out.
func parseStat(pid int, stat []byte) (process, bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return process{}, false
	}
	fields := bytes.Fields(stat[i+1:])
	if len(fields) < 3 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return process{}, false
	}
	ppid, err1 := strconv.Atoi(string(fields[1]))
	pgrp, err2 := strconv.Atoi(string(fields[2]))
	return process{pid, ppid, pgrp}, err1 == nil && err2 == nil
}

func pidsOf(ps []process) []int {
	pids := make([]int, len(ps))
	for i, p := range ps {
		pids[i] = p.pid
	}
	return pids
}
