// Package redislock is the coordinator of piton on one Redis (or Valkey), through
// go-redis.
//
// # Keys
//
// Both keys of a lock are in one hash slot; %, { and } in its name are
// percent-escaped.
//
//	piton:{LOCK}:lock    hash of holder, owner and token; expires with the lease
//	piton:{LOCK}:token   the last token; expires an hour ([Idle]) after the last grant or renewal
//	piton:{LOCK}:end     channel on which releases are told
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
// # Steps
//
// Each step is one script, atomic on the server, and idempotent per holder: a
// script that is sent twice, by go-redis (MaxRetries) or by piton, does no harm.
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
