// Package piton provides distributed locks that cannot corrupt data.
//
// A worker that stops for longer than its lock lasts (garbage collection, a
// stalled socket, a frozen container, swap) does not notice that another worker
// has the lock now, and writes: a phantom write. No lock service can prevent
// that, because between the last check and the write there is always room for a
// pause. Piton's locks carry a fencing token that only grows, and the storage
// refuses a write whose token is not the newest it has recorded, in the same
// atomic step as the write.
//
//	locker, err := piton.New(coordinator, piton.WithGuards(guard))
//	...
//	err = locker.Do(ctx, "invoices/7", func(ctx context.Context, lease *piton.Lease) error {
//		return guard.Tx(ctx, lease.Fence(), func(ctx context.Context, tx *sql.Tx) error {
//			_, err := tx.ExecContext(ctx, "UPDATE invoices SET paid = true WHERE id = 7")
//			return err
//		})
//	})
//
// A [Coordinator] grants leases; a [Guard] is the storage's side. Packages
// memlock, sqlite/sqlitelock, redis/redislock and etcd/etcdlock are coordinators,
// sqlguard is a guard; locktest and guardtest are what each of them has to keep.
//
// # The life of a lease
//
//	           Acquire                            Release
//	(asking) ----------> granted --> sealed = held --------> released
//	    |                   |            |  ^                   ^
//	    | unknown: again    | StaleError |  | renewed           | Release, later
//	    | under the same    v            |  | every TTL/3       |
//	    | holder id      repaired        +--+                   |
//	    |                                |                      |
//	    +-- gives up: cleaned up         +--> lost, or closed --+
//
// A lease is handed out when every guard has recorded its fence, and not before:
// from then on no earlier holder can write. The heartbeat runs from the grant
// on. A lease that was lost stays lost, whatever a late answer says.
//
// # The trust window
//
//	sent          trusted end                    the coordinator's end
//	 |----------------|--- margin ---|---- way of the request ----|
//	 |<------------- granted TTL --->|
//
// The holder counts from before the request was sent, the coordinator from when
// it arrived, so the holder's end comes first whatever the network does. The
// margin, 1 % of the TTL and 2 ms, covers clocks of different rates. Clocks of
// two machines are never compared. On Linux the time that the machine was
// suspended counts.
//
// # What happens when
//
//	a renewal fails             it is tried again within a second, several times
//	                            until the next heartbeat; the lease goes on
//	two heartbeats fail         the lease is lost at two thirds of the TTL (ReasonRenewal)
//	a renewal hangs             the lease is lost at its trusted end (ReasonExpired)
//	the coordinator says no     lost at once (ReasonTaken, ReasonMissing)
//	the process is frozen       its writes are refused by the guard; lost when it wakes up
//	the machine was suspended   lost within half a second of waking up; Err knows at once
//	the coordinator forgets     the guard refuses the seal, and the holder asks for a
//	                            token above the mark (a repair) before it works
//	a reply to Acquire is lost  asked again under the same holder id; given up, it is
//	                            released in the background
//	the caller's ctx ends       Do stops renewal, cancels the work, waits, releases
//	the process is killed       the lock is free after its TTL
//
// # Three outcomes
//
// Every request to a coordinator or a storage is done, refused ([ErrHeld],
// [ErrLost], [ErrStale]) or of unknown outcome. Contention, cancellation and
// outage are different errors, and errors.Is finds each together with the
// driver's own.
package piton
