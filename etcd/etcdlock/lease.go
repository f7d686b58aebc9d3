package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// errEnded is the answer about an etcd lease that is not there.
var errEnded = errors.New("the etcd lease has ended")

// begin makes the lease of an acquisition, or starts the time of the one that an
// earlier attempt has made, and returns the time that etcd gives it.
func (c *Coordinator) begin(ctx context.Context, id clientv3.LeaseID, ttl time.Duration, s state) (time.Duration, error) {
	if s.held != nil {
		return c.keepAlive(ctx, id, s.term)
	}
	answer, err := c.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: seconds(ttl)})
	err = clientv3.ContextError(ctx, err)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseExist):
		return c.keepAlive(ctx, id, s.term)
	case err != nil:
		return 0, err
	}
	return time.Duration(answer.TTL) * time.Second, nil
}

// keepAlive starts the time of a lease anew, if it has not ended, by one request.
//
// A leader that was replaced without noticing, frozen for example, would still
// answer, and nobody else would know. So term is that of an answer which the
// cluster gave since the call began, and a member of an older term does not count.
// The leader that did renew was in office since then; whoever follows it was
// elected after the call began, and gives each lease its whole time at that moment.
func (c *Coordinator) keepAlive(ctx context.Context, id clientv3.LeaseID, term uint64) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := c.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return 0, clientv3.ContextError(ctx, err)
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return 0, clientv3.ContextError(ctx, err)
	}
	answer, err := stream.Recv()
	switch {
	case err != nil:
		return 0, clientv3.ContextError(ctx, err)
	case answer.TTL <= 0:
		return 0, errEnded
	case answer.Header.GetRaftTerm() < term:
		return 0, fmt.Errorf("the lease was renewed by a member in term %d, while the cluster is in %d", answer.Header.GetRaftTerm(), term)
	}
	return time.Duration(answer.TTL) * time.Second, nil
}

// revoke ends a lease and with it the key that is attached to it. What is still
// under way and wants to attach one will fail.
func (c *Coordinator) revoke(ctx context.Context, id clientv3.LeaseID) error {
	_, err := c.client.Revoke(ctx, id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// remaining is the time until a lease ends unless it is renewed, 0 when it has
// ended. etcd tells whole seconds, rounded down; this is rounded up.
func (c *Coordinator) remaining(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	answer, err := c.client.TimeToLive(ctx, id)
	if err != nil || answer.TTL < 0 {
		return 0, err
	}
	return time.Duration(min(answer.TTL+1, answer.GrantedTTL)) * time.Second, nil
}

// seconds is a TTL as etcd takes it.
func seconds(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }
