package sqlguard

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// Every dialect has the statements that the code looks up by name.
func TestStatements(t *testing.T) {
	want := map[Dialect][]string{
		Postgres: {"check", "create", "mark", "probe", "script", "seal", "status"},
		MySQL:    {"bind-mariadb", "bind-mysql", "check", "create", "mark", "probe", "script", "seal", "unbind-mariadb", "unbind-mysql", "version"},
		SQLite:   {"check", "create", "mark", "probe", "script", "seal"},
	}
	for d, names := range want {
		if got := slices.Sorted(maps.Keys(statements[d])); !slices.Equal(got, names) {
			t.Errorf("%v has the statements %q; want %q", d, got, names)
		}
		for name, statement := range statements[d] {
			if statement == "" || strings.Contains(statement, "--") {
				t.Errorf("%v %s: %q; want a statement without comments", d, name, statement)
			}
		}
	}
}

func TestMillisRoundUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second: 1000} {
		if got := millis(d); got != want {
			t.Errorf("millis(%v) = %d; want %d", d, got, want)
		}
	}
}
