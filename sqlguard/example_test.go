package sqlguard_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/memlock"
	"github.com/pitonlock/piton/sqlguard"
)

func Example() {
	ctx := context.Background()
	var db *sql.DB // sql.Open("pgx", "postgres://...")
	guard, err := sqlguard.New(db, sqlguard.Postgres)
	if err != nil {
		log.Fatal(err)
	}
	if err := guard.Migrate(ctx); err != nil { // once, or at every start
		log.Fatal(err)
	}
	locker, err := piton.New(memlock.New(), piton.WithGuards(guard))
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Do(ctx, "invoices/7", func(ctx context.Context, lease *piton.Lease) error {
		return guard.Tx(ctx, lease.Fence(), func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE invoices SET paid = true WHERE id = 7")
			return err
		})
	})
	switch {
	case errors.Is(err, piton.ErrStale):
		log.Print("another holder has come since; nothing was written: ", err)
	case errors.Is(err, piton.ErrUnknown):
		outcome, err := guard.Outcome(ctx, err) // committed or not: PostgreSQL can tell
		log.Print(outcome, err)
	case err != nil:
		log.Print(err)
	}
}

// A script's transaction begins with this text.
func ExampleAdmitScript() {
	script, err := sqlguard.AdmitScript(sqlguard.SQLite, piton.Fence{Lock: "a", Token: 7, Holder: "b"})
	fmt.Print(script, err)
	// Output:
	// INSERT OR ROLLBACK INTO piton_marks ("lock", token, holder)
	// SELECT CAST(x'61' AS TEXT), 0, 'stale fence, or never sealed in this database'
	// WHERE NOT EXISTS (SELECT 1 FROM piton_marks WHERE "lock" = CAST(x'61' AS TEXT) AND token = 7 AND holder = CAST(x'62' AS TEXT));
	// <nil>
}
