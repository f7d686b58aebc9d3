package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/cmd/piton/internal/backend"
	"github.com/pitonlock/piton/locktest"
)

type checkCmd struct {
	Coordinator string `arg:"" optional:"" name:"url" env:"PITON_COORDINATOR" help:"The coordinator to check, as for --coordinator. Default: the embedded one of this user."`
	JSON        bool   `env:"PITON_JSON" help:"Print one JSON object at the end."`
}

func (checkCmd) Help() string {
	return `Takes locks with random names on the coordinator and checks there every law that Piton relies on:
that tokens only grow, that nobody else renews or releases a lease, that a crashed holder's lock
becomes free in time, that no name is taken for another. It takes about ten seconds, some more where
leases are counted in seconds. Other users of the server are not disturbed.

Examples:

    piton check redis://cache:6379
    piton check redis+cluster://node1,node2,node3
    piton check --json postgres://app@db/app | jq '.laws[] | select(.kept | not)'

For a law that does not hold, a paragraph says what to look for in the server's configuration.
Whatever the check made is removed at the end, also when it is interrupted.

Exit codes: 0 every law holds; 1 one does not; 69 the coordinator does not answer; 64 usage.`
}

type checkJSON struct {
	Coordinator string    `json:"coordinator"`
	Kept        bool      `json:"kept"`
	Laws        []lawJSON `json:"laws"`
	Warnings    []string  `json:"warnings"`
}

type lawJSON struct {
	Law    string `json:"law"`
	Text   string `json:"text"`
	Kept   bool   `json:"kept"`
	Error  string `json:"error,omitempty"`
	Advice string `json:"advice,omitempty"`
	Took   int64  `json:"took_ms"`
}

func (c *checkCmd) Run(ctx context.Context) (err error) {
	b, err := connection{Coordinator: c.Coordinator}.openExisting(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	if b.Local {
		return &exitError{exitUsage, "memory: is a coordinator of this process alone, and there is nothing to check; name a server or a file"}
	}
	for _, w := range b.Warnings {
		say("coordinator %s: %s", b.Redacted, w)
	}
	var id [8]byte
	rand.Read(id[:])
	prefix := "piton-check-" + hex.EncodeToString(id[:]) + "/"
	defer func() { err = errors.Join(err, c.sweep(b, prefix)) }()
	h, err := c.harness(ctx, b, prefix)
	if err != nil {
		return err
	}
	outcome := checkJSON{Coordinator: b.Redacted, Kept: true, Warnings: append([]string{}, b.Warnings...)}
	out := tabwriter.NewWriter(os.Stdout, 24, 8, 2, ' ', 0)
	for _, law := range locktest.Laws {
		r := locktest.CheckLaw(ctx, law, h)
		if ctx.Err() != nil {
			return interrupted(ctx)
		}
		l := lawJSON{Law: law.Name, Text: law.Text, Kept: r.Err == nil, Took: r.Took.Milliseconds()}
		if r.Err != nil {
			l.Error, l.Advice = backend.Scrub(r.Err, c.Coordinator).Error(), advice[law.Name]
			outcome.Kept = false
		}
		outcome.Laws = append(outcome.Laws, l)
		if !c.JSON {
			l.print(out)
		}
	}
	if c.JSON {
		err = printJSON(outcome)
	} else if outcome.Kept {
		_, err = fmt.Printf("every law holds at %s\n", b.Redacted)
	}
	if err == nil && !outcome.Kept {
		err = &exitError{1, fmt.Sprintf("coordinator %s does not keep every law; do not use it for locks as it is", b.Redacted)}
	}
	return err
}

func (l lawJSON) print(out *tabwriter.Writer) {
	word := "holds"
	if !l.Kept {
		word = "FAILS"
	}
	fmt.Fprintf(out, "%s\t%s\t%s\n", l.Law, word, rough(time.Duration(l.Took)*time.Millisecond))
	if !l.Kept {
		fmt.Fprintf(out, "    %s\n    Seen: %s\n    %s\n", l.Text, strings.ReplaceAll(l.Error, "\n", "; "), l.Advice)
	}
	_ = out.Flush() // a closed stdout shows at the end
}

// harness tries on one lock what TTL the coordinator grants for a short one.
func (c *checkCmd) harness(ctx context.Context, b backend.Backend, prefix string) (locktest.Harness, error) {
	var clients sync.Map // by coordinator: what closes it
	h := locktest.Harness{
		Prefix: prefix, Late: b.Late, Left: b.Traces.Kept,
		New: func(ctx context.Context) (piton.Coordinator, error) {
			own, err := backend.OpenCoordinator(ctx, c.Coordinator)
			if err == nil {
				clients.Store(own.Coordinator, own.Close)
			}
			return own.Coordinator, err
		},
		Close: func(c piton.Coordinator) error {
			end, ok := clients.LoadAndDelete(c)
			if !ok {
				return nil
			}
			return end.(func() error)()
		},
		// What the coordinator knows of the check's own locks is all that it may forget.
		Forget: func(ctx context.Context) error { return b.Traces.Sweep(ctx, prefix) },
	}
	ctx, cancel := context.WithTimeout(ctx, backend.ReachTimeout)
	defer cancel()
	g, err := b.Coordinator.Acquire(ctx, piton.Request{Lock: prefix + "ttl", Holder: prefix, TTL: 300 * time.Millisecond})
	if err != nil {
		return h, answerError(b, c.Coordinator, err)
	}
	h.TTL = g.TTL
	return h, nil
}

// sweep removes what the check made, however it ended.
func (c *checkCmd) sweep(b backend.Backend, prefix string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*backend.ReachTimeout)
	defer cancel()
	if err := b.Traces.Sweep(ctx, prefix); err != nil {
		return &exitError{exitUnavailable, fmt.Sprintf("coordinator %s: what the check made could not be removed: %v; the names begin with %s", b.Redacted, backend.Scrub(err, c.Coordinator), prefix)}
	}
	return nil
}

// interrupted is the exit of a command that INT or TERM ended.
func interrupted(ctx context.Context) error {
	signal := 2
	if cause := context.Cause(ctx); cause != nil && strings.Contains(cause.Error(), "terminated") {
		signal = 15
	}
	return &exitError{exitSignal + signal, "interrupted; what was made is removed"}
}

// advice says for each law what to look for when it does not hold.
var advice = map[string]string{
	"IdempotentPerHolder":  shared + " A proxy that sends requests to different servers has the same effect: name the primary itself.",
	"TokenGrows":           "The server forgot the counter of a lock, or two servers answer. On Redis set maxmemory-policy noeviction, let nothing else write keys that begin with piton:, and do not read from replicas; in a database leave the tables piton_locks and piton_floor alone, and connect to the primary.",
	"FloorIsHonoured":      "The server changed a large number. Something between Piton and the server rewrites values, or the server is a look-alike whose scripts or types differ: use the real one, in a version that docs/choosing.md names.",
	"RenewOnlyOwn":         shared,
	"ReleaseOnlyOwn":       shared,
	"NoSharedClock":        "The server ends leases too early or too late. Look for a clock that is being set or jumps (its virtual machine, NTP with step), for a server that is paused or overloaded, and for a network so slow that a request takes as long as the lease of the check.",
	"OddNames":             "Names are folded or cut. In a database the columns of names were created with another collation or type: drop the tables piton_locks and piton_floor while nobody uses them, and let Piton create them.",
	"OneHolder":            "Two held a lock at once: two servers answer, or the server forgets. Do not use it until that is found. " + shared,
	"WakeUp":               "Notifications do not arrive. In PostgreSQL connect to the server itself, since a transaction pooler drops LISTEN; in etcd look for a proxy that ends long streams.",
	"FirstComeFirstServed": "The queue of waiters does not work. On Redis the user needs the channels piton:* (ACL SETUSER name &piton:*), and a Cluster needs Redis 7 for sharded channels.",
	"SealedBeforeUse":      "This law is kept by Piton itself; please report it.",
	"TokenHeals":           "After the memory of the lock was removed the next token was not above what a storage had seen. Something restores old keys or rows: look for replication from an old copy, or a backup that runs over the server.",
	"UnknownIsNotNo":       "An answer that was lost could not be asked for again. " + shared,
	"LostBeforeExpired":    "A lease ended at the server before its holder could know. The server's clock runs fast or is set while it runs, or the server was paused: look at its time service.",
	"LostIsFinal":          shared,
	"ReleaseAfterWork":     shared,
	"NothingLeft":          "Names that were used once leave something for ever. On Redis look for a module or proxy that drops expiries (PERSIST), on a database for triggers on Piton's tables.",
}

const shared = "Requests did not all reach the same state: two servers behind one address, a load balancer, reads from a replica, or other software that writes to Piton's keys or tables. Name the primary itself, and give Piton a prefix, schema or database of its own."
