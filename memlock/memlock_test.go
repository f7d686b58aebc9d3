package memlock_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/locktest"
	"github.com/pitonlock/piton/memlock"
)

func TestLaws(t *testing.T) {
	c := memlock.New()
	locktest.Run(t, locktest.Harness{
		New:    func(context.Context) (piton.Coordinator, error) { return c, nil },
		Forget: func(context.Context) error { c.Forget(); return nil },
		Left: func(_ context.Context, prefix string) (int, error) {
			list, err := c.List(context.Background(), prefix, 0)
			return len(list), err
		},
	})
}

// Locks that nobody released are forgotten, too, when new ones come.
func TestExpiredLocksAreCleanedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := memlock.New()
		most := 0
		for n := range 10_000 {
			_, err := c.Acquire(t.Context(), piton.Request{Lock: fmt.Sprint(n), Holder: "h", TTL: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // about a hundred are held at a time
			most = max(most, c.Kept())
		}
		if most > 300 {
			t.Errorf("up to %d entries were kept for 100 locks held", most)
		}
	})
}

func Example() {
	locker, err := piton.New(memlock.New())
	if err != nil {
		panic(err)
	}
	err = locker.Do(context.Background(), "once", func(context.Context, *piton.Lease) error {
		fmt.Println("alone")
		return nil
	})
	fmt.Println(err)
	// Output:
	// alone
	// <nil>
}
