package etcdlock

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/pitonlock/piton"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	lockPrefix = "piton/lock/"
	offsetKey  = "piton/offset"
	farPrefix  = "piton/offset/" // of one lock

	// farToken is where a floor is held against its lock alone: the offset of all
	// locks would use up everybody's numbers. Ten thousand writes a second come there
	// after half a century, milliseconds since 1970 after five centuries.
	farToken = piton.Token(1) << 44
)

func lockKey(lock string) string { return lockPrefix + lock }

// leaseOf is the id of the etcd lease of an acquisition. As it follows from lock
// and holder, a request that is sent again cannot make a second lease, and
// whatever a holder has can be ended without knowing how far its requests came.
func leaseOf(lock, holder string) clientv3.LeaseID {
	sum := sha256.Sum256([]byte(holder + "\x00" + lock)) // neither has a zero byte
	return clientv3.LeaseID(binary.BigEndian.Uint64(sum[:])>>1 | 1)
}

// value is what a lock's key holds, as JSON.
type value struct {
	Holder string `json:"holder"`
	Owner  string `json:"owner,omitempty"`
	Offset int64  `json:"offset,omitempty"` // what makes the token of the key's revision
}

// record is a lock's key.
type record struct {
	value
	lock     string
	revision int64 // of the write that granted
	lease    clientv3.LeaseID
}

func (r *record) token() piton.Token { return piton.Token(r.revision + r.Offset) }

func parse(kv *mvccpb.KeyValue) (*record, error) {
	r := &record{lock: string(kv.Key[len(lockPrefix):]), revision: kv.ModRevision, lease: clientv3.LeaseID(kv.Lease)}
	if err := json.Unmarshal(kv.Value, &r.value); err != nil || r.Holder == "" {
		return nil, fmt.Errorf("the key %q is not one of piton's: its value is %.100q", kv.Key, kv.Value)
	}
	return r, nil
}

// offset is a number that is added to revisions; it only grows.
type offset struct {
	amount   int64
	revision int64 // of its key, 0 when there is none
}

// state is what decides about a lock, as one moment had it.
type state struct {
	revision int64  // of the store
	term     uint64 // of the member that answered
	held     *record
	all, far offset
}

// reads are the requests whose answers make a state.
func reads(lock string) []clientv3.Op {
	return []clientv3.Op{clientv3.OpGet(lockKey(lock)), clientv3.OpGet(offsetKey), clientv3.OpGet(farPrefix + lock)}
}

func stateOf(answer *clientv3.TxnResponse) (state, error) {
	s := state{revision: answer.Header.Revision, term: answer.Header.RaftTerm}
	var err error
	if kv := found(answer.Responses[0]); kv != nil {
		if s.held, err = parse(kv); err != nil {
			return s, err
		}
	}
	for i, o := range []*offset{&s.all, &s.far} {
		kv := found(answer.Responses[1+i])
		if kv == nil {
			continue
		}
		o.revision = kv.ModRevision
		if o.amount, err = strconv.ParseInt(string(kv.Value), 10, 64); err != nil {
			return s, fmt.Errorf("the key %q is not one of piton's: %w", kv.Key, err)
		}
	}
	return s, nil
}

// found is the key that one request of a transaction has read; nil: there is none.
func found(r *pb.ResponseOp) *mvccpb.KeyValue {
	if kvs := r.GetResponseRange().GetKvs(); len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}

// step is one transaction that grants a lock, if the state is still the same.
type step struct {
	conditions []clientv3.Cmp
	writes     []clientv3.Op
	offset     int64 // added to the transaction's revision it makes the token
}

// grant plans the write that gives the lock to r: a key that was not there, or a
// new revision of r's own. Its token will be above the floor, since the revision
// of the write is above that of the state.
func (s state) grant(r piton.Request) (step, error) {
	t := step{offset: max(s.all.amount, s.far.amount)}
	revision := int64(0)
	if s.held != nil {
		revision = s.held.revision
	}
	t.conditions = []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(lockKey(r.Lock)), "=", revision),
		clientv3.Compare(clientv3.ModRevision(offsetKey), "=", s.all.revision),
		clientv3.Compare(clientv3.ModRevision(farPrefix+r.Lock), "=", s.far.revision),
	}
	if need := int64(r.Floor) - s.revision; need > t.offset {
		t.offset = need
		key := offsetKey
		if r.Floor >= farToken {
			key = farPrefix + r.Lock
		}
		t.writes = append(t.writes, clientv3.OpPut(key, strconv.FormatInt(need, 10)))
	}
	if t.offset >= int64(piton.MaxToken)-s.revision {
		return t, fmt.Errorf("no token of %q is left: the store's revision is %d, its offset %d; want a sum below %d", r.Lock, s.revision, t.offset, piton.MaxToken)
	}
	text, err := json.Marshal(value{Holder: r.Holder, Owner: r.Owner, Offset: t.offset})
	if err != nil {
		return t, err
	}
	t.writes = append(t.writes, clientv3.OpPut(lockKey(r.Lock), string(text), clientv3.WithLease(leaseOf(r.Lock, r.Holder))))
	return t, nil
}
