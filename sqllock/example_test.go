package sqllock_test

import (
	"context"
	"database/sql"
	"log"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/sqlguard"
	"github.com/pitonlock/piton/sqllock"
)

// The database that keeps the data can keep the locks, too.
func Example() {
	ctx := context.Background()
	var db *sql.DB // sql.Open("pgx", "postgres://...")
	coordinator, err := sqllock.New(db, sqllock.Postgres)
	if err != nil {
		log.Fatal(err)
	}
	guard, err := sqlguard.New(db, sqlguard.Postgres)
	if err != nil {
		log.Fatal(err)
	}
	for _, migrate := range []func(context.Context) error{coordinator.Migrate, guard.Migrate} {
		if err := migrate(ctx); err != nil {
			log.Fatal(err)
		}
	}
	locker, err := piton.New(coordinator, piton.WithGuards(guard))
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Do(ctx, "invoices/7", func(ctx context.Context, lease *piton.Lease) error {
		return guard.Tx(ctx, lease.Fence(), func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE invoices SET paid = true WHERE id = 7")
			return err
		})
	})
	if err != nil {
		log.Print(err)
	}
}
