package pgxlock_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/postgres/pgxlock"
)

func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://app@127.0.0.1/app")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	coordinator, err := pgxlock.New(pool)
	if err != nil {
		log.Fatal(err)
	}
	defer coordinator.Close()
	if err := coordinator.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	locker, err := piton.New(coordinator) // piton.WithGuards(...): sqlguard on stdlib.OpenDBFromPool(pool)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)
	err = locker.Do(ctx, "invoices/7", func(ctx context.Context, lease *piton.Lease) error {
		log.Print("working under ", lease.Fence())
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}
