package piton_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/memlock"
)

func ExampleLocker_Do() {
	locker, err := piton.New(memlock.New(), piton.WithOwner("example"))
	if err != nil {
		panic(err)
	}
	err = locker.Do(context.Background(), "invoices/7", func(ctx context.Context, lease *piton.Lease) error {
		fmt.Println("working under token", lease.Token())
		return nil
	})
	fmt.Println(err)
	fmt.Println(locker.Close(context.Background()))
	// Output:
	// working under token 1
	// <nil>
	// <nil>
}

func ExampleLocker_TryAcquire() {
	ctx := context.Background()
	coordinator := memlock.New()
	first, _ := piton.New(coordinator, piton.WithOwner("first"))
	second, _ := piton.New(coordinator)
	lease, err := first.TryAcquire(ctx, "deploy")
	if err != nil {
		panic(err)
	}
	_, err = second.TryAcquire(ctx, "deploy")
	var held *piton.HeldError
	if errors.As(err, &held) {
		fmt.Println("held by", held.Owner, "with token", held.Token)
	}
	fmt.Println(lease.Release(ctx))
	// Output:
	// held by first with token 1
	// <nil>
}

func ExampleLease_Context() {
	ctx := context.Background()
	coordinator := memlock.New()
	locker, _ := piton.New(coordinator, piton.WithTTL(90*time.Millisecond))
	lease, _ := locker.Acquire(ctx, "report")
	_, _ = coordinator.Break(ctx, "report", lease.Token()) // an operator takes it away

	<-lease.Done() // at the next heartbeat
	fmt.Println(errors.Is(context.Cause(lease.Context()), piton.ErrLost))
	// Output: true
}

func ExampleFence_String() {
	f := piton.Fence{Lock: "invoices/7", Token: 42, Holder: "8d3f"}
	fmt.Println(f)
	parsed, err := piton.ParseFence(f.String())
	fmt.Println(parsed == f, err)
	// Output:
	// 42;lock="invoices/7";holder="8d3f"
	// true <nil>
}
