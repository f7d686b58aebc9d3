package e2e

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/sqlguard"
)

// swallower passes bytes between clients and a server until one direction is
// told to swallow them, without closing anything.
type swallower struct {
	listener          net.Listener
	requests, answers atomic.Bool // swallowed
	mu                sync.Mutex
	open              []net.Conn
}

func startSwallower(t *testing.T, target string) *swallower {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	p := &swallower{listener: l}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			p.mu.Lock()
			p.open = append(p.open, client, server)
			p.mu.Unlock()
			running.Go(func() { pass(server, client, &p.requests) })
			running.Go(func() { pass(client, server, &p.answers) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		running.Wait()
	})
	return p
}

func pass(to io.WriteCloser, from io.ReadCloser, swallow *atomic.Bool) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !swallow.Load() {
			_, _ = to.Write(buffer[:n])
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}

// cut closes what is connected.
func (p *swallower) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		_ = c.Close()
	}
	p.open = nil
}

var loopback = regexp.MustCompile(`127\.0\.0\.1:\d+`)

func TestGuardCommitAnswerLost(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, dsn string, s *sqlStore) {
		if b.dialect == sqlguard.SQLite {
			return // no network between
		}
		for name, lost := range map[string]struct {
			direction func(*swallower) *atomic.Bool
			want      int64 // in the database afterwards
			outcome   sqlguard.Outcome
		}{
			"answer":  {func(p *swallower) *atomic.Bool { return &p.answers }, 9, sqlguard.Committed},
			"request": {func(p *swallower) *atomic.Bool { return &p.requests }, 0, sqlguard.RolledBack},
		} {
			t.Run(name, func(t *testing.T) {
				p := startSwallower(t, loopback.FindString(dsn))
				far := b.open(t, loopback.ReplaceAllString(dsn, p.listener.Addr().String()))
				far.CommitTimeout = 300 * time.Millisecond
				f := fence("lost "+name, 1, "a")
				must(t, far.Seal(t.Context(), f))
				start := time.Now()
				err := far.Tx(t.Context(), f, func(ctx context.Context, tx *sql.Tx) error {
					err := numbers{tx, b.dialect}.Write(ctx, name, 9)
					lost.direction(p).Store(true)
					return err
				})
				var commit *sqlguard.CommitError
				if !errors.Is(err, piton.ErrUnknown) || errors.Is(err, piton.ErrStale) || !errors.As(err, &commit) || commit.Err == nil {
					t.Fatalf("got %v; want ErrUnknown with the driver's error", err)
				}
				if took := time.Since(start); took > 3*time.Second {
					t.Errorf("it took %v to give up; want about 0.3s", took)
				}
				p.cut()
				if b.dialect == sqlguard.Postgres {
					eventually(t, func() bool {
						outcome, err := s.Outcome(t.Context(), err)
						must(t, err)
						return outcome == lost.outcome
					}, "the server never tells the outcome")
				} else if _, err := s.Outcome(t.Context(), err); !errors.Is(err, errors.ErrUnsupported) {
					t.Errorf("outcome: %v; want ErrUnsupported", err)
				}
				// The next holder's seal waits for whatever is still open, so what it reads is final.
				next := fence(f.Lock, 2, "b")
				must(t, s.Seal(t.Context(), next))
				if v := s.value(t, name); v != lost.want {
					t.Errorf("value %d; want %d", v, lost.want)
				}
			})
		}
	})
}

func TestGuardSealAnswerLost(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, dsn string, s *sqlStore) {
		if b.dialect == sqlguard.SQLite {
			return // no network between
		}
		p := startSwallower(t, loopback.FindString(dsn))
		far := b.open(t, loopback.ReplaceAllString(dsn, p.listener.Addr().String()))
		far.CommitTimeout = 300 * time.Millisecond
		must(t, far.db.PingContext(t.Context()))
		f := fence("seal lost", 1, "a")
		p.answers.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- far.Seal(ctx, f) }()
		eventually(t, func() bool { return ctx.Err() != nil }, "the context does not end")
		p.cut()
		if err := <-done; err == nil || errors.Is(err, piton.ErrStale) {
			t.Errorf("seal without an answer: %v; want an error that is not stale", err)
		}
		must(t, s.Seal(t.Context(), f), s.put(t.Context(), f, "k", 1))
	})
}
