package consullock

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/pitonlock/piton"
)

const (
	lockFolder  = "piton/lock/"
	holderEntry = "/holder" // in the folder of a lock: who holds it
	farEntry    = "/offset" // the offset of this lock alone
	offsetKey   = "piton/offset"

	// farToken is where a floor is held against its lock alone: the offset of all
	// locks would use up everybody's numbers. Ten thousand writes a second come there
	// after half a century, milliseconds since 1970 after five centuries.
	farToken = piton.Token(1) << 44
)

func holderKey(lock string) string { return lockFolder + escape(lock) + holderEntry }

// escape makes a part of a key of any name: the bytes that are no letter, digit,
// - or _ become ~ and two digits. Consul's keys are parts of URLs, whose slashes,
// dots and percent signs servers and proxies treat in their own ways.
func escape(name string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			b.Write([]byte{'~', digits[c>>4], digits[c&15]})
		}
	}
	return b.String()
}

func unescape(part string) (name string, err error) {
	var b strings.Builder
	for i := 0; i < len(part); i++ {
		if part[i] != '~' {
			b.WriteByte(part[i])
			continue
		}
		c, err := hex.DecodeString(part[i+1 : min(i+3, len(part))])
		if err != nil || len(c) != 1 {
			return "", fmt.Errorf("the key part %.100q is not one of piton's", part)
		}
		b.WriteByte(c[0])
		i += 2
	}
	return b.String(), nil
}

// sessionName is what the sessions of an acquisition are called, so that they are
// found without knowing which of its requests were carried out.
func sessionName(lock, holder string) string {
	sum := sha256.Sum256([]byte(holder + "\x00" + lock)) // neither has a zero byte
	return "piton " + hex.EncodeToString(sum[:16])
}

// value is what a held lock's key has, as JSON.
type value struct {
	Holder string      `json:"holder"`
	Owner  string      `json:"owner,omitempty"`
	Offset int64       `json:"offset,omitempty"` // what makes the token of the key's index
	TTL    string      `json:"ttl"`              // of its session
	Floor  piton.Token `json:"floor,omitempty"`  // makes each lift a change, without which Consul may leave the index as it is
}

// record is the key of a lock that is held.
type record struct {
	value
	lock    string
	index   uint64 // of the write that granted
	session string
}

func (r *record) token() piton.Token { return piton.Token(int64(r.index) + r.Offset) }

func (r *record) ttl() time.Duration {
	d, _ := time.ParseDuration(r.TTL) // parse has looked at it
	return d
}

// parse returns nil for a key without a session, which is that of a free lock.
func parse(pair *api.KVPair) (*record, error) {
	if pair == nil || pair.Session == "" {
		return nil, nil
	}
	r := &record{index: pair.ModifyIndex, session: pair.Session}
	var err error
	r.lock, err = unescape(strings.TrimSuffix(strings.TrimPrefix(pair.Key, lockFolder), holderEntry))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(pair.Value, &r.value); err != nil || r.Holder == "" {
		return nil, fmt.Errorf("the key %q is not one of piton's: its value is %.100q", pair.Key, pair.Value)
	}
	if _, err := time.ParseDuration(r.TTL); err != nil {
		return nil, fmt.Errorf("the key %q is not one of piton's: %w", pair.Key, err)
	}
	return r, nil
}

// offset is a number that is added to indexes; it only grows.
type offset struct {
	amount int64
	index  uint64 // of its key, 0 when there is none
}

// state is what decides about a lock, as one moment had it.
type state struct {
	held     *record
	index    uint64 // of the lock's key, 0 when there is none
	all, far offset
}

// reads are the requests whose answers make a state: all that begins with the
// lock's folder, or with the name of the common offset, which nothing else does.
func reads(lock string) api.TxnOps {
	return api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: lockFolder + escape(lock) + "/"}},
		{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: offsetKey}},
	}
}

func stateOf(lock string, results api.TxnResults) (s state, err error) {
	for _, r := range results {
		switch pair := r.KV; pair.Key {
		case holderKey(lock):
			s.index = pair.ModifyIndex
			s.held, err = parse(pair)
		case offsetKey:
			s.all, err = offsetOf(pair)
		case lockFolder + escape(lock) + farEntry:
			s.far, err = offsetOf(pair)
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

func offsetOf(pair *api.KVPair) (offset, error) {
	amount, err := strconv.ParseInt(string(pair.Value), 10, 64)
	if err != nil {
		return offset{}, fmt.Errorf("the key %q is not one of piton's: %w", pair.Key, err)
	}
	return offset{amount, pair.ModifyIndex}, nil
}

// conditions is how many of a step's operations say that the state is still the same;
// they are its first.
const conditions = 3

// step is one transaction that grants a lock, if the state is still the same.
type step struct {
	ops    api.TxnOps
	offset int64 // added to the transaction's index it makes the token
}

// grant plans the write that gives the lock to r under a session that was made
// before the index: a key that was not there, or a new index of r's own. Its token
// will be above the floor, since the write's index is above that one.
func (s state) grant(r piton.Request, session sessionInfo) (step, error) {
	lock := escape(r.Lock)
	t := step{offset: max(s.all.amount, s.far.amount)}
	t.ops = api.TxnOps{
		unchanged(holderKey(r.Lock), s.index),
		unchanged(offsetKey, s.all.index),
		unchanged(lockFolder+lock+farEntry, s.far.index),
	}
	before := int64(max(s.index, s.all.index, s.far.index, session.index))
	if need := int64(r.Floor) - before; need > t.offset {
		t.offset = need
		key := offsetKey
		if r.Floor >= farToken {
			key = lockFolder + lock + farEntry
		}
		t.ops = append(t.ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: []byte(strconv.FormatInt(need, 10))}})
	}
	if t.offset >= int64(piton.MaxToken)-before {
		return t, fmt.Errorf("no token of %q is left: the index is %d at least, its offset %d; want a sum below %d", r.Lock, before, t.offset, piton.MaxToken)
	}
	text, err := json.Marshal(value{Holder: r.Holder, Owner: r.Owner, Offset: t.offset, TTL: session.ttl.String(), Floor: r.Floor})
	if err != nil {
		return t, err
	}
	t.ops = append(t.ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVLock, Key: holderKey(r.Lock), Value: text, Session: session.id}})
	return t, nil
}

// unchanged is the condition that a key has this index, or is not there.
func unchanged(key string, index uint64) *api.TxnOp {
	if index == 0 {
		return &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVCheckNotExists, Key: key}}
	}
	return &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: index}}
}
