package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/faultproxy"
	"github.com/pitonlock/piton/sqlguard"
)

var loopback = regexp.MustCompile(`127\.0\.0\.1:\d+`)

func TestGuardCommitAnswerLost(t *testing.T) {
	each(t, func(t *testing.T, b sqlBackend, dsn string, s *sqlStore) {
		if b.dialect == sqlguard.SQLite {
			return // no network between
		}
		for name, lost := range map[string]struct {
			direction faultproxy.Direction
			want      int64 // in the database afterwards
			outcome   sqlguard.Outcome
		}{
			"answer":  {faultproxy.ToClient, 9, sqlguard.Committed},
			"request": {faultproxy.ToServer, 0, sqlguard.RolledBack},
		} {
			t.Run(name, func(t *testing.T) {
				p := faultproxy.Start(t, loopback.FindString(dsn))
				far := b.open(t, loopback.ReplaceAllString(dsn, p.Addr()))
				far.CommitTimeout = 300 * time.Millisecond
				f := fence("lost "+name, 1, "a")
				must(t, far.Seal(t.Context(), f))
				start := time.Now()
				err := far.Tx(t.Context(), f, func(ctx context.Context, tx *sql.Tx) error {
					p.OnData(func(dir faultproxy.Direction, data []byte) {
						if dir == faultproxy.ToServer && bytes.Contains(bytes.ToUpper(data), []byte("COMMIT")) {
							p.Set(lost.direction, faultproxy.Drop)
						}
					})
					return numbers{tx, b.dialect}.Write(ctx, name, 9)
				})
				var commit *sqlguard.CommitError
				if !errors.Is(err, piton.ErrUnknown) || errors.Is(err, piton.ErrStale) || !errors.As(err, &commit) || commit.Err == nil {
					t.Fatalf("got %v; want ErrUnknown with the driver's error", err)
				}
				if took := time.Since(start); took > 3*time.Second {
					t.Errorf("it took %v to give up; want about 0.3s", took)
				}
				p.OnData(nil)
				p.ResetAll()
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
		p := faultproxy.Start(t, loopback.FindString(dsn))
		far := b.open(t, loopback.ReplaceAllString(dsn, p.Addr()))
		far.CommitTimeout = 300 * time.Millisecond
		must(t, far.db.PingContext(t.Context()))
		f := fence("seal lost", 1, "a")
		p.Set(faultproxy.ToClient, faultproxy.Drop)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- far.Seal(ctx, f) }()
		eventually(t, func() bool { return ctx.Err() != nil }, "the context does not end")
		p.ResetAll()
		if err := <-done; err == nil || errors.Is(err, piton.ErrStale) {
			t.Errorf("seal without an answer: %v; want an error that is not stale", err)
		}
		must(t, s.Seal(t.Context(), f), s.put(t.Context(), f, "k", 1))
	})
}
