package main

import (
	"os"
	"strings"
	"syscall"

	"github.com/pitonlock/piton/cmd/piton/internal/backend"
)

// urlFlags take URLs, which may hold passwords.
var urlFlags = map[string]string{
	"--coordinator": "PITON_COORDINATOR",
	"--guard":       "PITON_GUARD",
	"--storage":     "PITON_STORAGE",
}

// movedVar names the variables that hideURLs has set, for the process it becomes.
const movedVar = "PITON_MOVED"

var moved = map[string]bool{}

func movedHere(name string) bool { return moved[name] }

// hideURLs takes URLs with passwords off the command line, where every user of
// the machine reads them, and puts them into the environment, which only the same
// user can read: the process executes itself again. Where that fails it goes on.
func hideURLs() {
	for _, name := range strings.Fields(os.Getenv(movedVar)) {
		moved[name] = true
	}
	_ = os.Unsetenv(movedVar)
	args, env := moveURLs(os.Args)
	if len(env) == 0 {
		return
	}
	exe, err := os.Executable()
	if err != nil {
		return
	}
	names := make([]string, 0, len(env))
	full := os.Environ()
	for name, value := range env {
		names = append(names, name)
		full = append(without(full, name), name+"="+value)
	}
	full = append(full, movedVar+"="+strings.Join(names, " "))
	_ = syscall.Exec(exe, args, full)
}

// moveURLs returns args without the URL flags of which one has a password, and
// their values by variable. What comes after -- is the command's.
func moveURLs(args []string) (rest []string, env map[string]string) {
	own, _ := splitCommand(args[1:])
	own = args[:1+len(own)]
	values := map[string][]string{}
	secret := map[string]bool{}
	position := map[int]string{} // words that belong to a URL flag
	for i := 0; i < len(own); i++ {
		flag, value, joined := strings.Cut(own[i], "=")
		name, ok := urlFlags[flag]
		if !ok || !joined && i+1 == len(own) {
			continue
		}
		position[i] = name
		if !joined {
			i++
			value = own[i]
			position[i] = name
		}
		values[name] = append(values[name], value)
		secret[name] = secret[name] || backend.HasPassword(value)
	}
	env = map[string]string{}
	for i, arg := range args {
		name, ok := position[i]
		if !ok || !secret[name] {
			rest = append(rest, arg)
			continue
		}
		env[name] = strings.Join(values[name], " ")
		if name != "PITON_GUARD" { // the last one counts
			env[name] = values[name][len(values[name])-1]
		}
	}
	return rest, env
}

func without(env []string, name string) []string {
	kept := env[:0:0]
	for _, kv := range env {
		if !strings.HasPrefix(kv, name+"=") {
			kept = append(kept, kv)
		}
	}
	return kept
}
