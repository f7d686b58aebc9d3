// Package consullock is the coordinator of piton on Consul 1.8 or newer, through the
// official client.
//
//	client, err := api.NewClient(api.DefaultConfig())
//	coordinator, err := consullock.New(client)
//	locker, err := piton.New(coordinator, piton.WithTTL(30*time.Second))
//
// # Keys
//
//	piton/lock/LOCK/holder   who holds the lock, as JSON; ends with its session
//	piton/lock/LOCK/offset   added to the lock's indexes; there after a floor of 2^44 or more
//	piton/offset             added to all indexes to make tokens; there after a floor demanded it
//
// In LOCK, bytes that are no letter, digit, - or _ are written as ~ and two digits. A
// lock that is free leaves nothing, however many names there are. The ACL token of the
// workers needs key_prefix "piton/" write, and session_prefix "" write.
//
// # Steps
//
// Acquire reads the lock; only if it is free it makes a session, and then the key, in
// one transaction whose conditions are that nothing has changed. An acquisition has a
// session of its own, without health checks, whose behavior is "delete": the end of
// the session and the end of the lock are one. So when an acquisition is given up, the
// end of its session makes a write that is still under way fail.
//
// Sessions have the lock-delay 0. Consul's default of 15 s keeps everybody from a lock
// after its holder failed, in the hope that its late writes arrive within that time
// (https://developer.hashicorp.com/consul/docs/automate/session). A sealed storage
// refuses them whenever they arrive, so nobody has to wait.
//
// # Tokens
//
// A token is the ModifyIndex of the write that granted, plus the offset. It is not the
// LockIndex, which starts again at 1 when a key was deleted. Indexes only grow, also when
// a snapshot is restored, until the datacenter is made anew; then a sealed storage refuses
// the token, and the floor of the repair raises the offset, for all locks at once. The
// offset is a condition of the transaction that grants, so that tokens grow whoever
// raises it meanwhile.
//
// # Time
//
// The leader's own timer ends a session; clients send durations, never times. The TTL
// is a lower bound: Consul ends a session up to one further TTL later, and a new
// leader gives each its whole time again. So a grant ends between its TTL and twice its
// TTL after the last renewal, and after a crash others may wait as long. Consul takes no
// TTL below its setting session_ttl_min, 10 s by default, and none above 24 h.
// A renewal counts only after a read that a leader answered which a majority has just
// confirmed.
//
// # Errors and cancellation
//
// Refusals are the errors that piton defines; any other error means unknown, and has
// Consul's in its chain. Calls end with their context. Waiting is by blocking queries,
// which are hints: one connection for each lock that somebody waits for, at most 100.
package consullock
