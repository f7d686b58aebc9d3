//go:build linux

package lab

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

type etcdServer struct{ client *clientv3.Client }

func (s etcdServer) prepare(context.Context) error { return nil }
func (s etcdServer) clean(context.Context) error   { return nil }
func (s etcdServer) close() error                  { return s.client.Close() }
func (s etcdServer) lock(name string) usual        { return &etcdLock{client: s.client, name: name} }

func (s etcdServer) forget(ctx context.Context, name string) error {
	_, err := s.client.Delete(ctx, name+"/", clientv3.WithPrefix())
	return err
}

// etcdLock is a key with a lease. The counter beside it is of the lock's own, as
// programs have it that do not trust revisions, or moved here from Redis.
type etcdLock struct {
	client *clientv3.Client
	name   string
	lease  clientv3.LeaseID // of the last take that succeeded
}

func (l *etcdLock) key() string     { return l.name + "/lock" }
func (l *etcdLock) counter() string { return l.name + "/counter" }

// take looks before it makes a lease, since it is called again and again.
func (l *etcdLock) take(ctx context.Context, owner string, ttl time.Duration) (bool, error) {
	there, err := l.client.Get(ctx, l.key(), clientv3.WithKeysOnly())
	if err != nil || len(there.Kvs) > 0 {
		return false, err
	}
	lease, err := l.client.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return false, err
	}
	answer, err := l.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(l.key()), "=", 0)).
		Then(clientv3.OpPut(l.key(), owner, clientv3.WithLease(lease.ID))).Commit()
	if err == nil && answer.Succeeded {
		l.lease = lease.ID
		return true, nil
	}
	_, revokeErr := l.client.Revoke(ctx, lease.ID)
	return false, errors.Join(err, revokeErr)
}

func (l *etcdLock) count(ctx context.Context) (int64, error) {
	for {
		answer, err := l.client.Get(ctx, l.counter())
		if err != nil {
			return 0, err
		}
		var n, revision int64
		for _, kv := range answer.Kvs {
			revision = kv.ModRevision
			if n, err = strconv.ParseInt(string(kv.Value), 10, 64); err != nil {
				return 0, err
			}
		}
		put, err := l.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(l.counter()), "=", revision)).
			Then(clientv3.OpPut(l.counter(), strconv.FormatInt(n+1, 10))).Commit()
		if err != nil || put.Succeeded {
			return n + 1, err
		}
	}
}

func (l *etcdLock) renew(ctx context.Context, _ string, _ time.Duration) (bool, error) {
	_, err := l.client.KeepAliveOnce(ctx, l.lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (l *etcdLock) release(ctx context.Context, _ string) error {
	_, err := l.client.Revoke(ctx, l.lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}
