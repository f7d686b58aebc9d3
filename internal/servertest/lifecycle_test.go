//go:build linux

package servertest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitonlock/piton/internal/process"
)

// TestHelper is what the other process of the tests below does.
func TestHelper(t *testing.T) {
	switch os.Getenv(helperVariable) {
	case "servers":
		servers := []*Server{StartRedis(t).Server, StartEtcd(t).Server, StartPostgres(t).Server, StartMariaDB(t).Server}
		for _, s := range servers {
			children, err := process.Descendants(s.Pid())
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println("server", s.folder, s.Pid(), strings.Trim(fmt.Sprint(children), "[]"))
		}
		fmt.Println("ready")
		select {} // until killed
	case "missing":
		_, err := find("no-such-server", "no-such-package")
		check(t, err)
	default:
		t.Skip("started by other tests only")
	}
}

func helper(t *testing.T, name string, environment ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelper$", "-test.v")
	command.Env = append(append(os.Environ(), helperVariable+"="+name, "GORACE=atexit_sleep_ms=0"), environment...)
	return command
}

// requireAll skips the test when one of the servers is missing.
func requireAll(t *testing.T) {
	t.Helper()
	for program, debian := range map[string]string{
		"redis-server": "redis-server", "etcd": "etcd-server", "postgres": "postgresql", "mariadbd": "mariadb-server",
	} {
		_, err := find(program, debian)
		check(t, err)
	}
}

// startRun starts another test run with a server of each kind and returns the
// run's folder and all processes of the servers.
func startRun(t *testing.T) (command *exec.Cmd, folder string, pids []int) {
	t.Helper()
	requireAll(t)
	command = helper(t, "servers")
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait() // it was killed
	})
	var said []string
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if lines.Text() == "ready" {
			return command, folder, pids
		}
		said = append(said, lines.Text())
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || fields[0] != "server" {
			continue
		}
		folder = filepath.Dir(fields[1])
		for _, field := range fields[2:] {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	t.Fatalf("the other run has not become ready:\n%s", strings.Join(said, "\n"))
	return nil, "", nil
}

func living(pids []int) (alive []int) {
	for _, pid := range pids {
		if process.Alive(pid) {
			alive = append(alive, pid)
		}
	}
	return alive
}

func TestKilledRunLeavesNoServer(t *testing.T) {
	SharedRedis(t) // so that this run has its folder and has swept
	command, folder, pids := startRun(t)
	if len(pids) < 6 || len(living(pids)) != len(pids) {
		t.Fatalf("processes of the servers: %v, of which live %v; want one and one, and several of PostgreSQL", pids, living(pids))
	}
	if err := sweep(run.base); err != nil {
		t.Fatal(err)
	}
	if len(living(pids)) != len(pids) {
		t.Fatal("sweeping has killed the servers of a living run")
	}
	before := memoryOf(t, folder)
	if !strings.Contains(memory(t), before) {
		t.Fatalf("PostgreSQL's shared memory %q is not in the system's list:\n%s", before, memory(t))
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait() // it was killed
	Eventually(t, 5*time.Second, func() bool { return len(living(pids)) == 0 }, "end of all servers")
	sweptAway(t, folder, pids)
	if strings.Contains(memory(t), before) {
		t.Errorf("the killed PostgreSQL's shared memory %q is still there", before)
	}
}

// memory is the system's list of shared memory, with single blanks.
func memory(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

// memoryOf is key and id of the shared memory of PostgreSQL in the run's folder.
func memoryOf(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*/data/postmaster.pid"))
	if err != nil || len(files) != 1 {
		t.Fatalf("PostgreSQL's pid files: %v, %v; want one", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(strings.Split(string(text), "\n")[6]), " ")
}

// The kernel takes the end of the thread that started a process for the end of
// the parent.
func TestServerOutlivesTheStartingThread(t *testing.T) {
	type started struct {
		server *Redis
		err    error
		thread int
	}
	result := make(chan started)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with this goroutine
		server, err := startRedis()
		result <- started{server, err, syscall.Gettid()}
	}()
	got := <-result
	server := own(t, got.server, got.err)
	Eventually(t, 5*time.Second, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", got.thread))
		return errors.Is(err, os.ErrNotExist)
	}, "end of the thread")
	expectRedis(t, server, "PING", "+PONG")
}

// A stopped child does not notice that its parent was killed; the next run has to.
func TestNextRunRemovesPausedLeftovers(t *testing.T) {
	SharedRedis(t)
	command, folder, pids := startRun(t)
	for _, pid := range pids {
		if err := process.Pause(pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait() // it was killed
	sweptAway(t, folder, pids)
}

func sweptAway(t *testing.T, folder string, pids []int) {
	t.Helper()
	if err := sweep(run.base); err != nil {
		t.Fatal(err)
	}
	if alive := living(pids); len(alive) > 0 {
		t.Errorf("processes %v have outlived sweeping", alive)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder of the killed run: %v; want none", err)
	}
}

func TestMissingServerSkips(t *testing.T) {
	for _, test := range []struct {
		ci, want string
		passes   bool
	}{
		{"", "--- SKIP: TestHelper", true},
		{"true", "--- FAIL: TestHelper", false},
	} {
		output, err := helper(t, "missing", "CI="+test.ci).CombinedOutput()
		if (err == nil) != test.passes || !strings.Contains(string(output), test.want) ||
			!strings.Contains(string(output), "no-such-server is not installed (Debian package no-such-package)") {
			t.Errorf("CI=%s: %v\n%s", test.ci, err, output)
		}
	}
}

func TestRedisTakesAnotherPort(t *testing.T)    { takesAnotherPort(t, StartRedis(t).Server) }
func TestEtcdTakesAnotherPort(t *testing.T)     { takesAnotherPort(t, StartEtcd(t).Server) }
func TestPostgresTakesAnotherPort(t *testing.T) { takesAnotherPort(t, StartPostgres(t).Server) }
func TestMariaDBTakesAnotherPort(t *testing.T)  { takesAnotherPort(t, StartMariaDB(t).Server) }

func takesAnotherPort(t *testing.T, s *Server) {
	s.Kill(t)
	taken, err := net.Listen("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	tries := []int{s.port}
	err = s.start(func() (int, error) {
		port := tries[len(tries)-1]
		next, err := freePort()
		tries = append(tries, next)
		return port, err
	})
	if err != nil || s.Addr() == taken.Addr().String() || len(tries) != 3 {
		t.Errorf("started on %s with ports %v: %v; want the second port after one failure", s.Addr(), tries, err)
	}
}

func TestAnswersOfAnotherServerDoNotCount(t *testing.T) {
	other, s := StartRedis(t), StartRedis(t)
	s.Kill(t)
	s.port = other.port
	if err := s.launch(); err == nil || !strings.Contains(err.Error(), "Address already in use") {
		t.Errorf("start on another server's port: %v; want an error", err)
	}
}

func TestFailedStartTellsLastWords(t *testing.T) {
	_, err := startRedis("--maxmemory", "nonsense")
	var missing *missingError
	if errors.As(err, &missing) {
		check(t, err)
	}
	if err == nil || !strings.Contains(err.Error(), "ended before it was ready") || !strings.Contains(err.Error(), "FATAL CONFIG FILE ERROR") {
		t.Errorf("error of a server that cannot start: %v", err)
	}
}

func TestFolderForOtherUsers(t *testing.T) {
	open, err := os.MkdirTemp("/tmp", "piton-servertest-open-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(open) })
	for _, test := range []struct {
		mode   os.FileMode
		inside bool
	}{{0o755, true}, {0o700, false}} {
		if err := os.Chmod(open, test.mode); err != nil {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", open)
		base, err := baseFolder()
		if err != nil || strings.HasPrefix(base, open+"/") != test.inside {
			t.Errorf("temporary folder %v: base folder %s, %v; want it inside: %v", test.mode, base, err, test.inside)
			continue
		}
		if err := passable(base); err != nil {
			t.Error(err)
		}
	}
}
