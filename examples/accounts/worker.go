package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pitonlock/piton"
)

// Work decides how much is added to a balance. It may take longer than the TTL:
// the lock is held and the row sealed, so that balance stays true until ctx ends.
type Work func(ctx context.Context, balance int64) (amount int64, err error)

// Add is the work of this example: it adds amount after thinking it over.
func Add(amount int64, think time.Duration) Work {
	return func(ctx context.Context, _ int64) (int64, error) {
		select {
		case <-time.After(think):
			return amount, nil
		case <-ctx.Done(): // the lease is lost, or the worker is to stop
			return 0, context.Cause(ctx)
		}
	}
}

// Worker changes one account again and again, each time under the account's lock,
// whose lease the Locker renews meanwhile.
type Worker struct {
	Locker     *piton.Locker
	Repository *Repository
	Account    int64
	Every      time.Duration // between two changes
	Work       Work
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
			w.Log.Error("perhaps changed, perhaps not", "err", err)
		case errors.Is(err, piton.ErrStale):
			w.Log.Warn("refused by the storage", "err", err)
		case errors.Is(err, piton.ErrLost):
			w.Log.Warn("the lease was lost", "err", err)
		case err != nil:
			w.Log.Warn("this round failed", "err", err)
		}
		select {
		case <-time.After(w.Every):
		case <-ctx.Done():
			return nil
		}
	}
}

// once makes one change. When ctx ends, Do stops the renewal and ends the work's
// context; MutateWithFencing rolls back and returns; then Do releases the lock.
func (w *Worker) once(ctx context.Context) error {
	return w.Locker.Do(ctx, LockName(w.Account), func(ctx context.Context, lease *piton.Lease) error {
		fence, log := lease.Fence(), w.Log.With("account", w.Account, "token", lease.Token())
		balance, err := w.Repository.ReadWithFencing(ctx, fence, w.Account)
		if err != nil {
			return err
		}
		log.Info("read", "balance", balance)
		amount, err := w.Work(ctx, balance)
		if err != nil {
			return err
		}
		err = w.Repository.MutateWithFencing(ctx, fence, w.Account, amount)
		switch {
		case err == nil:
			log.Info("changed", "balance", balance+amount)
		case ctx.Err() != nil && !errors.Is(err, piton.ErrUnknown):
			log.Info("rolled back", "because", context.Cause(ctx))
		}
		return err
	})
}
