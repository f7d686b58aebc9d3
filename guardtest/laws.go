package guardtest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pitonlock/piton"
)

func sealedBeforeUse(ctx context.Context, h Harness) error {
	return with(ctx, h, 2, func(s []Store) error {
		f := fences("SealedBeforeUse", 10, 11)
		if mark, ok, err := s[0].Mark(ctx, f[0].Lock); err != nil || ok {
			return fmt.Errorf("mark of a lock that was never sealed: %v, %v, %v; want none", mark, ok, err)
		}
		if err := wantNotSealed("begin before any seal", refused(ctx, s[0], f[0])); err != nil {
			return err
		}
		if _, ok, err := s[0].Mark(ctx, f[0].Lock); err != nil || ok {
			return fmt.Errorf("the refused transaction left a mark (%v, %v)", ok, err)
		}
		if err := seal(ctx, s[0], f[0]); err != nil {
			return err
		}
		if err := wantMark(ctx, s[1], f[0]); err != nil {
			return fmt.Errorf("another client after the seal: %w", err)
		}
		if err := wantNotSealed("begin with a newer fence than the mark", refused(ctx, s[1], f[1])); err != nil {
			return err
		}
		if err := wantMark(ctx, s[1], f[0]); err != nil {
			return fmt.Errorf("after the refused transaction: %w", err)
		}
		return write(ctx, s[1], f[0], f[0].Lock, 1)
	})
}

func storageDecides(ctx context.Context, h Harness) error {
	return with(ctx, h, 2, func(s []Store) error {
		f := fences("StorageDecides", 101, 102)
		old, young := f[0], f[1]
		key := old.Lock
		if err := errors.Join(seal(ctx, s[0], old), write(ctx, s[0], old, key, 1)); err != nil {
			return err
		}
		if err := errors.Join(seal(ctx, s[1], young), write(ctx, s[1], young, key, 2)); err != nil {
			return err
		}
		if err := wantStale("write with an older token", refused(ctx, s[0], old), old, young); err != nil {
			return err
		}
		if err := wantStale("seal with an older token", s[0].Seal(ctx, old), old, young); err != nil {
			return err
		}
		if err := errors.Join(wantMark(ctx, s[0], young), wantValue(ctx, s[1], young, key, 2)); err != nil {
			return fmt.Errorf("after the refusals: %w", err)
		}
		return race(ctx, s)
	})
}

// race lets eight holders seal and write at once. Each transaction reads the
// token of the last committed writer: it must never be newer than its own.
func race(ctx context.Context, s []Store) error {
	all := fences("StorageDecides/race", 1, 2, 3, 4, 5, 6, 7, 8)
	key := all[0].Lock
	failed := make([]error, len(all))
	var wg sync.WaitGroup
	for i, f := range all {
		wg.Go(func() {
			store := s[i%len(s)]
			if err := store.Seal(ctx, f); err != nil {
				failed[i] = ignoreStale(err)
				return
			}
			for range 5 {
				err := inTx(ctx, store, f, func(tx Tx) error {
					last, err := tx.Read(ctx, key)
					if err == nil && last > int64(f.Token) {
						err = fmt.Errorf("token %d was admitted after token %d had written", f.Token, last)
					}
					if err != nil {
						return err
					}
					return tx.Write(ctx, key, int64(f.Token))
				})
				if err != nil {
					failed[i] = ignoreStale(err)
					return
				}
			}
		})
	}
	wg.Wait()
	newest := all[len(all)-1]
	return errors.Join(errors.Join(failed...), wantMark(ctx, s[0], newest), wantValue(ctx, s[0], newest, key, int64(newest.Token)))
}

func ignoreStale(err error) error {
	if errors.Is(err, piton.ErrStale) {
		return nil
	}
	return err
}

func noReadHole(ctx context.Context, h Harness) error {
	return with(ctx, h, 2, func(s []Store) error {
		f := fences("NoReadHole", 101, 102)
		old, young := f[0], f[1]
		key := old.Lock
		if err := errors.Join(seal(ctx, s[0], old), write(ctx, s[0], old, key, 100)); err != nil {
			return err
		}
		if err := errors.Join(seal(ctx, s[1], young), wantValue(ctx, s[1], young, key, 100)); err != nil {
			return err
		}
		// The old holder wakes between the new one's read and its first write.
		if err := wantStale("write of the old holder after the new one's read", refused(ctx, s[0], old), old, young); err != nil {
			return err
		}
		if err := errors.Join(write(ctx, s[1], young, key, 105), wantValue(ctx, s[1], young, key, 105)); err != nil {
			return err
		}
		return openTransaction(ctx, h, s)
	})
}

// openTransaction is the hole's second door: the old holder is in the middle of
// an admitted transaction when the new one seals. Either the seal waits for it,
// or its commit fails.
func openTransaction(ctx context.Context, h Harness, s []Store) error {
	f := fences("NoReadHole/open", 101, 102)
	old, young := f[0], f[1]
	key := old.Lock
	if err := seal(ctx, s[0], old); err != nil {
		return err
	}
	tx, err := s[0].Begin(ctx, old)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Read(ctx, key); err != nil {
		return err
	}
	sealed := make(chan error, 1)
	go func() { sealed <- s[1].Seal(ctx, young) }()
	if returned, err := within(ctx, h.Patience, sealed); returned {
		if err != nil {
			return fmt.Errorf("seal against an open transaction: %w", err)
		}
		if err := wantValue(ctx, s[1], young, key, 0); err != nil {
			return err
		}
		if err := errors.Join(tx.Write(ctx, key, 7), tx.Commit(ctx)); err == nil {
			return errors.New("the new holder had sealed and read, and then the old holder's open transaction committed a write")
		}
		return wantValue(ctx, s[1], young, key, 0)
	}
	if err := errors.Join(tx.Write(ctx, key, 7), tx.Commit(ctx)); err != nil {
		return fmt.Errorf("the seal waits for the open transaction, which then does not commit: %w", err)
	}
	if err := <-sealed; err != nil {
		return fmt.Errorf("seal after the open transaction had committed: %w", err)
	}
	return wantValue(ctx, s[1], young, key, 7)
}

func oneHolderPerToken(ctx context.Context, h Harness) error {
	return with(ctx, h, 2, func(s []Store) error {
		f := fences("OneHolderPerToken", 5, 5, 6)
		first, second, next := f[0], f[1], f[2]
		key := first.Lock
		if err := seal(ctx, s[0], first); err != nil {
			return err
		}
		if err := wantStale("seal with the same token by another holder", s[1].Seal(ctx, second), second, first); err != nil {
			return err
		}
		if err := wantStale("write with the same token by another holder", refused(ctx, s[1], second), second, first); err != nil {
			return err
		}
		upper := piton.Fence{Lock: first.Lock, Token: first.Token, Holder: first.Holder + " "}
		if err := wantStale("seal by a holder that differs by a trailing blank", s[1].Seal(ctx, upper), upper, first); err != nil {
			return err
		}
		for i := range int64(3) {
			if err := write(ctx, s[0], first, key, i); err != nil {
				return fmt.Errorf("write %d under one token: %w", i+1, err)
			}
		}
		if err := errors.Join(seal(ctx, s[1], next), wantMark(ctx, s[0], next)); err != nil {
			return err
		}
		return wantStale("write of the first holder after the next seal", refused(ctx, s[0], first), first, next)
	})
}

func unknownIsNotNo(ctx context.Context, h Harness) error {
	return with(ctx, h, 2, func(s []Store) error {
		f := fences("UnknownIsNotNo", 7, 8)
		for i := range 3 {
			if err := seal(ctx, s[i%2], f[0]); err != nil {
				return fmt.Errorf("seal number %d with one fence: %w", i+1, err)
			}
		}
		tx, err := s[0].Begin(ctx, f[0])
		if err != nil {
			return err
		}
		again := make(chan error, 1)
		go func() { again <- s[1].Seal(ctx, f[0]) }()
		returned, err := within(ctx, h.Patience, again)
		_ = tx.Rollback(ctx)
		if !returned {
			err = <-again
			if !h.OneWriter {
				return errors.New("a repeated seal waited for its own holder's open transaction")
			}
		}
		if err != nil {
			return fmt.Errorf("a repeated seal during an open transaction: %w", err)
		}
		return interrupted(ctx, s, f[1])
	})
}

// interrupted cuts seals off in the middle; whatever each of them says, the
// same fence is accepted afterwards.
func interrupted(ctx context.Context, s []Store, f piton.Fence) error {
	for i := range 10 {
		short, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- s[0].Seal(short, f) }()
		for range i * 50 {
			_ = random(16) // a little later each time, without a clock
		}
		cancel()
		if err := <-done; errors.Is(err, piton.ErrStale) || errors.Is(err, piton.ErrNotSealed) {
			return fmt.Errorf("a seal that was cut off is reported as refused: %w", err)
		}
		if err := seal(ctx, s[1], f); err != nil {
			return fmt.Errorf("sealing again after a seal that was cut off: %w", err)
		}
		f.Token++
	}
	f.Token--
	return errors.Join(wantMark(ctx, s[0], f), write(ctx, s[0], f, f.Lock, 1))
}
