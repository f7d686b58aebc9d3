package e2e

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/etcd/etcdlock"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/locktest"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// etcdClient is a coordinator with connections of its own, as a process has it.
type etcdClient struct {
	*etcdlock.Coordinator
	etcd *clientv3.Client
}

func (c etcdClient) Close() error { return c.etcd.Close() }

func connectEtcd(endpoints []string) (etcdClient, error) {
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, Logger: zap.NewNop(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second, // to leave a frozen member
	})
	if err != nil {
		return etcdClient{}, err
	}
	c, err := etcdlock.New(etcd)
	return etcdClient{c, etcd}, err
}

func onEtcd(tb testing.TB, endpoints ...string) etcdClient {
	tb.Helper()
	c, err := connectEtcd(endpoints)
	must(tb, err)
	tb.Cleanup(func() { must(tb, c.Close()) })
	return c
}

func etcdLaws(t *testing.T, endpoints ...string) {
	admin := onEtcd(t, endpoints...)
	locktest.Run(t, locktest.Harness{
		New: func(context.Context) (piton.Coordinator, error) { return connectEtcd(endpoints) },
		Forget: func(ctx context.Context) error {
			_, err := admin.etcd.Delete(ctx, "piton/", clientv3.WithPrefix())
			return err
		},
		Left: func(ctx context.Context, prefix string) (int, error) {
			left, err := admin.etcd.Get(ctx, "piton/lock/"+prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil {
				return 0, err
			}
			far, err := admin.etcd.Get(ctx, "piton/offset/"+prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil {
				return 0, err
			}
			return int(left.Count + far.Count), nil
		},
		TTL:  time.Second,
		Late: time.Second,
	})
}

// Debian's etcd is of 2019; this is the release that the client is of.
func TestEtcdLawsOnAPresentRelease(t *testing.T) { etcdLaws(t, embedded(t)) }

func TestEtcdLawsOnThreeMembers(t *testing.T) {
	etcdLaws(t, servertest.StartEtcdCluster(t).Endpoints()...)
}

// embedded starts an etcd within this process and returns its address.
func embedded(t *testing.T) string {
	t.Helper()
	local := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config := embed.NewConfig()
	config.Dir, config.UnsafeNoFsync = t.TempDir(), true
	config.TickMs, config.ElectionMs = 20, 200
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	config.ListenClientUrls, config.AdvertiseClientUrls = local, local
	config.ListenPeerUrls, config.AdvertisePeerUrls = local, local
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	must(t, err)
	t.Cleanup(server.Close)
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		t.Fatal("the embedded etcd is not ready")
	}
	return "http://" + server.Clients[0].Addr().String()
}
