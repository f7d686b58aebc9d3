package servertest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// errSystem is no error here.
var errSystem = errors.New("servers are started on Linux only")

// account is the user that a server runs as.
type account struct{ uid, gid uint32 }

// attributes make the kernel kill the process when the thread that started it
// ends. Its own process group keeps it away from signals of the terminal.
func attributes(user *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if user != nil {
		attr.Credential = &syscall.Credential{Uid: user.uid, Gid: user.gid}
	}
	return attr
}

// launches are the starts that the lasting thread is asked for.
var launches = sync.OnceValue(func() chan<- func() {
	requests := make(chan func())
	go func() {
		runtime.LockOSThread() // for ever: the kernel watches this thread
		for request := range requests {
			request()
		}
	}()
	return requests
})

// startFromLastingThread starts the command from a thread that lives as long as
// this process. The kernel takes the end of the starting thread for the end of
// the parent, and the runtime ends threads as it likes.
func startFromLastingThread(command *exec.Cmd) error {
	result := make(chan error)
	launches() <- func() { result <- command.Start() }
	return <-result
}

// find returns the path of a program.
func find(program, debian string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return filepath.Abs(path)
	}
	places, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + program)
	if err != nil {
		return "", err
	}
	slices.Reverse(places) // the newest version first
	for _, path := range append(places, "/usr/sbin/"+program) {
		if found, err := exec.LookPath(path); err == nil {
			return found, nil
		}
	}
	return "", &missingError{program, debian}
}

// lockFile waits for the lock on a file and returns how to release it.
func lockFile(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("locking %s: %w", path, errors.Join(err, file.Close()))
	}
	return func() { _ = file.Close() }, nil
}

// tryLock locks a file until it is closed, or finds that it is not free.
func tryLock(path string) (file *os.File, free bool, err error) {
	file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return file, true, nil
	}
	closeErr := file.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, false, closeErr
	}
	return nil, false, fmt.Errorf("locking %s: %w", path, err)
}

// owned is nil when the path is a folder of this user, not a trap of another.
func owned(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Getuid() {
		return fmt.Errorf("%s is not a folder of user %d; remove it", path, os.Getuid())
	}
	return nil
}

// processesIn returns the processes that have their working folder in this one,
// as all servers have.
func processesIn(folder string) []int {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is well-formed
	var pids []int
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(target, folder+"/") {
			continue // ended, or somebody else's
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// listens is nil when the process itself listens on the port of 127.0.0.1.
func listens(pid, port int) error {
	file, err := os.Open("/proc/net/tcp")
	if err != nil {
		return err
	}
	defer file.Close()
	const listening = "0A"
	address := fmt.Sprintf("0100007F:%04X", port)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // number, local, remote, state, ..., inode
		if len(fields) < 10 || fields[1] != address || fields[3] != listening {
			continue
		}
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is well-formed
		for _, link := range files {
			if target, err := os.Readlink(link); err == nil && target == "socket:["+fields[9]+"]" {
				return nil
			}
		}
		return fmt.Errorf("somebody else listens on port %d", port)
	}
	return fmt.Errorf("nobody listens on port %d", port)
}

// unprivileged returns the user that a server runs as which refuses root: nil for
// the test's own, when that is not root.
func unprivileged(preferred string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	found, err := user.Lookup(preferred)
	if err != nil {
		found, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, fmt.Errorf("a user other than root is needed: %w", err)
	}
	uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(found.Gid, 10, 32)
	return &account{uint32(uid), uint32(gid)}, errors.Join(uidErr, gidErr)
}

// giveTo makes the user the owner of a file or folder.
func giveTo(user *account, path string) error {
	if user == nil {
		return nil
	}
	return os.Lchown(path, int(user.uid), int(user.gid))
}

// removeFolder removes the folder with all that is in it, and the piece of shared
// memory by which PostgreSQL recognizes its data folder and which stays when it is
// killed. The system has few of them.
func removeFolder(folder string) error {
	for _, pattern := range []string{"data/postmaster.pid", "*/data/postmaster.pid"} {
		files, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			return err
		}
		for _, file := range files {
			if err := removeMemory(file); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(folder)
}

// removeMemory removes the piece of shared memory that line 7 of the file names by
// key and id, if it is there and nobody uses it.
func removeMemory(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return nil // killed before it had any
	}
	wanted := strings.Fields(lines[6])
	pieces, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil || len(wanted) != 2 {
		return err
	}
	for line := range strings.Lines(string(pieces)) {
		fields := strings.Fields(line) // key, id, mode, size, creator, last, number of users, ...
		if len(fields) > 6 && fields[0] == wanted[0] && fields[1] == wanted[1] && fields[6] == "0" {
			_, err := runTool(nil, "/", "ipcrm", "-m", wanted[1])
			return err
		}
	}
	return nil
}

func sendSignal(pid int, signal syscall.Signal) error { return syscall.Kill(pid, signal) }

// roomy tells whether some servers find room in the folder.
func roomy(folder string) bool {
	const wanted = 1 << 30
	var stat syscall.Statfs_t
	return syscall.Statfs(folder, &stat) == nil && stat.Bavail*uint64(stat.Bsize) >= wanted
}
