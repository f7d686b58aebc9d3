package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pitonlock/piton"
)

// Rules of output.
//
//   - stdout of `piton run` belongs to the command: piton itself never writes there.
//     The other subcommands print their answer there, and nothing else.
//   - Everything else goes to stderr, one line each, starting with "piton: ".
//   - A line says what happened, to which lock, and what to do; no stack, no second line.
//   - --json is one value and a newline: keys in snake_case, durations as _ms.
//   - Passwords appear nowhere: URLs are printed redacted, foreign errors scrubbed.
//   - No colours, no progress, nothing that depends on the terminal.
//   - Names with spaces, quotes or control characters are printed quoted, in Go's way.

// Exit codes, documented in docs/operating.md and `piton run --help`.
const (
	exitUsage       = 64 // wrong flags, URLs or values
	exitUnavailable = 69 // coordinator or guarded storage does not answer
	exitHeld        = 75 // another holder has the lock
	exitLost        = 76 // the lease was lost and the command was stopped
	exitRefused     = 77 // a guarded storage refused the fence
	exitNotRunnable = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

// exitError ends piton with a code and, unless text is empty, one line.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

// fail prints err as the rules say and returns the exit code.
func fail(err error) int {
	var exit *exitError
	if !errors.As(err, &exit) {
		exit = &exitError{1, err.Error()}
	}
	if exit.text != "" {
		say("%s", exit.text)
	}
	return exit.code
}

// say prints one line on stderr.
func say(format string, args ...any) {
	text := strings.TrimPrefix(fmt.Sprintf(format, args...), "piton: ")
	text = strings.NewReplacer(":\n", ": ", "\n", "; ", ": piton: ", ": ").Replace(text) // drivers write several lines
	fmt.Fprintln(os.Stderr, "piton: "+strings.Join(strings.Fields(text), " "))
}

func printJSON(v any) error {
	e := json.NewEncoder(os.Stdout)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// printTable prints rows under a header, aligned.
func printTable(out io.Writer, header string, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(header, " | ", "\t"))
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// plain quotes s when it could be misread in a table.
func plain(s string) string {
	if s == "" {
		return "-"
	}
	odd := func(r rune) bool {
		return !unicode.IsGraphic(r) || unicode.IsSpace(r) || r == '"' || r == utf8.RuneError
	}
	if strings.ContainsFunc(s, odd) || s == "-" {
		return strconv.Quote(s)
	}
	return s
}

// rough is a duration for people.
func rough(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// holder describes who has a lock, for a sentence.
func holder(owner string, token piton.Token, remaining time.Duration) string {
	s := "by an unnamed holder"
	if owner != "" {
		s = "by " + strconv.Quote(owner)
	}
	if token > 0 {
		s += fmt.Sprintf(" with token %d", token)
	}
	if remaining > 0 {
		s += fmt.Sprintf(", for %s more unless it renews", rough(remaining))
	}
	return s
}
