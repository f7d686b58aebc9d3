package servertest

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// helperVariable makes this binary another test run, which some test starts, looks
// at and kills.
const helperVariable = "PITON_SERVERTEST_HELPER"

func TestMain(m *testing.M) {
	os.Exit(Main(m))
}

func TestEventually(t *testing.T) {
	asked := 0
	Eventually(t, time.Minute, func() bool { asked++; return asked == 3 }, "third answer")
	Eventually(t, 0, func() bool { asked++; return true }, "immediate answer")
	if asked != 4 {
		t.Errorf("asked %d times; want 4", asked)
	}
}

func TestEventuallyGivesUp(t *testing.T) {
	failed := recordFailure(t, func(tb testing.TB) {
		Eventually(tb, 10*time.Millisecond, func() bool { return false }, "lock ", 7, " free")
	})
	if failed != "not within 10ms: lock 7 free" {
		t.Errorf("failure is %q", failed)
	}
}

// recorder keeps a fatal failure to itself.
type recorder struct {
	testing.TB
	failed string
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	panic(r)
}

func recordFailure(t *testing.T, f func(testing.TB)) (failed string) {
	r := &recorder{TB: t}
	defer func() {
		if recovered := recover(); recovered != any(r) {
			t.Fatalf("did not fail (%v)", recovered)
		}
		failed = r.failed
	}()
	f(r)
	return ""
}
