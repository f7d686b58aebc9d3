package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pitonlock/piton/cmd/piton/internal/backend"
	"github.com/pitonlock/piton/cmd/piton/internal/lab"
)

// maxRounds keeps a slip of the keyboard from running for days.
const maxRounds = 1000

// proofWorkerVar makes piton a worker of the proof instead.
const proofWorkerVar = "PITON_PROOF_WORKER"

// proving runs a worker of `piton prove` in the processes that are meant to be one.
func proving() bool {
	if os.Getenv(proofWorkerVar) == "" {
		return false
	}
	if err := lab.Work(os.Stdin, os.Stdout); err != nil {
		say("%v", err)
		os.Exit(1)
	}
	return true
}

func (c *proveCmd) Run(ctx context.Context) error {
	if c.Rounds < 1 || c.Rounds > maxRounds {
		return &exitError{exitUsage, fmt.Sprintf("--rounds %d; write a number from 1 to %d", c.Rounds, maxRounds)}
	}
	page, err := c.openReport()
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return errors.Join(err, page.discard())
	}
	report, err := lab.Run(ctx, lab.Config{
		Coordinator: c.Coordinator, Storage: c.Storage, Rounds: c.Rounds,
		Worker: []string{exe}, WorkerEnv: []string{proofWorkerVar + "=1"},
	})
	if err != nil {
		return errors.Join(proveError(err), page.discard())
	}
	if err := page.write(report, c.replay()); err != nil {
		return err
	}
	if err := c.print(report); err != nil {
		return err
	}
	if report.Verdict != lab.Protected {
		return &exitError{1, ""}
	}
	return nil
}

func proveError(err error) error {
	if errors.Is(err, context.Canceled) {
		return &exitError{1, "interrupted; the tables and keys of the proof are removed"}
	}
	return openError(err)
}

func (c *proveCmd) print(report *lab.Report) error {
	if c.JSON {
		return printJSON(report)
	}
	p := &lab.Printer{Out: os.Stdout, Colour: coloured(os.Stdout)}
	for _, run := range report.Runs {
		if run.Protection != lab.Compare || c.Verbose {
			p.Picture(run)
		}
	}
	p.Table(report)
	p.Verdict(report)
	return nil
}

// coloured reports whether f is a terminal whose user has not said no to colour.
func coloured(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// replay is the command that does the same again, without passwords.
func (c *proveCmd) replay() string {
	words := []string{"piton", "prove"}
	if c.Coordinator != "" {
		words = append(words, "--coordinator", shellWord(backend.Redact(c.Coordinator)))
	}
	if c.Storage != "" {
		words = append(words, "--storage", shellWord(backend.Redact(c.Storage)))
	}
	words = append(words, "--rounds", fmt.Sprint(c.Rounds))
	if c.Report != "" {
		words = append(words, "--report", shellWord(c.Report))
	}
	return strings.Join(words, " ")
}

// shellWord quotes s when a shell would take it apart.
func shellWord(s string) string {
	harmless := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+=,", r)
	}
	if s != "" && strings.TrimFunc(s, harmless) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// page is the report file: written beside its place and moved there when it is
// complete, so that an older report survives everything but a newer one. A nil
// page is one that nobody asked for.
type page struct {
	file *os.File
	path string
}

// openReport fails before the proof runs if the report could not be written.
func (c *proveCmd) openReport() (*page, error) {
	if c.Report == "" {
		return nil, nil
	}
	if info, err := os.Stat(c.Report); err == nil && !info.Mode().IsRegular() {
		return nil, &exitError{exitUsage, fmt.Sprintf("--report %s is not a file that can be replaced; write the path of a file, as proof.html", c.Report)}
	}
	file, err := os.CreateTemp(filepath.Dir(c.Report), ".piton-report-*")
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Sprintf("--report %s cannot be written: %v; name a file in a folder that exists and is yours", c.Report, err)}
	}
	return &page{file, c.Report}, nil
}

func (p *page) write(report *lab.Report, replay string) error {
	if p == nil {
		return nil
	}
	err := errors.Join(report.HTML(io.Writer(p.file), replay, time.Now()), p.file.Chmod(0o644))
	if err != nil {
		return errors.Join(err, p.discard())
	}
	if err := p.file.Close(); err != nil {
		return errors.Join(err, os.Remove(p.file.Name()))
	}
	return os.Rename(p.file.Name(), p.path)
}

func (p *page) discard() error {
	if p == nil {
		return nil
	}
	return errors.Join(p.file.Close(), os.Remove(p.file.Name()))
}
