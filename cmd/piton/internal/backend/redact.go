package backend

import (
	"errors"
	"net/url"
	"regexp"
	"strings"
)

const hidden = "xxxxx" // as net/url's own Redacted

// secretOption finds a password that is given as an option of a URL or in the
// key=value notation of a driver.
var secretOption = regexp.MustCompile(`(?i)([a-z_]*(?:pass(?:word|wd|file|phrase)?|pwd|secret|token)=)[^&\s;]*`)

// strangePort finds host:x with an x that is no number; the host may be [::1].
var strangePort = regexp.MustCompile(`^((?:\[[^\]/]*\]|[^:/\[]*):)[0-9]*[^0-9/?#]`)

// severalHosts are the schemes of URLs with HOST:PORT,HOST:PORT, and what those look like.
var (
	severalHosts = regexp.MustCompile(`(?i)^(rediss?\+(sentinel|cluster)|redlock|etcds?)$`)
	hostList     = regexp.MustCompile(`^((\[[^\]/]*\]|[^:,/\[]*)(:[0-9]+)?(,|$|[/?#].*$))*$`)
)

// Redact returns raw without passwords. It does not need raw to be a valid URL:
// what stands between the scheme and the last @ is taken for user and password,
// and without an @ so is a port that is not a number.
func Redact(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		scheme, rest = "", raw
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, _, hasPassword := strings.Cut(rest[:at], ":")
		if hasPassword {
			user += ":" + hidden
		}
		rest = user + rest[at:]
	} else if severalHosts.MatchString(scheme) && hostList.MatchString(rest) {
		// ports, and no password for want of a host
	} else if m := strangePort.FindStringSubmatch(rest); ok && m != nil {
		rest = m[1] + hidden
	}
	if ok {
		rest = scheme + "://" + rest
	}
	return secretOption.ReplaceAllString(rest, "${1}"+hidden)
}

// HasPassword reports whether raw would show a password to whoever reads it.
func HasPassword(raw string) bool { return Redact(raw) != raw }

// Scrub returns err with every secret of the given URLs taken out of its text.
// errors.Is and errors.As still find what they found.
func Scrub(err error, raws ...string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, raw := range raws {
		text = strings.ReplaceAll(text, raw, Redact(raw))
		for _, secret := range secrets(raw) {
			text = strings.ReplaceAll(text, secret, hidden)
		}
	}
	if text == err.Error() {
		return err
	}
	return &scrubbed{text, err}
}

type scrubbed struct {
	text string
	err  error
}

func (e *scrubbed) Error() string { return e.text }
func (e *scrubbed) Unwrap() error { return e.err }

// secrets returns what must not be seen of raw, as written and as decoded. A
// password of one or two characters is left out: it would tear words apart, and
// the URL as a whole is replaced anyway.
func secrets(raw string) []string {
	var found []string
	add := func(s string) {
		if len(s) > 2 && s != hidden {
			found = append(found, s)
		}
	}
	_, rest, _ := strings.Cut(raw, "://")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		if _, password, ok := strings.Cut(rest[:at], ":"); ok {
			add(password)
			if plain, err := url.PathUnescape(password); err == nil {
				add(plain)
			}
		}
	}
	for _, m := range secretOption.FindAllString(raw, -1) {
		_, value, _ := strings.Cut(m, "=")
		add(value)
		if plain, err := url.QueryUnescape(value); err == nil {
			add(plain)
		}
	}
	return found
}

// reason is the text of err without the URL that net/url and drivers put before it.
func reason(err error) string {
	var parse *url.Error
	if errors.As(err, &parse) {
		return parse.Err.Error()
	}
	return err.Error()
}
