package redislock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/redis/redislock"
	"github.com/redis/go-redis/v9"
)

func Example() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
	defer client.Close()
	coordinator, err := redislock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	defer coordinator.Close()
	warnings, err := coordinator.Check(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, w := range warnings {
		log.Print(w)
	}
	locker, err := piton.New(coordinator) // piton.WithGuards(...): what Redis forgets, the storage knows
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)
	err = locker.Do(ctx, "invoices/7", func(ctx context.Context, lease *piton.Lease) error {
		fmt.Println("working under", lease.Fence())
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}
