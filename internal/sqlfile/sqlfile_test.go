package sqlfile

import (
	"maps"
	"testing"
)

func TestNamed(t *testing.T) {
	got := Named("-- About the file.\n\n-- name: one\n-- why\nSELECT 1\nFROM t\n\n-- name: two\nSELECT '-- no comment'\n")
	want := map[string]string{"one": "SELECT 1\nFROM t", "two": "SELECT '-- no comment'"}
	if !maps.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
