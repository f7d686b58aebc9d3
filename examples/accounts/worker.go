package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pitonlock/piton"
)

// Worker adds an amount to one account again and again, each time under the
// account's lock, whose lease the Locker renews meanwhile.
type Worker struct {
	Locker     *piton.Locker
	Repository *Repository
	Account    int64
	Amount     int64
	Every      time.Duration // between two additions
	Think      time.Duration // between reading the balance and writing it
	Log        *slog.Logger
}

// Run works until ctx ends and returns nil when nothing is left behind then: the
// transaction is rolled back, the lock given back. An account that does not exist
// is an error at once. Whatever else fails is logged, and the next round comes.
func (w *Worker) Run(ctx context.Context) error {
	for {
		err := w.once(ctx)
		left := errors.Is(err, piton.ErrUnknown) || errors.Is(err, piton.ErrUnavailable)
		switch {
		case errors.Is(err, ErrNoAccount), ctx.Err() != nil && left:
			return err
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, piton.ErrUnknown): // never repeat what may have been done
			w.Log.Error("perhaps added, perhaps not", "err", err)
		case errors.Is(err, piton.ErrStale):
			w.Log.Warn("refused by the storage", "err", err)
		case err != nil:
			w.Log.Warn("not added", "err", err)
		}
		select {
		case <-time.After(w.Every):
		case <-ctx.Done():
			return nil
		}
	}
}

// once makes one addition. When ctx ends, Do stops the renewal and ends the work's
// context; MutateWithFencing rolls back and returns; then Do releases the lock.
func (w *Worker) once(ctx context.Context) error {
	return w.Locker.Do(ctx, LockName(w.Account), func(ctx context.Context, lease *piton.Lease) error {
		log := w.Log.With("account", w.Account, "token", lease.Token())
		balance, err := w.Repository.MutateWithFencing(ctx, lease.Fence(), w.Account, func(ctx context.Context, balance int64) (int64, error) {
			log.Info("read", "balance", balance)
			select {
			case <-time.After(w.Think): // the work proper: it heeds ctx
				return w.Amount, nil
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		})
		switch {
		case err == nil:
			log.Info("added", "balance", balance)
		case ctx.Err() != nil && !errors.Is(err, piton.ErrUnknown):
			log.Info("rolled back", "because", context.Cause(ctx))
		}
		return err
	})
}
