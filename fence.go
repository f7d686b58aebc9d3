package piton

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxToken is the largest token that any coordinator may grant: 2^53 - 1, the
// largest integer that Lua, JavaScript and JSON keep exactly.
const MaxToken Token = 1<<53 - 1

// MaxLockBytes is the longest lock name in bytes of UTF-8.
const MaxLockBytes = 512

// Token is a fencing token: a number above zero that only grows from one grant
// of a lock to the next. It fits a signed 64-bit column and stays within 2^53.
// Tokens of different locks are not comparable.
type Token int64

// Fence is the proof that travels with a write: which lock, the token of the
// grant, and the random id of the acquisition. A storage compares the pair
// (Token, Holder); the number alone does not tell two holders apart after a
// coordinator lost its memory.
type Fence struct {
	Lock   string
	Token  Token
	Holder string
}

// String renders f as an RFC 8941 item: the token as an Integer with the
// parameters lock and holder. A parameter is a String where its value is
// printable ASCII and a Byte Sequence (base64 of the UTF-8) otherwise, so that
// every lock name is safe in a header, an environment variable and a log line.
//
//	42;lock="invoices/7";holder="8d3f..."
func (f Fence) String() string {
	return strconv.FormatInt(int64(f.Token), 10) + ";lock=" + sfValue(f.Lock) + ";holder=" + sfValue(f.Holder)
}

// ParseFence reads what [Fence.String] writes. It reports an error that names
// the part that is missing or malformed, for a token outside 1..[MaxToken], and
// for a lock name that [ValidateLock] refuses.
func ParseFence(s string) (Fence, error) {
	fail := func(format string, args ...any) (Fence, error) {
		return Fence{}, fmt.Errorf("piton: fence %q: %s; want TOKEN;lock=\"NAME\";holder=\"ID\"", clip(s), fmt.Sprintf(format, args...))
	}
	number, rest, _ := strings.Cut(strings.Trim(s, " "), ";")
	token, err := strconv.ParseInt(number, 10, 64)
	if err != nil || len(number) > 15+1 {
		return fail("the token %q is not an integer", clip(number))
	}
	if token < 1 || Token(token) > MaxToken {
		return fail("the token %d is outside 1..%d", token, MaxToken)
	}
	f := Fence{Token: Token(token)}
	seen := map[string]bool{}
	for rest != "" {
		var key, value string
		key, value, rest, err = sfParam(rest)
		if err != nil {
			return fail("%v", err)
		}
		if seen[key] {
			return fail("parameter %q appears twice", key)
		}
		seen[key] = true
		switch key {
		case "lock":
			f.Lock = value
		case "holder":
			f.Holder = value
		default:
			return fail("unknown parameter %q", clip(key))
		}
	}
	if !seen["lock"] || f.Holder == "" {
		return fail("the lock or the holder is missing")
	}
	if err := ValidateLock(f.Lock); err != nil {
		return fail("%v", err)
	}
	return f, nil
}

// ValidateLock reports whether name can be a lock: valid UTF-8 of 1 to
// [MaxLockBytes] bytes without a NUL character. Every coordinator and guard
// accepts and refuses the same names, before any request is sent.
func ValidateLock(name string) error {
	switch {
	case name == "":
		return errors.New("piton: the lock name is empty; want 1 to 512 bytes of UTF-8")
	case len(name) > MaxLockBytes:
		return fmt.Errorf("piton: the lock name has %d bytes; want 1 to %d", len(name), MaxLockBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("piton: the lock name %q is not valid UTF-8", clip(name))
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("piton: the lock name %q contains a NUL character, which PostgreSQL cannot store", clip(name))
	}
	return nil
}

// FenceFromContext returns the fence of the lease that ctx belongs to: the
// context of a [Lease], the context that [Locker.Do] hands to the work, or any
// context derived from them.
func FenceFromContext(ctx context.Context) (Fence, bool) {
	l, ok := leaseFromContext(ctx)
	if !ok {
		return Fence{}, false
	}
	return l.Fence(), true
}

func sfValue(s string) string {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return ":" + base64.StdEncoding.EncodeToString([]byte(s)) + ":"
		}
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// sfParam splits `key=value;rest` and decodes the value.
func sfParam(s string) (key, value, rest string, err error) {
	s = strings.TrimLeft(s, " ")
	key, s, ok := strings.Cut(s, "=")
	if !ok || s == "" {
		return "", "", "", fmt.Errorf("parameter %q has no value", clip(key))
	}
	switch s[0] {
	case ':':
		encoded, after, ok := strings.Cut(s[1:], ":")
		raw, decodeErr := base64.StdEncoding.DecodeString(encoded)
		if !ok || decodeErr != nil {
			return "", "", "", fmt.Errorf("parameter %q is not a byte sequence", key)
		}
		value, s = string(raw), after
	case '"':
		value, s, ok = unquote(s[1:])
		if !ok {
			return "", "", "", fmt.Errorf("parameter %q is not a string", key)
		}
	default:
		return "", "", "", fmt.Errorf("parameter %q is neither a string nor a byte sequence", key)
	}
	if s == "" {
		return key, value, "", nil
	}
	if s[0] != ';' || len(s) == 1 {
		return "", "", "", fmt.Errorf("unexpected text %q after parameter %q", clip(s), key)
	}
	return key, value, s[1:], nil
}

// unquote reads an RFC 8941 string whose opening quote has been consumed.
func unquote(s string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], true
		case c == '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", "", false
			}
			b.WriteByte(s[i])
		case c < 0x20 || c > 0x7e:
			return "", "", false
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
