package servertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// run is the folder of this test process. A lock on a file in it lasts as long
// as the process and tells others that the folder is in use.
var run struct {
	sync.Mutex
	base, folder string
	alive        *os.File
}

// newFolder makes a new, empty folder in the run's folder.
func newFolder(name string) (string, error) {
	run.Lock()
	defer run.Unlock()
	if run.folder == "" {
		if err := beginRun(); err != nil {
			return "", fmt.Errorf("folder for %s: %w", name, err)
		}
	}
	return os.MkdirTemp(run.folder, name+"-")
}

// beginRun makes the run's folder and removes those of dead runs. A lock keeps
// others from taking a folder for dead that is not locked yet.
func beginRun() error {
	base, err := baseFolder()
	if err != nil {
		return err
	}
	unlock, err := lockFile(filepath.Join(base, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := sweep(base); err != nil {
		return err
	}
	folder, err := os.MkdirTemp(base, "run-")
	if err != nil {
		return err
	}
	alive, free, err := tryLock(filepath.Join(folder, "alive"))
	if err != nil || !free {
		return fmt.Errorf("locking %s/alive: free %v: %w", folder, free, err)
	}
	run.base, run.folder, run.alive = base, folder, alive
	return os.Chmod(folder, 0o711) // passable for the servers' users
}

// endRun removes the run's folder.
func endRun() error {
	run.Lock()
	defer run.Unlock()
	if run.folder == "" {
		return nil
	}
	err := errors.Join(removeFolder(run.folder), run.alive.Close())
	run.folder = ""
	return err
}

// sweep removes the folders of runs whose process has ended, and the processes
// that still work in them.
func sweep(base string) error {
	folders, err := filepath.Glob(filepath.Join(base, "run-*"))
	if err != nil {
		return err
	}
	for _, folder := range folders {
		alive, free, err := tryLock(filepath.Join(folder, "alive"))
		if err != nil {
			return err
		}
		if !free {
			continue
		}
		err = errors.Join(killAll(processesIn(folder)), removeFolder(folder), alive.Close())
		if err != nil {
			return fmt.Errorf("removing the leftovers of a dead run: %w", err)
		}
	}
	return nil
}

// baseFolder is a folder of this user in the first temporary folder that other
// users can pass, since a server may run as another one. Unless TMPDIR tells
// otherwise, that is one in memory: on some disks it takes a second to make the
// thousand files of a database.
func baseFolder() (string, error) {
	places := []string{os.TempDir(), "/tmp", "/var/tmp"}
	if os.Getenv("TMPDIR") == "" && roomy("/dev/shm") {
		places = append([]string{"/dev/shm"}, places...)
	}
	var problems error
	for _, temporary := range places {
		base, err := baseIn(temporary)
		if err == nil {
			return base, nil
		}
		problems = errors.Join(problems, err)
	}
	return "", fmt.Errorf("no temporary folder for servers: %w", problems)
}

func baseIn(temporary string) (string, error) {
	temporary, err := filepath.EvalSymlinks(temporary)
	if err != nil {
		return "", err
	}
	if err := passable(temporary); err != nil {
		return "", err
	}
	base := filepath.Join(temporary, fmt.Sprintf("piton-servertest-%d", os.Getuid()))
	if err := os.Mkdir(base, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	if err := owned(base); err != nil {
		return "", err
	}
	return base, os.Chmod(base, 0o711)
}

// passable is nil when every user may go through the folder.
func passable(folder string) error {
	for ; ; folder = filepath.Dir(folder) {
		info, err := os.Stat(folder)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("%s is closed to other users (%v)", folder, info.Mode().Perm())
		}
		if folder == filepath.Dir(folder) {
			return nil
		}
	}
}
