//go:build !linux

package sqlitelock

import (
	"errors"
	"fmt"
	"runtime"
)

// thisMachine fails: only Linux has both a clock that counts suspend and goes
// on across processes, and an id that changes at each boot.
func thisMachine() (machine, error) {
	return machine{}, fmt.Errorf("the embedded coordinator needs Linux for its boot clock and boot id, and this is %s; use another coordinator, such as redis or memlock", runtime.GOOS)
}

func createFile(path, _ string) error { return errors.New(path + ": not on this system") }

func writable(string) error { return nil }

func onNetwork(string) (string, bool) { return "", false }
