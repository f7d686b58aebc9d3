package etcdlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/etcd/etcdlock"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func Example() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://10.0.0.1:2379", "http://10.0.0.2:2379", "http://10.0.0.3:2379"},
		// A member that is frozen or cut off is left after 13 s.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	coordinator, err := etcdlock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := piton.New(coordinator) // piton.WithGuards(...): a restored backup forgets, the storage does not
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
