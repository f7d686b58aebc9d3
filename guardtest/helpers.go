package guardtest

import (
	"context"
	"fmt"
	"io"

	"github.com/pitonlock/piton"
)

// with opens n clients of the storage for one law and closes them afterwards.
func with(ctx context.Context, h Harness, n int, law func(s []Store) error) (err error) {
	var stores []Store
	defer func() {
		for _, s := range stores {
			if c, ok := s.(io.Closer); ok {
				if closeErr := c.Close(); err == nil && closeErr != nil {
					err = fmt.Errorf("closing the store: %w", closeErr)
				}
			}
		}
	}()
	for range n {
		s, err := h.Open(ctx)
		if err != nil {
			return fmt.Errorf("opening the store: %w", err)
		}
		stores = append(stores, s)
	}
	return law(stores)
}

func seal(ctx context.Context, s Store, f piton.Fence) error {
	if err := s.Seal(ctx, f); err != nil {
		return fmt.Errorf("seal with token %d, which nothing forbids: %w", f.Token, err)
	}
	return nil
}

// refused checks that a fence is not admitted, and rolls back when it is.
func refused(ctx context.Context, s Store, f piton.Fence) error {
	tx, err := s.Begin(ctx, f)
	if err == nil {
		_ = tx.Rollback(ctx)
	}
	return err
}

// inTx runs fn in a transaction admitted under f and commits it.
func inTx(ctx context.Context, s Store, f piton.Fence, fn func(tx Tx) error) error {
	tx, err := s.Begin(ctx, f)
	if err != nil {
		return fmt.Errorf("begin with token %d: %w", f.Token, err)
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback(ctx)
		return fmt.Errorf("in the transaction with token %d: %w", f.Token, err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit with token %d: %w", f.Token, err)
	}
	return nil
}

func write(ctx context.Context, s Store, f piton.Fence, key string, value int64) error {
	return inTx(ctx, s, f, func(tx Tx) error { return tx.Write(ctx, key, value) })
}

func wantValue(ctx context.Context, s Store, f piton.Fence, key string, want int64) error {
	return inTx(ctx, s, f, func(tx Tx) error {
		got, err := tx.Read(ctx, key)
		if err == nil && got != want {
			err = fmt.Errorf("%s is %d; want %d", key, got, want)
		}
		return err
	})
}
