package main

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/pitonlock/piton"
)

func fence(token piton.Token, holder string) piton.Fence {
	return piton.Fence{Lock: LockName(1), Token: token, Holder: holder}
}

func TestAStaleTokenIsToldFromAMissingAccount(t *testing.T) {
	b := newBank(t)
	ctx := t.Context()
	old, next, twin := fence(10, "old"), fence(11, "next"), fence(11, "twin")
	if err := errors.Join(b.repo.Seal(ctx, old), b.repo.Seal(ctx, next), b.repo.Seal(ctx, next)); err != nil {
		t.Fatal(err)
	}
	for _, f := range []piton.Fence{old, twin} {
		_, read := b.repo.ReadWithFencing(ctx, f, 1)
		for _, err := range []error{read, b.repo.MutateWithFencing(ctx, f, 1, 5), b.repo.Seal(ctx, f)} {
			var stale *piton.StaleError
			if !errors.As(err, &stale) || stale.Fence != f || stale.Mark != next || errors.Is(err, ErrNoAccount) {
				t.Errorf("%v: %v; want it stale, with both fences", f, err)
			}
		}
	}
	missing := piton.Fence{Lock: LockName(2), Token: 1, Holder: "next"}
	_, read := b.repo.ReadWithFencing(ctx, missing, 2)
	for _, err := range []error{read, b.repo.MutateWithFencing(ctx, missing, 2, 5), b.repo.Seal(ctx, missing)} {
		if !errors.Is(err, ErrNoAccount) || errors.Is(err, piton.ErrStale) || !strings.Contains(err.Error(), "account 2") {
			t.Errorf("a missing account: %v", err)
		}
	}
	if got := b.balance(t); got != 0 {
		t.Errorf("the balance is %d after refused writes only", got)
	}
}

func TestAHolderWritesAsOftenAsItLikes(t *testing.T) {
	b := newBank(t)
	for want := int64(1); want <= 3; want++ {
		err := b.repo.MutateWithFencing(t.Context(), fence(7, "me"), 1, 1)
		got, unread := b.repo.ReadWithFencing(t.Context(), fence(7, "me"), 1)
		if err != nil || unread != nil || got != want || b.balance(t) != want {
			t.Errorf("balance %d, %v, %v; want %d", got, err, unread, want)
		}
	}
}

// The new holder has read and not written yet; the old one comes in between.
func TestReadingSealsTheRow(t *testing.T) {
	b := newBank(t)
	ctx := t.Context()
	old, next := fence(10, "old"), fence(11, "next")
	if err := b.repo.MutateWithFencing(ctx, old, 1, 1); err != nil {
		t.Fatal(err)
	}
	read, err := b.repo.ReadWithFencing(ctx, next, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.repo.MutateWithFencing(ctx, old, 1, 1); !errors.Is(err, piton.ErrStale) {
		t.Errorf("the old holder: %v", err)
	}
	if err := b.repo.MutateWithFencing(ctx, next, 1, 1); err != nil || b.balance(t) != read+1 {
		t.Errorf("the new holder read %d and added 1: %d, %v", read, b.balance(t), err)
	}
}

func TestNothingIsWrittenAfterAnError(t *testing.T) {
	b := newBank(t)
	f := fence(7, "me")
	if err := b.repo.MutateWithFencing(t.Context(), f, 1, 1); err != nil {
		t.Fatal(err)
	}
	check := func(name string, err, want error) {
		t.Helper()
		if err == nil || want != nil && !errors.Is(err, want) || errors.Is(err, piton.ErrStale) || errors.Is(err, piton.ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
		if got := b.balance(t); got != 1 {
			t.Errorf("%s: the balance is %d; want 1", name, got)
		}
	}
	check("overflow", b.repo.MutateWithFencing(t.Context(), f, 1, math.MaxInt64), nil)

	broken := errors.New("broken")
	ctx, cancel := context.WithCancelCause(t.Context())
	unlock := b.lockRow(t)
	written := make(chan error, 1)
	go func() { written <- b.repo.MutateWithFencing(ctx, f, 1, 1) }()
	b.waitForBlocked(t)
	cancel(broken)
	err := <-written
	if n := b.blocked(t); n != 0 {
		t.Error("the server is still busy with a statement that was rolled back")
	}
	check("ended in the statement", err, broken)
	unlock()
	check("ended after the statement", func() error {
		ctx, cancel := context.WithCancelCause(t.Context())
		return b.repo.transaction(ctx, f, 1, func(tx *sql.Tx) error {
			defer cancel(broken)
			return b.repo.rows.Update(ctx, tx, f, 1, "balance = balance + 1")
		})
	}(), broken)
	check("ended before", b.repo.MutateWithFencing(ctx, f, 1, 1), broken)
}

// A COMMIT whose answer is lost is neither done nor refused.
func TestALostAnswerIsUnknown(t *testing.T) {
	b := newBank(t)
	_, err := b.db.Exec(`CREATE FUNCTION quit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER quit AFTER UPDATE ON account_balances DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION quit()`)
	if err != nil {
		t.Fatal(err)
	}
	err = b.repo.MutateWithFencing(t.Context(), fence(7, "me"), 1, 1)
	if !errors.Is(err, piton.ErrUnknown) || errors.Is(err, piton.ErrStale) {
		t.Errorf("%v; want it unknown", err)
	}
}

// The fence of another account, or of no account, is a mistake of the program.
func TestAFenceOfAnotherLockIsRefused(t *testing.T) {
	b := newBank(t)
	f := piton.Fence{Lock: LockName(2), Token: 99, Holder: "me"}
	if err := b.repo.MutateWithFencing(t.Context(), f, 1, 1); err == nil || b.balance(t) != 0 {
		t.Errorf("balance %d, %v", b.balance(t), err)
	}
	for _, lock := range []string{"1", "accounts/", "accounts/01", "invoices/1"} {
		if err := b.repo.Seal(t.Context(), piton.Fence{Lock: lock, Token: 99, Holder: "me"}); err == nil {
			t.Errorf("lock %q was taken for an account's", lock)
		}
	}
}

func TestMigrateInSeveralProcessesAtOnce(t *testing.T) {
	b := newBank(t)
	for range 5 {
		if _, err := b.db.Exec("DROP TABLE account_balances"); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if err := b.repo.Migrate(t.Context(), 1); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}

// Changes under one token do not get lost.
func TestChangesOfOneHolderSideBySide(t *testing.T) {
	b := newBank(t)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := b.repo.MutateWithFencing(t.Context(), fence(7, "me"), 1, 1); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := b.balance(t); got != 20 {
		t.Errorf("the balance is %d; want 20", got)
	}
}
