//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What comes after -- is passed on byte for byte, the program's name too.
func TestArgumentsAreBytes(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "d\xff")
	program := filepath.Join(folder, "p\xfe")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\nprintf '%s' \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := pitonCommand([]string{state(t)}, "run", "l", "--", program, "\xff\xfe--", "é").Output()
	if want := "\xff\xfe--é"; err != nil || string(out) != want {
		t.Errorf("got %q, %v; want %q", out, err, want)
	}
}

func TestLockNamesThatAreNotText(t *testing.T) {
	cmd := pitonCommand([]string{state(t)}, "run", "bad\xff", "--", "echo", "ran")
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 64 || !strings.Contains(string(out), "not valid UTF-8") || strings.Contains(string(out), "ran\n") {
		t.Errorf("code %d, %q", cmd.ProcessState.ExitCode(), out)
	}
}
