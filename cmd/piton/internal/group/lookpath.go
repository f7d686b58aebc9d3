//go:build linux

package group

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// LookPath finds the file that a shell would run for name: name itself when it
// has a slash, else the first executable in path. The error is ENOENT when there
// is none and EACCES when there is one that may not be executed.
func LookPath(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	err := error(syscall.ENOENT)
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		file := filepath.Join(dir, name)
		if !strings.Contains(file, "/") {
			file = "./" + file
		}
		switch e := executable(file); e {
		case nil:
			return file, nil
		case syscall.EACCES:
			err = e
		}
	}
	return "", err
}

func executable(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return syscall.ENOENT
	}
	if info.IsDir() || unix.Access(file, unix.X_OK) != nil {
		return syscall.EACCES
	}
	return nil
}
