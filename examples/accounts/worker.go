package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pitonlock/piton"
)

// Worker adds an amount to one account again and again, each time under the
// account's lock.
type Worker struct {
	Locker     *piton.Locker
	Repository *Repository
	Account    int64
	Amount     int64
	Every      time.Duration // between two additions
	Think      time.Duration // between reading the balance and writing it
	Log        *slog.Logger
}

// Run works until ctx ends, which is no error, or until the account turns out not
// to exist. What fails otherwise is logged and done again the next time.
func (w *Worker) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := w.once(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, ErrNoAccount):
			return err
		case errors.Is(err, piton.ErrStale):
			w.Log.Warn("refused by the storage", "err", err)
		case errors.Is(err, piton.ErrUnknown):
			w.Log.Warn("perhaps added, perhaps not", "err", err)
		default:
			w.Log.Warn("not added", "err", err)
		}
		select {
		case <-time.After(w.Every):
		case <-ctx.Done():
		}
	}
	return nil
}

func (w *Worker) once(ctx context.Context) error {
	return w.Locker.Do(ctx, LockName(w.Account), func(ctx context.Context, lease *piton.Lease) error {
		balance, err := w.Repository.MutateWithFencing(ctx, lease.Fence(), w.Account, w.Amount, func(ctx context.Context, balance int64) error {
			w.Log.Info("read", "balance", balance, "token", lease.Token())
			select {
			case <-time.After(w.Think):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		switch {
		case err == nil:
			w.Log.Info("added", "balance", balance, "token", lease.Token())
		case ctx.Err() != nil:
			w.Log.Info("rolled back", "token", lease.Token(), "because", context.Cause(ctx))
		}
		return err
	})
}
