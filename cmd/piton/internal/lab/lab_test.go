//go:build linux

package lab

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pitonlock/piton/cmd/piton/internal/backend"
	"github.com/pitonlock/piton/internal/servertest"
)

const workerVar = "PITON_LAB_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerVar) != "" {
		if err := Work(os.Stdin, os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(parentVar) != "" {
		beParent()
	}
	os.Exit(servertest.Main(m))
}

// config runs this test binary as the workers.
func config(t *testing.T) Config {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{Rounds: 1, Worker: []string{exe}, WorkerEnv: []string{workerVar + "=1"}}
}

func prove(t *testing.T, c Config) *Report {
	t.Helper()
	report, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range report.Runs {
		t.Logf("%-10s %-8s rounds=%d %+v unserved=%d retries=%d pause=%v %v", run.Scenario, run.Protection, run.Rounds, run.Counts, run.Unserved, run.Retries, run.ShortestGap, run.Problems)
	}
	return report
}

// expectProof demands the verdict, and what each protection is known for.
func expectProof(t *testing.T, r *Report) {
	t.Helper()
	if r.Verdict != Protected {
		t.Fatalf("verdict %q: %s", r.Verdict, r.Reason)
	}
	for _, run := range r.Runs {
		if run.ShortestGap < r.TTL {
			t.Errorf("%s/%s: a pause of %v did not outlast the TTL of %v", run.Scenario, run.Protection, run.ShortestGap, r.TTL)
		}
		switch {
		case run.Protection == None && (run.PhantomWrites != run.Rounds || run.LostUpdates != run.Rounds || run.RefusedWrites != 0),
			run.Protection == Sealed && (run.PhantomWrites+run.LostUpdates != 0 || run.RefusedWrites != run.Rounds),
			run.Protection == Compare && run.Scenario == Phantom && (run.PhantomWrites != 0 || run.RefusedWrites != run.Rounds),
			run.Protection == Compare && run.Scenario == ReadHole && (run.PhantomWrites != run.Rounds || run.LostUpdates != run.Rounds),
			run.Protection == Compare && run.Scenario == Twin && (run.PhantomWrites != run.Rounds || run.Unserved != run.Rounds):
			t.Errorf("%s/%s in %d rounds: %+v, the rightful holder refused in %d", run.Scenario, run.Protection, run.Rounds, run.Counts, run.Unserved)
		}
	}
}

func TestEmbedded(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	r := prove(t, config(t))
	expectProof(t, r)
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*")); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary folder: %v %v", left, err)
	}
	expectTwin(t, r)
	expectPictures(t, r)
	expectJSON(t, r)
}

// expectTwin sees that the coordinator forgot the number as well: worker 2 had
// worker 1's until the storage refused it.
func expectTwin(t *testing.T, r *Report) {
	t.Helper()
	for _, m := range r.find(Twin, Sealed).Trace {
		if m.Kind == MarkRefused && m.From == LaneWorker2 && !m.Write {
			return
		}
	}
	t.Error("twin/sealed: no seal of worker 2 was refused, so its number was new")
}

func expectPictures(t *testing.T, r *Report) {
	t.Helper()
	var text, page bytes.Buffer
	p := &Printer{Out: &text}
	for _, run := range r.Runs {
		p.Picture(run)
	}
	p.Table(r)
	p.Verdict(r)
	for line := range strings.Lines(text.String()) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > Width {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	for _, want := range []string{"SIGSTOP", "SIGCONT", "PHANTOM", "REFUSED", "memory lost", "verdict: protected"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in the picture:\n%s", want, text.String())
		}
	}
	if err := r.HTML(&page, "piton prove", time.Now()); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(page.String(), "<svg viewBox"); n != len(r.Runs) {
		t.Errorf("%d pictures in the page, want %d", n, len(r.Runs))
	}
	for _, foreign := range []string{"http://", "https://", "ZgotmplZ"} {
		if strings.Contains(page.String(), foreign) {
			t.Errorf("the page contains %q", foreign)
		}
	}
}

func expectJSON(t *testing.T, r *Report) {
	t.Helper()
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Verdict string
		Runs    []map[string]any
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.Verdict != string(r.Verdict) || len(got.Runs) != len(r.Runs) {
		t.Errorf("got %s", raw)
	}
	for _, run := range got.Runs {
		for _, key := range []string{"scenario", "protection", "rounds", "phantom_writes", "lost_updates", "refused_writes"} {
			if _, ok := run[key]; !ok {
				t.Errorf("%q is missing in %v", key, run)
			}
		}
	}
}

// TestNothingIsLeft gives the laboratory databases of its user's.
func TestNothingIsLeft(t *testing.T) {
	for _, interrupted := range []bool{false, true} {
		c := config(t)
		c.Coordinator = fileURL(filepath.Join(t.TempDir(), "locks.db"))
		c.Storage = fileURL(filepath.Join(t.TempDir(), "accounts.db"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if interrupted {
			timer := time.AfterFunc(700*time.Millisecond, cancel)
			defer timer.Stop()
		}
		_, err := Run(ctx, c)
		if interrupted == (err == nil) {
			t.Fatalf("interrupted %v: %v", interrupted, err)
		}
		for _, url := range []string{c.Coordinator, c.Storage} {
			expectNothing(t, url)
		}
	}
}

func expectNothing(t *testing.T, storageURL string) {
	t.Helper()
	db, dialect, closeDB, err := backend.OpenStorage(t.Context(), storageURL)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	query := "SELECT name FROM sqlite_master WHERE name LIKE 'piton_lab%' OR name = 'piton_marks'"
	if dialect.String() != "sqlite" {
		query = "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'piton_lab%' OR table_name = 'piton_marks'"
	}
	var name string
	if err := db.QueryRowContext(t.Context(), query).Scan(&name); err != sql.ErrNoRows {
		t.Errorf("left in %s: table %q %v", backend.Redact(storageURL), name, err)
	}
}

// TestForeignMarksStay sees that a table which others use is not dropped.
func TestForeignMarksStay(t *testing.T) {
	url := fileURL(filepath.Join(t.TempDir(), "accounts.db"))
	s, closeDB, err := openStorage(t.Context(), url, "piton_lab_test")
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	newMarks, err := s.create(t.Context())
	if err != nil || !newMarks {
		t.Fatal(newMarks, err)
	}
	other, closeOther, err := openStorage(t.Context(), url, "piton_lab_other")
	if err != nil {
		t.Fatal(err)
	}
	defer closeOther()
	if newMarks, err := other.create(t.Context()); err != nil || newMarks {
		t.Fatal(newMarks, err)
	}
	if err := s.drop(t.Context(), nil, true); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := other.guard.Mark(t.Context(), other.prefix); err != nil || !ok {
		t.Errorf("the other's mark is gone: %v %v", ok, err)
	}
}

func TestRefusesNonsense(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"no rounds":           func(c *Config) { c.Rounds = 0 },
		"unknown scheme":      func(c *Config) { c.Coordinator = "ftp://localhost" },
		"memory":              func(c *Config) { c.Coordinator = "memory:" },
		"storage unknown":     func(c *Config) { c.Storage = "ftp://u:sesame@localhost/x" },
		"storage unreachable": func(c *Config) { c.Storage = "postgres://u:sesame@127.0.0.1:1/x" },
		"locks unreachable":   func(c *Config) { c.Coordinator = "redis://:sesame@127.0.0.1:1" },
		"worker is missing":   func(c *Config) { c.Worker = []string{"/nonexistent"}; c.TTL = time.Millisecond * 300 },
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			spoil(&c)
			r, err := Run(t.Context(), c)
			if err == nil && r.Verdict != Unknown {
				t.Fatalf("got %+v", r)
			}
			if err == nil {
				t.Logf("%s", r.Reason)
				return
			}
			t.Log(err)
			if strings.Contains(err.Error(), "sesame") {
				t.Errorf("the password shows: %v", err)
			}
		})
	}
}
