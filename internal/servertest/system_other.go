//go:build !linux

package servertest

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// errSystem is what every attempt to start a server gets here; it skips the test.
var errSystem = errors.New("servers are started on Linux only; this is " + runtime.GOOS)

// find is the first step of every start, so that no other one is taken here.
func find(string, string) (string, error) { return "", errSystem }

type account struct{}

func attributes(*account) *syscall.SysProcAttr { return nil }
func startFromLastingThread(*exec.Cmd) error   { return errSystem }
func lockFile(string) (func(), error)          { return nil, errSystem }
func tryLock(string) (*os.File, bool, error)   { return nil, false, errSystem }
func owned(string) error                       { return errSystem }
func processesIn(string) []int                 { return nil }
func listens(int, int) error                   { return errSystem }
func removeFolder(string) error                { return errSystem }
func sendSignal(int, syscall.Signal) error     { return errSystem }
func unprivileged(string) (*account, error)    { return nil, errSystem }
func giveTo(*account, string) error            { return errSystem }
func roomy(string) bool                        { return false }
