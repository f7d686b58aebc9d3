package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/cmd/piton/internal/backend"
)

type locksCmd struct {
	connection
	Prefix string `arg:"" optional:"" help:"Only locks whose names start with this."`
	JSON   bool   `env:"PITON_JSON" help:"Print a JSON array."`
	Limit  int    `env:"PITON_LIMIT" default:"0" placeholder:"N" help:"At most so many; 0 means all."`
}

func (locksCmd) Help() string {
	return `Examples:

    piton locks
    piton locks invoices/
    piton locks --json | jq -r '.[] | select(.remaining_ms < 5000) | .lock'

ENDS IN is the time until the lease ends unless its holder renews it.`
}

// heldJSON is one lock in --json. Held is false for a free lock, which has only a name.
type heldJSON struct {
	Lock      string      `json:"lock"`
	Held      bool        `json:"held"`
	Token     piton.Token `json:"token,omitempty"`
	Owner     string      `json:"owner,omitempty"`
	Remaining int64       `json:"remaining_ms,omitempty"`
}

func asJSON(h piton.Held) heldJSON {
	return heldJSON{h.Lock, true, h.Token, h.Owner, h.Remaining.Milliseconds()}
}

func (c *locksCmd) Run(ctx context.Context) error {
	if c.Limit < 0 {
		return &exitError{exitUsage, fmt.Sprintf("--limit %d is negative; write 0 for all locks", c.Limit)}
	}
	b, inspector, err := openInspector(ctx, c.connection)
	if err != nil {
		return err
	}
	defer b.Close()
	held, err := inspector.List(ctx, c.Prefix, c.Limit)
	if err != nil {
		return answerError(b, c.Coordinator, err)
	}
	if c.JSON {
		all := make([]heldJSON, len(held))
		for i, h := range held {
			all[i] = asJSON(h)
		}
		return printJSON(all)
	}
	rows := make([][]string, len(held))
	for i, h := range held {
		rows[i] = row(h)
	}
	if len(rows) == 0 {
		say("no lock is held at %s", b.Redacted)
		return nil
	}
	return printTable(os.Stdout, header, rows)
}

const header = "LOCK | TOKEN | ENDS IN | OWNER"

func row(h piton.Held) []string {
	return []string{plain(h.Lock), strconv.FormatInt(int64(h.Token), 10), rough(h.Remaining), plain(h.Owner)}
}

type showCmd struct {
	connection
	Lock string `arg:"" help:"Name of the lock."`
	JSON bool   `env:"PITON_JSON" help:"Print a JSON object."`
}

func (showCmd) Help() string {
	return `Examples:

    piton show deploy
    piton show deploy --json

A free lock is an answer, not a failure: the exit code is 0, and --json says "held":false.`
}

func (c *showCmd) Run(ctx context.Context) error {
	if err := checkLock(c.Lock); err != nil {
		return err
	}
	b, inspector, err := openInspector(ctx, c.connection)
	if err != nil {
		return err
	}
	defer b.Close()
	held, ok, err := inspector.Get(ctx, c.Lock)
	switch {
	case err != nil:
		return answerError(b, c.Coordinator, err)
	case c.JSON && ok:
		return printJSON(asJSON(held))
	case c.JSON:
		return printJSON(heldJSON{Lock: c.Lock})
	case ok:
		return printTable(os.Stdout, header, [][]string{row(held)})
	}
	fmt.Printf("lock %q is free\n", c.Lock)
	return nil
}

type breakCmd struct {
	connection
	Lock  string `arg:"" help:"Name of the lock."`
	Token int64  `required:"" env:"PITON_BREAK_TOKEN" placeholder:"N" help:"Token of the lease to break, as piton show prints it. A lease with another token is left alone."`
	JSON  bool   `env:"PITON_JSON" help:"Print a JSON object."`
}

func (breakCmd) Help() string {
	return `Examples:

    piton show deploy
    piton break deploy --token 1764582000123

The holder learns it at its next renewal, at most a third of its TTL later; until then its work goes
on, and only guarded storage refuses what it writes once the next holder has come.

Exit codes: 0 the lease is broken, or the lock was free already; 75 the lock is held under another
token and nothing was changed; 69 the coordinator does not answer; 64 usage.`
}

// breakJSON is the answer of piton break --json.
type breakJSON struct {
	Lock    string      `json:"lock"`
	Token   piton.Token `json:"token"`
	Outcome string      `json:"outcome"` // broken, free or held
	Present *heldJSON   `json:"present,omitempty"`
}

func (c *breakCmd) Run(ctx context.Context) error {
	if err := checkLock(c.Lock); err != nil {
		return err
	}
	token := piton.Token(c.Token)
	if token < 1 || token > piton.MaxToken {
		return &exitError{exitUsage, fmt.Sprintf("--token %d is not a token; write the number that piton show %s prints", c.Token, plain(c.Lock))}
	}
	b, err := c.openExisting(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	breaker, ok := b.Coordinator.(piton.Breaker)
	if !ok || b.Local {
		return &exitError{exitUsage, fmt.Sprintf("coordinator %s cannot break the locks of other processes", b.Redacted)}
	}
	ctx, cancel := context.WithTimeout(ctx, backend.ReachTimeout)
	defer cancel()
	broken, err := breaker.Break(ctx, c.Lock, token)
	var held *piton.HeldError
	switch {
	case errors.As(err, &held):
		return c.refused(token, held)
	case err != nil:
		return answerError(b, c.Coordinator, err)
	case c.JSON && broken:
		return printJSON(breakJSON{Lock: c.Lock, Token: token, Outcome: "broken"})
	case c.JSON:
		return printJSON(breakJSON{Lock: c.Lock, Token: token, Outcome: "free"})
	case broken:
		fmt.Printf("lock %q: the lease with token %d is broken; the lock is free\n", c.Lock, token)
	default:
		fmt.Printf("lock %q is free already; nothing was broken\n", c.Lock)
	}
	return nil
}

func (c *breakCmd) refused(token piton.Token, held *piton.HeldError) error {
	if c.JSON {
		present := asJSON(piton.Held{Lock: c.Lock, Token: held.Token, Owner: held.Owner, Remaining: held.Remaining})
		if err := printJSON(breakJSON{c.Lock, token, "held", &present}); err != nil {
			return err
		}
		return &exitError{exitHeld, ""}
	}
	return &exitError{exitHeld, fmt.Sprintf("lock %q is held %s, not with token %d; nothing was broken", c.Lock, holder(held.Owner, held.Token, held.Remaining), token)}
}

func openInspector(ctx context.Context, c connection) (backend.Backend, piton.Inspector, error) {
	b, err := c.openExisting(ctx)
	if err != nil {
		return b, nil, err
	}
	inspector, ok := b.Coordinator.(piton.Inspector)
	if !ok || b.Local {
		_ = b.Close()
		return b, nil, &exitError{exitUsage, fmt.Sprintf("coordinator %s cannot list the locks of other processes", b.Redacted)}
	}
	return b, inspector, nil
}

func checkLock(name string) error {
	if err := piton.ValidateLock(name); err != nil {
		return &exitError{exitUsage, err.Error()}
	}
	return nil
}

// answerError is a coordinator that was reached and then failed.
func answerError(b backend.Backend, raw string, err error) error {
	return &exitError{exitUnavailable, fmt.Sprintf("coordinator %s: %v", b.Redacted, backend.Scrub(err, raw))}
}
