// Package etcdlock is the coordinator of piton on etcd 3.4 or newer, through
// clientv3.
//
// # Keys
//
//	piton/lock/LOCK     who holds the lock, as JSON; ends with its etcd lease
//	piton/offset        added to revisions to make tokens; there after a floor demanded it
//	piton/offset/LOCK   the same for one lock whose token a floor of 2^44 or more demanded
//
// LOCK is the name's own bytes. A lock that is free leaves nothing, however many
// names there are. A client whose KV and Watcher are of clientv3's package
// namespace keeps to its part of the keys. The role of the workers needs READWRITE
// on the prefix piton/.
//
// # Steps
//
// Acquire reads the key; only if it is free it makes an etcd lease, and then the
// key, in one transaction whose condition is that nothing has changed. An
// acquisition has a lease of its own, never that of a session, in which locking
// twice would succeed twice. The lease's id is a hash of lock and holder. So a
// request whose answer was lost is repeated without a second lease; and when an
// acquisition is given up, revoking that id ends whatever it may have got, and
// makes a write that is still under way fail.
//
// # Tokens
//
// A token is the revision of the write that granted, plus the offset. Revisions
// only grow, until a backup is restored or the cluster is made anew; then a sealed
// storage refuses the token, and the floor of the repair raises the offset, for
// all locks at once. The offset is a condition of the transaction that grants, so
// that tokens grow whoever raises it meanwhile.
//
// # Time
//
// etcd's own expiry ends a grant; clients send durations, never times. A TTL is
// rounded up to whole seconds, and etcd raises it to one and a half times its
// election timeout (2 s by default): the grant has etcd's answer. etcd looks
// twice a second for leases that have ended, and a new leader gives each its whole
// time again, so that a grant may end later than its TTL, never before.
// A renewal counts only if the member that answered is in the term of an answer
// of the same call before it, or in a later one: see keepAlive.
//
// etcd without the change of https://github.com/etcd-io/etcd/pull/16822 (February
// 2024) may end living leases when a leader wakes up that was frozen for long. The
// holder finds out at its next renewal, and sealed storage refuses its writes as
// soon as another one has the lock.
//
// # Errors and cancellation
//
// Refusals are the errors that piton defines; any other error means unknown, and
// has etcd's in its chain. Calls end with their context. A member that is frozen
// or cut off is asked again and again until the client notices: set
// clientv3.Config.DialKeepAliveTime (10 s is the least that gRPC allows) and
// DialKeepAliveTimeout. TTLs of 30 s outlive that.
package etcdlock
