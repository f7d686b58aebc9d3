// Package sqlitelock is the embedded coordinator of piton: one SQLite file
// through which all processes of one Linux machine share locks, with no server.
//
// # Time
//
// The boot clock of the machine (CLOCK_BOOTTIME) decides when a lease ends, and
// the boot id tells whether the machine has restarted since: after a restart all
// leases have ended. The wall clock is never read, so steps of it change nothing.
// When a holder is killed, its lock is free as soon as its TTL is over. An offset
// that a Linux time namespace adds to the clock is taken off again, so containers
// of one machine may share a file. Two machines, or two virtual machines, must
// not; a file on NFS, SMB, Ceph, AFS or Coda is refused, other shared file
// systems cannot be recognised. On other systems than Linux [Open] returns an error.
//
// # Tokens
//
// The token is counted up by the statement that takes the lock, in a transaction
// that has the write lock of the file (BEGIN IMMEDIATE). It is on disk before
// Acquire returns (write-ahead log, synchronous=FULL), so it survives kill -9 and
// loss of power.
//
// # What is left in the file
//
// One row per lock in piton_locks, kept after the release since it knows the last
// token. Each Acquire deletes up to 8 free rows, the oldest first, that have been
// free for more than 10 minutes of boot time or since before the last restart; or
// any free rows while the file has more than 10 000 rows. The token of a deleted
// row raises the floor of the file (piton_floor) in the same transaction, and a
// lock without a row starts above that floor. So tokens never go back, but may
// jump. However many names are used, there are at most as many rows as locks held
// at one time plus 10 000. Only rows with a token of 2^52 or more, which a Floor
// of that size must have demanded, are kept for ever: as a floor such a token
// would use up the numbers of all locks. The file does not shrink; space of
// deleted rows is used again. The log beside the file (-wal) is cut back to 4 MiB.
//
// # Errors
//
// SQLite allows one writer at a time. While another process writes, calls wait as
// long as their context allows, at most 10 seconds. Then they fail with
// [piton.ErrUnavailable] (nothing was carried out), never with [piton.ErrHeld]. A
// commit that failed is [piton.ErrUnknown]. The error of SQLite is in the chain.
// Statements that have begun are not cancelled: they wait for nothing but the disk.
//
// A process that is stopped (SIGSTOP) in the milliseconds of its own transaction
// keeps the file busy until it goes on or is killed: that is a limit of SQLite.
// A file that was removed or replaced while it was open is noticed by every call,
// with ErrUnavailable, since other processes would use another file.
package sqlitelock
