package consullock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hashicorp/consul/api"
	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/consul/consullock"
)

func Example() {
	ctx := context.Background()
	client, err := api.NewClient(api.DefaultConfig()) // of the agent on this machine
	if err != nil {
		log.Fatal(err)
	}
	coordinator, err := consullock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := piton.New(coordinator) // piton.WithGuards(...): a restored snapshot forgets, the storage does not
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
