package backend

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pitonlock/piton"
)

func TestRedact(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://u:s3cret@h:1/0":              "redis://u:xxxxx@h:1/0",
		"redis://:s3cret@h":                   "redis://:xxxxx@h",
		"redis://h:6379":                      "redis://h:6379",
		"redis://u:s3/c#r?et@h":               "redis://u:xxxxx@h",
		"redis://u:a@s3cret@h":                "redis://u:xxxxx@h",
		"postgres://h/db?password=s3cret&x=1": "postgres://h/db?password=xxxxx&x=1",
		"postgres://h/db?sslpassword=s3cret":  "postgres://h/db?sslpassword=xxxxx",
		"u:s3cret@tcp(h:1)/db":                "u:xxxxx@tcp(h:1)/db",
		"sqlite:///a/b@c.db":                  "sqlite:///a/b@c.db",
		"redis://u:s3cret":                    "redis://u:xxxxx",
		"redis://u:12s3cret/x":                "redis://u:xxxxx",
		"redis://[::1]:63/0":                  "redis://[::1]:63/0",
		"redis://h:63/0?x=a:b":                "redis://h:63/0?x=a:b",
		"memory:":                             "memory:",
		"redis+sentinel://h:1,h:2/name":       "redis+sentinel://h:1,h:2/name",
		"redis+cluster://[::1]:1,h,g:2?x=a:b": "redis+cluster://[::1]:1,h,g:2?x=a:b",
		"redis+cluster://u:s3,c@h:1,g:2":      "redis+cluster://u:xxxxx@h:1,g:2",
		"redis+cluster://u:s3cret,h":          "redis+cluster://u:xxxxx",
		"redis://u:12,s3cret":                 "redis://u:xxxxx",
	} {
		if got := Redact(raw); got != want {
			t.Errorf("Redact(%q) = %q, want %q", raw, got, want)
		}
		if HasPassword(raw) != (raw != want) {
			t.Errorf("HasPassword(%q) is wrong", raw)
		}
	}
}

func TestScrubKeepsTheChain(t *testing.T) {
	raw := "redis://u:s3%20cret@h:1"
	err := Scrub(fmt.Errorf("dial %s with s3 cret or s3%%20cret: %w", raw, piton.ErrUnavailable), raw)
	if strings.Contains(err.Error(), "cret") {
		t.Fatalf("password in %q", err)
	}
	if !errors.Is(err, piton.ErrUnavailable) {
		t.Fatalf("%v is not ErrUnavailable", err)
	}
	if plain := errors.New("x"); Scrub(plain, raw) != plain {
		t.Fatal("an error without secrets was changed")
	}
}

func TestDefaultCoordinator(t *testing.T) {
	state := filepath.Join(t.TempDir(), "a b#c")
	t.Setenv("XDG_STATE_HOME", state)
	b, err := OpenCoordinator(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, none := range []string{"", "relative"} {
		t.Setenv("XDG_STATE_HOME", none)
		got, err := DefaultCoordinator()
		if want := "sqlite://" + home + "/.local/state/piton/locks.db"; err != nil || got != want {
			t.Fatalf("XDG_STATE_HOME=%q: %q, %v; want %q", none, got, err, want)
		}
	}
}

func TestStorageFileWithOddName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a b?c#d%e.db")
	raw := "sqlite://" + strings.NewReplacer("%", "%25", " ", "%20", "?", "%3F", "#", "%23").Replace(file)
	db, _, closeDB, err := OpenStorage(context.Background(), raw)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	var name string
	if err := db.QueryRow("SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&name); err != nil || name != file {
		t.Fatalf("opened %q, %v; want %q", name, err, file)
	}
	if _, err := db.Exec("CREATE TABLE t (x)"); err != nil {
		t.Fatal(err)
	}
	if _, closeGuard, err := OpenGuard(context.Background(), raw); err != nil {
		t.Fatal(err)
	} else if err := closeGuard(); err != nil {
		t.Fatal(err)
	}
}
