//go:build linux

// Package lab shows the phantom write, and its being stopped, on real servers
// and with real processes.
//
// Each round has two worker processes, one lock and one account. Worker 1 takes
// the lock, reads the balance, checks that it still holds the lock, and is
// stopped by SIGSTOP until its lease is over for sure. Worker 2 takes the lock.
// Worker 1 is continued and writes what it had computed. The storage's own
// journal says afterwards what was accepted, from whom and in which order; the
// counts come from there and from the final balance, never from the script.
//
// The verdict is "protected" only if every round of [Sealed] came through
// unharmed with a refusal, and the same scenarios really did harm under [None].
package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/cmd/piton/internal/backend"
)

// Config says what to run.
type Config struct {
	Coordinator string        // URL; empty: the embedded one, in a temporary folder
	Storage     string        // URL; empty: a SQLite file in a temporary folder
	Rounds      int           // of each scenario under each protection, at least 1
	TTL         time.Duration // of the leases; 0: [DefaultTTL]

	// Worker is the command line of a process that calls [Work] on its standard
	// input and output; WorkerEnv is added to its environment.
	Worker    []string
	WorkerEnv []string
}

// DefaultTTL is long enough for a machine under load and short enough to wait for.
const DefaultTTL = time.Second

// attempts is how often a round that could not be played is tried.
const attempts = 2

// parallel is how many rounds run at once; they mostly wait.
const parallel = 9

// laboratory is one run of the whole.
type laboratory struct {
	Config
	prefix  string
	folder  string // temporary, empty when nothing needs it
	store   *storage
	server  server
	piton   backend.Backend // on the same server
	nursery *nursery
	closers []func() error

	mu    sync.Mutex
	locks []string // every lock that was used
}

// Run plays every scenario under every protection and reports. An error means
// that the laboratory could not be set up, was interrupted, or could not remove
// what it had put into the servers; rounds that could not be played make the
// verdict unknown and are named in the report.
func Run(ctx context.Context, c Config) (report *Report, err error) {
	if c.Rounds < 1 {
		return nil, fmt.Errorf("%d rounds prove nothing; want 1 or more", c.Rounds)
	}
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	l := &laboratory{Config: c, prefix: "piton_lab_" + strings.ToLower(rand.Text()[:10]), nursery: newNursery()}
	defer l.nursery.close()
	began := time.Now()
	defer func() {
		err = backend.Scrub(errors.Join(err, l.close()), c.Coordinator, c.Storage)
	}()
	if err := l.open(ctx); err != nil {
		return nil, err
	}
	newMarks, err := l.store.create(ctx)
	defer func() {
		// Also after Ctrl-C: what was made is removed.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepLimit)
		defer cancel()
		cleanErr := errors.Join(l.store.drop(ctx, l.locks, newMarks), l.clean(ctx))
		if cleanErr != nil {
			cleanErr = fmt.Errorf("removing the tables and keys whose names contain %s: %w", l.prefix, cleanErr)
		}
		err = errors.Join(err, cleanErr)
	}()
	if err != nil {
		return nil, err
	}
	if err := l.server.prepare(ctx); err != nil {
		return nil, err
	}
	if err := l.fitTTL(ctx); err != nil {
		return nil, err
	}
	report = newReport(l.Config)
	l.playAll(ctx, report)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	report.Took = time.Since(began)
	return report, nil
}

func (l *laboratory) open(ctx context.Context) error {
	if l.Coordinator == "" || l.Storage == "" {
		folder, err := os.MkdirTemp("", "piton-prove-")
		if err != nil {
			return err
		}
		l.folder = folder
	}
	if l.Coordinator == "" {
		l.Coordinator = fileURL(filepath.Join(l.folder, "locks.db"))
	}
	if l.Storage == "" {
		l.Storage = fileURL(filepath.Join(l.folder, "accounts.db"))
	}
	b, err := backend.OpenCoordinator(ctx, l.Coordinator)
	if err != nil {
		return err
	}
	l.piton = b
	l.closers = append(l.closers, b.Close)
	server, err := openServer(ctx, l.Coordinator, l.prefix)
	if err != nil {
		return err
	}
	l.server = server
	l.closers = append(l.closers, server.close)
	store, closeStore, err := openStorage(ctx, l.Storage, l.prefix)
	if err != nil {
		return err
	}
	l.store = store
	l.closers = append(l.closers, closeStore)
	return nil
}

// fitTTL makes the TTL what the coordinator really grants, which may be more than
// it is asked for.
func (l *laboratory) fitTTL(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	g, err := l.piton.Coordinator.Acquire(ctx, piton.Request{Lock: l.prefix, Holder: "prove", Owner: "piton prove", TTL: l.TTL})
	if err != nil {
		return fmt.Errorf("coordinator %s: a first lock: %w", l.piton.Redacted, err)
	}
	l.TTL = max(l.TTL, g.TTL)
	return l.piton.Coordinator.Release(ctx, g)
}

func (l *laboratory) close() error {
	var errs []error
	for _, c := range slices.Backward(l.closers) {
		errs = append(errs, c())
	}
	if l.folder != "" {
		errs = append(errs, os.RemoveAll(l.folder))
	}
	return errors.Join(errs...)
}

// start runs worker n of r.
func (l *laboratory) start(ctx context.Context, r *round, n int) (*process, error) {
	o := orders{
		Coordinator: l.Coordinator, Storage: l.Storage, Prefix: l.prefix, Protection: r.protection,
		Lock: r.lock, Worker: n, Amount: amounts[n], TTL: l.TTL,
	}
	return l.nursery.startWorker(ctx, l.Worker, l.WorkerEnv, o, func(e event) { r.remark(laneOf(n), e) })
}

// forget makes the coordinator lose all that it knows of lock, and makes sure
// that it has: a twin that is none would prove nothing.
func (l *laboratory) forget(ctx context.Context, lock string) error {
	if err := errors.Join(l.server.forget(ctx, lock), l.piton.Traces.Sweep(ctx, lock)); err != nil {
		return fmt.Errorf("making the coordinator forget the lock: %w", err)
	}
	inspector, ok := l.piton.Coordinator.(piton.Inspector)
	if !ok {
		return errors.New("whether the coordinator has forgotten the lock cannot be seen: it is no piton.Inspector")
	}
	held, ok, err := inspector.Get(ctx, lock)
	if err != nil {
		return fmt.Errorf("whether the coordinator has forgotten the lock: %w", err)
	}
	if ok {
		return fmt.Errorf("the coordinator has not forgotten the lock: it still shows token %d", held.Token)
	}
	return nil
}

// clean removes what the laboratory has put into the coordinator.
func (l *laboratory) clean(ctx context.Context) error {
	errs := []error{l.piton.Traces.Sweep(ctx, l.prefix)}
	for _, lock := range l.locks {
		errs = append(errs, l.server.forget(ctx, lock))
	}
	return errors.Join(append(errs, l.server.clean(ctx))...)
}

// playAll runs the rounds side by side and sums up in report.
func (l *laboratory) playAll(ctx context.Context, report *Report) {
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for n := range l.Rounds {
		for i := range report.Runs {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				run := report.Runs[i]
				if l.hopeless(run) {
					return
				}
				o, retries, err := l.play(ctx, run.Scenario, run.Protection, n)
				l.mu.Lock()
				defer l.mu.Unlock()
				run.add(o, retries, err)
			})
		}
	}
	wg.Wait()
	for _, run := range report.Runs {
		for i := range run.Problems {
			run.Problems[i] = backend.Scrub(errors.New(run.Problems[i]), l.Coordinator, l.Storage).Error()
		}
	}
	report.judge()
}

// hopeless reports whether a round of run could not be played already, so that
// more of them would only take time.
func (l *laboratory) hopeless(run *Result) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(run.Problems) > 0
}

// play plays one round, again under a new lock when it could not be played to
// its end. A round that showed something is never repeated, whatever it was.
func (l *laboratory) play(ctx context.Context, s Scenario, p Protection, n int) (o *outcome, retries int, err error) {
	for try := range attempts {
		if ctx.Err() != nil {
			return nil, try, context.Cause(ctx)
		}
		r := &round{scenario: s, protection: p, lab: l, trace: &trace{}}
		r.lock = fmt.Sprintf("%s_%s_%s_%d_%d", l.prefix, s, p, n+1, try)
		l.mu.Lock()
		l.locks = append(l.locks, r.lock)
		l.mu.Unlock()
		o, err = r.play(ctx)
		if err == nil || errors.Is(err, errUnsound) {
			return o, try, err
		}
	}
	return nil, attempts, err
}
