package etcdlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/locktest"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestLaws(t *testing.T) {
	server := servertest.StartEtcd(t)
	admin := open(t, server.Endpoint())
	locktest.Run(t, locktest.Harness{
		New: func(context.Context) (piton.Coordinator, error) { return connect(server.Endpoint()) },
		Forget: func(ctx context.Context) error {
			_, err := admin.etcd.Delete(ctx, "piton/", clientv3.WithPrefix())
			return err
		},
		Left: admin.kept,
		TTL:  time.Second, // the shortest that etcd has
		Late: time.Second, // it looks for leases that have ended twice a second
	})
}
