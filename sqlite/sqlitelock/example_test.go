package sqlitelock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/sqlite/sqlitelock"
)

// All processes of this machine that open the same file share its locks.
func Example() {
	folder, err := os.MkdirTemp("", "piton")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	c, err := sqlitelock.Open(filepath.Join(folder, "locks.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	// Most programs give c to piton.New; this is what happens underneath.
	ctx := context.Background()
	first, err := c.Acquire(ctx, piton.Request{Lock: "invoices/7", Holder: "8d3f", Owner: "worker 1", TTL: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("token", first.Token)
	_, err = c.Acquire(ctx, piton.Request{Lock: "invoices/7", Holder: "51c0", Owner: "worker 2", TTL: 30 * time.Second})
	fmt.Println("worker 2 is refused:", errors.Is(err, piton.ErrHeld))
	if err := c.Release(ctx, first); err != nil {
		log.Fatal(err)
	}
	second, err := c.Acquire(ctx, piton.Request{Lock: "invoices/7", Holder: "51c0", Owner: "worker 2", TTL: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("token", second.Token)
	// Output:
	// token 1
	// worker 2 is refused: true
	// token 2
}
