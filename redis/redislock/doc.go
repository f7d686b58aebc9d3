// Package redislock is the coordinator of piton on one Redis (or Valkey), alone,
// watched by Sentinel, or a Cluster, through go-redis.
//
// # Keys
//
// Both keys of a lock are in one hash slot; %, { and } in its name are
// percent-escaped.
//
//	piton:{LOCK}:lock    hash of holder, owner and token; expires with the lease
//	piton:{LOCK}:token   the last token; expires an hour ([Idle]) after the last grant or renewal,
//	                     after a TTL that is longer, and never while it is ahead of the clock
//	piton:{LOCK}:queue   who waits for it, by arrival; expires 10 s after the lease that is waited for
//	piton:to:CLIENT      channel on which a client is told that its turn has come;
//	                     on a Cluster the sharded channel piton:{LOCK}:to:CLIENT, which needs Redis 7
//
// So nothing is left of a name an hour after it was last used, however many names
// there are.
//
// # Tokens
//
// A token is max(last + 1, TIME in milliseconds, floor + 1). The counter makes it
// grow while the lock is in use; the clock makes it start above the old ones when
// the counter has expired or was lost. If the clock was set back meanwhile, a
// sealed storage refuses the token and the acquisition repairs it.
//
// # Waiting
//
// Who waits has a place in the lock's queue. The script that ends a lease grants the
// lock to the first who can be told, in the same step: PUBLISH answers whether
// anybody listens, so whoever is gone is passed over at once. The next has [Claim] to
// ask for its grant, which starts its TTL; the one behind it looks when that is over,
// so that a frozen waiter delays the others by no more. A lease that nobody ended
// goes to the first in the queue, whoever looks first. Being told is only a hint.
// A hand-off costs two commands: the release, and the claim.
//
// Users without access to the channels wait by polling, and get the lock when nobody
// is in its queue.
//
// # Steps
//
// Each step is one script, atomic on the server. Acquisitions and renewals are
// idempotent per holder. A step is sent once: go-redis's own repetition (MaxRetries)
// is turned off for it, since the second answer to a release that was carried out
// would tell of whoever has the lock since; piton, which knows, tries again.
// Scripts are called by their hash and loaded again when the server has lost
// them (SCRIPT FLUSH, restart). They use TIME before they write, which needs
// Redis 5 or newer.
//
// # Time
//
// The server's own expiry ends a lease. Clients send durations, never times.
// A TTL is rounded down to whole milliseconds and at least 1 ms.
//
// # Errors and cancellation
//
// Refusals are the errors that piton defines; any other error means unknown. Calls
// end with their context as far as the client lets them: go-redis waits for its
// ReadTimeout instead unless redis.Options.ContextTimeoutEnabled is set. Locker
// abandons calls that hang either way.
//
// What Redis acknowledged it may forget: by failover to a replica, eviction, or a
// restart without its data. See [Coordinator.Check], and attach a guard.
package redislock
