package consullock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/locktest"
)

func TestLaws(t *testing.T) {
	server := servertest.StartConsul(t)
	laws(t, server, server)
}

// The coordinators of the laws are clients of two agents.
func TestLawsOnACluster(t *testing.T) {
	cluster := servertest.StartConsulCluster(t)
	laws(t, cluster.Members[0], cluster.Members[1])
}

func laws(t *testing.T, servers ...*servertest.Consul) {
	admin := open(t, servers[0].Addr())
	var n atomic.Int64
	locktest.Run(t, locktest.Harness{
		New: func(context.Context) (piton.Coordinator, error) {
			return connect(servers[int(n.Add(1))%len(servers)].Addr())
		},
		Forget: func(ctx context.Context) error {
			_, err := admin.consul.KV().DeleteTree("piton/", write(ctx))
			return err
		},
		Left:  admin.kept,
		TTL:   time.Second, // the shortest that the servers of tests allow
		Twice: true,        // the end of a session comes with up to twice its TTL
		Late:  time.Second,
	})
}
