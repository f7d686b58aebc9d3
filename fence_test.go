package piton_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pitonlock/piton"
)

var oddNames = []string{
	"a", "A", "a ", " a", "a/b", "a{b}c", "}{", `a"b`, `a\b`, "a;b=c", "a'b", "a\nb", "a\tb", "é", "e\u0301", "🧗", "%41", "a,b", ":YQ==:",
	strings.Repeat("x", 512), strings.Repeat("é", 256),
}

func TestFencesSurviveTheirText(t *testing.T) {
	for _, lock := range oddNames {
		for _, token := range []piton.Token{1, 1764590000000, piton.MaxToken} {
			f := piton.Fence{Lock: lock, Token: token, Holder: "8d3f\"é"}
			text := f.String()
			for i := range len(text) {
				if text[i] < 0x20 || text[i] > 0x7e {
					t.Fatalf("%q is not safe in a header", text)
				}
			}
			if got, err := piton.ParseFence(text); err != nil || got != f {
				t.Errorf("%q: %v, %v", text, got, err)
			}
		}
	}
}

func TestParseFenceSaysWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "not an integer",
		"x":                               "not an integer",
		"1.5;lock=\"a\";holder=\"h\"":     "not an integer",
		"0;lock=\"a\";holder=\"h\"":       "outside 1..",
		"-4;lock=\"a\";holder=\"h\"":      "outside 1..",
		"9007199254740992;lock=\"a\"":     "outside 1..",
		"99999999999999999999;lock=a":     "not an integer",
		"4":                               "missing",
		"4;lock=\"a\"":                    "missing",
		"4;holder=\"h\"":                  "missing",
		"4;lock=\"a\";holder=\"\"":        "missing",
		"4;lock=\"a\";lock=\"b\"":         "twice",
		"4;lock=\"a\";x=\"b\"":            "unknown parameter",
		"4;lock=a;holder=\"h\"":           "neither a string",
		"4;lock=\"a;holder=\"h\"":         "unexpected text",
		"4;lock=\"a":                      "not a string",
		"4;lock=:*:;holder=\"h\"":         "not a byte sequence",
		"4;lock=\"a\";holder=\"h\";":      "unexpected text",
		"4;lock=\"a\\x\";holder=\"h\"":    "not a string",
		"4;lock=:AA==:;holder=\"h\"":      "NUL",
		"4;lock=:/w==:;holder=\"h\"":      "UTF-8",
		"4;lock=\"\";holder=\"h\"":        "empty",
		strings.Repeat("y", 10_000) + ";": "...",
	} {
		f, err := piton.ParseFence(text)
		if err == nil || !strings.Contains(err.Error(), want) || f != (piton.Fence{}) {
			t.Errorf("%.40q: %v, %v; want an error that says %q", text, f, err, want)
		}
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	}
}

func FuzzParseFence(f *testing.F) {
	for _, lock := range oddNames {
		f.Add(piton.Fence{Lock: lock, Token: 7, Holder: "h"}.String())
	}
	f.Fuzz(func(t *testing.T, text string) {
		fence, err := piton.ParseFence(text)
		if err != nil {
			return
		}
		if again, err := piton.ParseFence(fence.String()); err != nil || again != fence {
			t.Fatalf("%q: %v, then %v, %v", text, fence, again, err)
		}
	})
}

func TestValidateLock(t *testing.T) {
	for _, name := range oddNames {
		if err := piton.ValidateLock(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, want := range map[string]string{
		"": "empty", strings.Repeat("x", 513): "513 bytes", "\xff": "UTF-8", "a\x00": "NUL", "\xed\xa0\x80": "UTF-8",
	} {
		if err := piton.ValidateLock(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", name, err, want)
		}
	}
}

func TestNoLeaseInAnyContext(t *testing.T) {
	if f, ok := piton.FenceFromContext(context.Background()); ok || f != (piton.Fence{}) {
		t.Errorf("fence %v from an empty context", f)
	}
	if left, ok := piton.TimeLeft(context.Background()); ok || left != 0 {
		t.Errorf("%v left in an empty context", left)
	}
}

func TestErrorsAreFoundWithTheirCauses(t *testing.T) {
	driver := errors.New("driver says no")
	fence, mark := piton.Fence{Lock: "a", Token: 4, Holder: "h"}, piton.Fence{Lock: "a", Token: 9, Holder: "i"}
	for _, c := range []struct {
		err  error
		is   []error
		says []string
	}{
		{&piton.HeldError{Lock: "a", Owner: "db-1", Token: 4}, []error{piton.ErrHeld}, []string{`"a"`, `"db-1"`, "token 4"}},
		{&piton.LostError{Lock: "a", Token: 4, Holder: "h", Reason: piton.ReasonTaken, By: 9, Err: driver}, []error{piton.ErrLost, driver}, []string{`"a"`, "token 4", "holder h", "taken", "token 9", "driver says no"}},
		{&piton.StaleError{Fence: fence, Mark: mark}, []error{piton.ErrStale}, []string{"token 4", "recorded 9"}},
		{&piton.StaleError{Fence: fence, Mark: piton.Fence{Lock: "a", Token: 4, Holder: "twin"}}, []error{piton.ErrStale}, []string{"token 4", "another holder"}},
	} {
		wrapped := fmt.Errorf("outer: %w", c.err)
		for _, want := range c.is {
			if !errors.Is(wrapped, want) {
				t.Errorf("%v is not found in %v", want, wrapped)
			}
		}
		for _, part := range c.says {
			if !strings.Contains(wrapped.Error(), part) {
				t.Errorf("%q does not say %q", wrapped, part)
			}
		}
	}
}
