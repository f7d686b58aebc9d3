package sqlitelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton"
)

func TestOddPaths(t *testing.T) {
	for _, name := range []string{
		"a b.db", "what?.db", "c#d.db", "100%.db", "%41.db", "?mode=memory", "a&b=c", "a;b", "q'uote\".db", "\U0001F9D7.db", "deep/er/locks.db", ":memory: ",
	} {
		folder := filepath.Join(t.TempDir(), "new")
		path := filepath.Join(folder, name)
		take(t, openReal(t, path), "a", "h1")
		_, err := openReal(t, path).Acquire(ctx, request("a", "h2"))
		wantHeld(t, err)
		for file, want := range map[string]os.FileMode{path: 0o600, folder: 0o700, path + "-wal": 0o600, path + "-shm": 0o600} {
			info, err := os.Stat(file)
			if err != nil {
				t.Errorf("%q: %v", name, err)
			} else if info.Mode().Perm() != want {
				t.Errorf("%s has mode %v, want %v", file, info.Mode().Perm(), want)
			}
		}
	}
}

func TestARelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	take(t, openReal(t, "locks.db"), "a", "h")
	if _, err := os.Stat("locks.db"); err != nil {
		t.Fatal(err)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	folder := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	newer := filepath.Join(folder, "newer.db")
	if err := openReal(t, newer).Close(); err != nil {
		t.Fatal(err)
	}
	run(t, foreign(t, newer), "UPDATE piton_floor SET version = 2")
	dangling := filepath.Join(folder, "dangling")
	if err := os.Symlink(filepath.Join(folder, "nowhere"), dangling); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ path, want string }{
		{"", "path is empty"},
		{":memory:", "memlock"},
		{"file:x.db", "is a URI"},
		{"a\x00b", "NUL"},
		{folder, "is a folder"},
		{file("text", strings.Repeat("not a database\n", 100)), "not a SQLite database"},
		{filepath.Join(file("plain", ""), "locks.db"), "folder of"},
		{"/dev/null", "not a regular file"},
		{dangling, "no such file"},
		{newer, "version 2"},
	} {
		c, err := Open(test.path)
		if err == nil {
			_ = c.Close()
			t.Errorf("%q was opened", test.path)
			continue
		}
		if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %q, want one line with %q", test.path, err, test.want)
		}
	}
}

func TestOpenWithoutPermission(t *testing.T) {
	folder := t.TempDir()
	for at := folder; at != "/"; at = filepath.Dir(at) { // another user must get to the file
		if info, err := os.Stat(at); err != nil || info.Mode().Perm()&1 == 0 {
			if err := os.Chmod(at, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	path := filepath.Join(folder, "locks.db")
	if err := openReal(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		file, folder os.FileMode
		want         string
	}{
		{0o444, 0o777, "cannot be read and written"},
		{0o666, 0o555, "folder"},
	} {
		if err := errors.Join(os.Chmod(path, test.file), os.Chmod(folder, test.folder)); err != nil {
			t.Fatal(err)
		}
		out, err := part("open-as-nobody", path).CombinedOutput()
		if err != nil || !strings.Contains(string(out), test.want) {
			t.Errorf("got %q (%v), want %q", out, err, test.want)
		}
	}
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestADamagedFileIsAnOutage(t *testing.T) {
	path := newPath(t)
	c := openReal(t, path)
	for _, lock := range []string{"a", "b", "c"} {
		take(t, c, lock, "h")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1024; i < len(raw); i++ {
		raw[i] ^= 0x5a
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err = Open(path)
	if err == nil {
		_, err = c.Acquire(ctx, request("d", "h"))
		_ = c.Close()
	}
	if !errors.Is(err, piton.ErrUnavailable) || !strings.Contains(err.Error(), "damaged") {
		t.Fatal(err)
	}
}

// Other processes would use the new file: going on with the old one would be a
// lock of one's own.
func TestAFileThatWasReplacedIsAnOutage(t *testing.T) {
	path := newPath(t)
	c := openReal(t, path)
	g := take(t, c, "a", "h")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	check := func(err error) {
		t.Helper()
		if !errors.Is(err, piton.ErrUnavailable) || !strings.Contains(err.Error(), "removed or replaced") {
			t.Fatal(err)
		}
	}
	_, err := c.Renew(ctx, g)
	check(err)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = c.Renew(ctx, g)
	check(err)
	_, err = c.Acquire(ctx, request("b", "h"))
	check(err)
}

func TestAFileWithOtherTablesIsShared(t *testing.T) {
	path := newPath(t)
	conn := foreign(t, path)
	run(t, conn, "CREATE TABLE accounts (id INTEGER)")
	run(t, conn, "INSERT INTO accounts VALUES (7)")
	take(t, openReal(t, path), "a", "h")
	if n := number(t, conn, "SELECT id FROM accounts"); n != 7 {
		t.Fatal(n)
	}
}

// D03a: a foreign transaction keeps the file busy for 3 s of a lease of 10 s.
func TestTransientRenewalErrorIsNotLoss(t *testing.T) {
	path := newPath(t)
	c, contender := openReal(t, path), openReal(t, path)
	g := take(t, c, "a", "h1")
	other := foreign(t, path)
	run(t, other, "BEGIN IMMEDIATE")
	busy := time.Now()
	refusals := 0
	for time.Since(busy) < 3*time.Second {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		sent := time.Now()
		_, err := c.Renew(short, g)
		cancel()
		if !errors.Is(err, piton.ErrUnavailable) || errors.Is(err, piton.ErrLost) || !isBusy(err) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("renewal while the file is busy: %v", err)
		}
		if took := time.Since(sent); took > time.Second {
			t.Fatalf("the context of 300ms was kept waiting for %v", took)
		}
		if _, err := contender.Acquire(ctx, request("a", "h2")); !errors.Is(err, piton.ErrHeld) {
			t.Fatalf("contender: %v", err)
		}
		refusals++
		short, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
		_, err = contender.Acquire(short, request("free", "h2"))
		cancel()
		if !errors.Is(err, piton.ErrUnavailable) || errors.Is(err, piton.ErrHeld) {
			t.Fatalf("acquire of a free lock while the file is busy: %v", err)
		}
	}
	run(t, other, "ROLLBACK")
	if again, err := c.Renew(ctx, g); err != nil || again != g {
		t.Fatal(again, err)
	}
	if held, ok, err := contender.Get(ctx, "a"); !ok || err != nil || held.Token != g.Token || held.Remaining < 9*time.Second {
		t.Fatal(held, ok, err)
	}
	if refusals < 3 {
		t.Fatalf("only %d tries", refusals)
	}
}

func TestAShortBusyTimeIsWaitedOut(t *testing.T) {
	path := newPath(t)
	c, other := openReal(t, path), foreign(t, path)
	run(t, other, "BEGIN IMMEDIATE")
	time.AfterFunc(200*time.Millisecond, func() { run(t, other, "ROLLBACK") })
	take(t, c, "a", "h")
}

func TestCancellationEndsTheWaitForABusyFile(t *testing.T) {
	path := newPath(t)
	c, other := openReal(t, path), foreign(t, path)
	run(t, other, "BEGIN IMMEDIATE")
	stopped, cancel := context.WithCancel(ctx)
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err := c.Acquire(stopped, request("a", "h"))
	if !errors.Is(err, context.Canceled) || errors.Is(err, piton.ErrHeld) {
		t.Fatal(err)
	}
	run(t, other, "ROLLBACK")
	if _, ok, err := c.Get(ctx, "a"); ok || err != nil {
		t.Fatalf("the cancelled attempt was carried out: %v", err)
	}
}
