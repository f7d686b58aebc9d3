package guardtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pitonlock/piton"
)

// within waits for a result for as long as patience lasts.
func within(ctx context.Context, patience time.Duration, result <-chan error) (returned bool, err error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-result:
		return true, err
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// names are all distinct locks, however a storage may like to fold them.
func names() []string {
	base := random(6)
	all := []string{base}
	for _, odd := range []string{
		"a", "A", "a ", " a", "a  ", "a\t", "a\n", "a/", "/a", "a/b", "ab", "abc", "ä", "Ä", "a\u0308", "ss", "ß",
		"%", "_", "a%", "a_", "*", "?", "{a}", "{", "}", "[a]", "'", "''", "\"", "`", "\\", "\\\\", ";", "--", "/*", "$1", "?1", ":a",
		"'; DROP TABLE piton_marks; --", "' OR '1'='1", "NULL", "null", "0", "00", "1e1", "10",
		"🧗", "🧗\u200d♀️", "日本語", "\u202e", "\u00a0", "\ufeff", "\x01", "\x7f", "\U0010ffff", "e\u0301", "é", "İ", "i", "ı",
	} {
		all = append(all, base+odd, odd+base)
	}
	long := base + strings.Repeat("x", piton.MaxLockBytes-len(base)-1)
	return append(all, long, long+"y", long+"Y", long+" ", base+strings.Repeat("🧗", (piton.MaxLockBytes-len(base))/4))
}

func oddNames(ctx context.Context, h Harness) error {
	return with(ctx, h, 1, func(s []Store) error {
		all := names()
		marks := make([]piton.Fence, len(all))
		for i, name := range all {
			marks[i] = piton.Fence{Lock: name, Token: piton.Token(len(all) - i), Holder: random(16)} // falling, so that a mix-up is refused
			if err := s[0].Seal(ctx, marks[i]); err != nil {
				return fmt.Errorf("seal of the lock %q: %w", name, err)
			}
		}
		for _, f := range marks {
			if err := wantMark(ctx, s[0], f); err != nil {
				return err
			}
			if err := inTx(ctx, s[0], f, func(Tx) error { return nil }); err != nil {
				return fmt.Errorf("transaction under the lock %q: %w", f.Lock, err)
			}
		}
		for _, bad := range []string{"", strings.Repeat("x", piton.MaxLockBytes+1), strings.Repeat("ü", piton.MaxLockBytes/2+1), "a\xff", "\xc3", "a\x00b", "\x00"} {
			f := piton.Fence{Lock: bad, Token: 1, Holder: random(16)}
			if err := s[0].Seal(ctx, f); err == nil || errors.Is(err, piton.ErrStale) {
				return fmt.Errorf("seal of the name %.20q with %d bytes: %v; want it refused as no lock name", bad, len(bad), err)
			}
			if err := refused(ctx, s[0], f); err == nil || errors.Is(err, piton.ErrStale) || errors.Is(err, piton.ErrNotSealed) {
				return fmt.Errorf("begin under the name %.20q with %d bytes: %v; want it refused as no lock name", bad, len(bad), err)
			}
		}
		return nil
	})
}

func parallelWriters(ctx context.Context, h Harness) error {
	return with(ctx, h, 2, func(s []Store) error {
		f := fences("ParallelWriters", 3)[0]
		if err := seal(ctx, s[0], f); err != nil {
			return err
		}
		one, err := s[0].Begin(ctx, f)
		if err != nil {
			return err
		}
		defer func() { _ = one.Rollback(ctx) }()
		second := make(chan error, 1)
		go func() { second <- write(ctx, s[1], f, f.Lock+"/2", 2) }()
		returned, err := within(ctx, h.Patience, second)
		if returned && err != nil {
			return fmt.Errorf("second transaction of the holder: %w", err)
		}
		if !returned && !h.OneWriter {
			return errors.New("the second transaction of one holder waited for the first, which writes other data")
		}
		if err := errors.Join(one.Write(ctx, f.Lock+"/1", 1), one.Commit(ctx)); err != nil {
			return fmt.Errorf("first transaction of the holder: %w", err)
		}
		if !returned {
			if err := <-second; err != nil {
				return fmt.Errorf("second transaction of the holder, after the first: %w", err)
			}
		}
		return errors.Join(wantValue(ctx, s[0], f, f.Lock+"/1", 1), wantValue(ctx, s[0], f, f.Lock+"/2", 2))
	})
}

func nothingLeft(ctx context.Context, h Harness) error {
	return with(ctx, h, 1, func(s []Store) error {
		f := fences("NothingLeft", 1)[0]
		stale := piton.Fence{Lock: f.Lock, Token: 1, Holder: random(16)}
		for i := range 50 {
			f.Token, f.Holder = piton.Token(10+i), random(16)
			future := piton.Fence{Lock: f.Lock, Token: f.Token + 1000, Holder: f.Holder}
			err := errors.Join(
				seal(ctx, s[0], f),
				seal(ctx, s[0], f),
				write(ctx, s[0], f, f.Lock, int64(i)),
				wantStale("seal", s[0].Seal(ctx, stale), stale, f),
				wantStale("write", refused(ctx, s[0], stale), stale, f),
				wantNotSealed("write", refused(ctx, s[0], future)),
			)
			if err != nil {
				return fmt.Errorf("round %d: %w", i+1, err)
			}
			dropped, err := s[0].Begin(ctx, f)
			if err != nil {
				return err
			}
			if err := dropped.Rollback(ctx); err != nil {
				return fmt.Errorf("rollback: %w", err)
			}
		}
		marks, err := h.Marks(ctx, f.Lock)
		if err != nil {
			return fmt.Errorf("counting marks: %w", err)
		}
		if marks != 1 {
			return fmt.Errorf("%d marks are left of one lock after 50 holders; want 1", marks)
		}
		return untilIdle(ctx, h, s[0])
	})
}

// untilIdle gives connections that are being handed back a moment.
func untilIdle(ctx context.Context, h Harness, s Store) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	end := time.NewTimer(2 * time.Second)
	defer end.Stop()
	for h.InUse(s) != 0 {
		select {
		case <-ticker.C:
		case <-end.C:
			return fmt.Errorf("%d transactions or connections are still open", h.InUse(s))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
