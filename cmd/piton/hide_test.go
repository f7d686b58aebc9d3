package main

import (
	"maps"
	"slices"
	"testing"
)

func TestMoveURLs(t *testing.T) {
	for _, c := range []struct {
		name       string
		args, rest []string
		env        map[string]string
	}{
		{
			"no password",
			[]string{"piton", "run", "--coordinator", "redis://h", "l", "--", "x"},
			[]string{"piton", "run", "--coordinator", "redis://h", "l", "--", "x"},
			map[string]string{},
		},
		{
			"two words",
			[]string{"piton", "run", "--coordinator", "redis://:p@h", "--ttl", "3s", "l", "--", "x"},
			[]string{"piton", "run", "--ttl", "3s", "l", "--", "x"},
			map[string]string{"PITON_COORDINATOR": "redis://:p@h"},
		},
		{
			"one word, last wins",
			[]string{"piton", "locks", "--coordinator=redis://:p@h", "--coordinator=redis://h2"},
			[]string{"piton", "locks"},
			map[string]string{"PITON_COORDINATOR": "redis://h2"},
		},
		{
			"guards stay together",
			[]string{"piton", "run", "--guard", "sqlite:///a", "l", "--guard=mysql://u:p@h/d", "--", "x"},
			[]string{"piton", "run", "l", "--", "x"},
			map[string]string{"PITON_GUARD": "sqlite:///a mysql://u:p@h/d"},
		},
		{
			"the command's own flags",
			[]string{"piton", "run", "l", "--", "piton", "locks", "--coordinator", "redis://:p@h"},
			[]string{"piton", "run", "l", "--", "piton", "locks", "--coordinator", "redis://:p@h"},
			map[string]string{},
		},
		{
			"value missing",
			[]string{"piton", "locks", "--coordinator"},
			[]string{"piton", "locks", "--coordinator"},
			map[string]string{},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			rest, env := moveURLs(c.args)
			if !slices.Equal(rest, c.rest) || !maps.Equal(env, c.env) {
				t.Fatalf("got %q %q, want %q %q", rest, env, c.rest, c.env)
			}
		})
	}
}
