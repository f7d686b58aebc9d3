package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/sqlguard"
)

// ledger is a guarded table that records under which token each row was written.
type ledger struct {
	*sqlguard.Guard
	db *sql.DB
}

func newLedger(t *testing.T) ledger {
	t.Helper()
	db := openSQLite(t, filepath.Join(t.TempDir(), "ledger.db"))
	guard, err := sqlguard.New(db, sqlguard.SQLite)
	must(t, err, guard.Migrate(t.Context()))
	_, err = db.Exec("CREATE TABLE writes (n INTEGER PRIMARY KEY AUTOINCREMENT, lock TEXT, token INTEGER)")
	must(t, err)
	return ledger{guard, db}
}

func (l ledger) write(ctx context.Context, f piton.Fence) error {
	return l.Tx(ctx, f, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO writes (lock, token) VALUES (?, ?)", f.Lock, f.Token)
		return err
	})
}

// check demands that tokens never went back, and returns how many rows there are.
func (l ledger) check(t *testing.T) (rows int) {
	t.Helper()
	var older int
	err := l.db.QueryRow("SELECT count(*), coalesce(sum(token < before), 0) FROM (SELECT token, max(token) OVER (PARTITION BY lock ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM writes)").Scan(&rows, &older)
	must(t, err)
	if older > 0 {
		t.Errorf("%d of %d writes have an older token than a write before them", older, rows)
	}
	return rows
}

// overlaps notes who believes to hold a lock, and fails when two do.
type overlaps struct {
	mu     sync.Mutex
	inside map[string]piton.Token
}

func (o *overlaps) enter(t *testing.T, lease *piton.Lease) (leave func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := lease.Fence()
	if other, ok := o.inside[f.Lock]; ok {
		t.Errorf("%s: token %d was handed out while %d was trusted", f.Lock, f.Token, other)
	}
	o.inside[f.Lock] = f.Token
	left := sync.OnceFunc(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.inside, f.Lock)
	})
	context.AfterFunc(lease.Context(), left)
	return left
}

// The leader is frozen and killed while workers contend, one holds on and another
// waits for it. Each time there is progress again, the storage takes no older token, and who is
// followed by another has lost the lease, or loses it at the next renewal.
func TestEtcdLeaderFails(t *testing.T) {
	const ttl = 6 * time.Second
	cluster := servertest.StartEtcdCluster(t)
	book := newLedger(t)
	locker := func() *piton.Locker {
		return newLocker(t, onEtcd(t, cluster.Endpoints()...), piton.WithTTL(ttl), piton.WithGuards(book))
	}
	seen := &overlaps{inside: map[string]piton.Token{}}
	held := acquire(t, locker(), "held")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	progress := make(chan struct{})
	for n := range 4 {
		l := locker()
		all.Go(func() {
			for ctx.Err() == nil {
				if !work(ctx, t, l, fmt.Sprint("busy ", n%2), book, seen) {
					continue
				}
				select {
				case progress <- struct{}{}:
				case <-ctx.Done():
				}
			}
		})
	}
	next := make(chan *piton.Lease, 1)
	waiter := locker()
	all.Go(func() {
		lease, _ := waiter.Acquire(ctx, "held") // an outage, and the end of the test, are fine
		next <- lease
	})
	goesOn := func(after string) {
		t.Helper()
		start := time.Now()
		for range 6 { // some of them were on their way before
			select {
			case <-progress:
			case <-time.After(30 * time.Second):
				t.Fatalf("after %s: no progress for %v", after, time.Since(start))
			}
		}
		t.Logf("after %s: six acquisitions in %v", after, time.Since(start).Round(time.Millisecond))
	}
	goesOn("the start")
	for range 2 {
		leader := cluster.Leader(t)
		leader.Pause(t)
		paused := time.Now()
		goesOn("the leader was frozen")
		after(t, ttl+time.Second-time.Since(paused)) // by its clock every lease has ended when it wakes up
		leader.Resume(t)
		goesOn("it was woken up")
		leader = cluster.Leader(t)
		leader.Kill(t)
		goesOn("the leader was killed")
		leader.Restart(t)
		goesOn("it was restarted")
	}
	cancel()
	all.Wait()
	if successor := <-next; successor != nil {
		t.Logf("the holder was followed by token %d, its lease is: %v", successor.Token(), held.Err())
		if err := book.write(t.Context(), held.Fence()); !errors.Is(err, piton.ErrStale) {
			t.Errorf("a write of the holder that was followed: %v", err)
		}
		select {
		case <-held.Done():
		case <-time.After(ttl):
			t.Error("the holder that was followed still trusts its lease")
		}
		_ = successor.Release(t.Context())
	} else {
		must(t, book.write(t.Context(), held.Fence()))
	}
	if err := held.Release(t.Context()); err != nil && !errors.Is(err, piton.ErrLost) {
		t.Error(err)
	}
	t.Logf("%d writes", book.check(t))
}

// work takes a lock once, writes, and reports whether that was done.
func work(ctx context.Context, t *testing.T, l *piton.Locker, lock string, book ledger, seen *overlaps) bool {
	lease, err := l.Acquire(ctx, lock)
	if err != nil {
		return false
	}
	leave := seen.enter(t, lease)
	err = book.write(lease.Context(), lease.Fence())
	if err != nil && lease.Err() == nil && !errors.Is(err, piton.ErrUnknown) {
		t.Errorf("a write of the holder: %v", err)
	}
	leave()
	_ = lease.Release(context.Background()) // in an outage others wait for its end
	return err == nil
}

// A member that has lost the others ends its watches. They are made anew, and tell
// that something may have been missed.
func TestEtcdWatchOutlivesTheMajority(t *testing.T) {
	cluster := servertest.StartEtcdCluster(t)
	alone, others := cluster.Members[0], cluster.Members[1:]
	watcher, direct := onEtcd(t, alone.Endpoint()), onEtcd(t, others[0].Endpoint())
	g, err := direct.Acquire(t.Context(), piton.Request{Lock: "a", Holder: "h", TTL: time.Minute})
	must(t, err)
	hints, stop, err := watcher.Watch(t.Context(), "a")
	must(t, err)
	defer stop()
	for _, m := range others {
		m.Pause(t)
	}
	// All watches of a client share one stream, so that another one tells of its end.
	servertest.Eventually(t, 30*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, stop, err := watcher.Watch(ctx, "b")
		if err == nil {
			stop()
		}
		return err != nil
	}, "the member's insight that there is no leader")
	for _, m := range others {
		m.Resume(t)
	}
	hint := func(of string) {
		t.Helper()
		select {
		case <-hints:
		case <-time.After(20 * time.Second):
			t.Fatalf("no hint of %s", of)
		}
	}
	hint("the watch that was made anew")
	servertest.Eventually(t, 20*time.Second, func() bool { return direct.Release(t.Context(), g) == nil }, "the release")
	hint("the release")
}

// Revisions go back with a backup, the marks of the storage do not: Floor repairs it.
func TestEtcdTokensHealAfterARestoredBackup(t *testing.T) {
	server := servertest.StartEtcd(t)
	book := newLedger(t)
	use := func(n int) (last piton.Token) {
		t.Helper()
		l := newLocker(t, onEtcd(t, server.Endpoint()), piton.WithGuards(book))
		for range n {
			must(t, l.Do(t.Context(), "a", func(ctx context.Context, lease *piton.Lease) error {
				last = lease.Token()
				return book.write(ctx, lease.Fence())
			}))
		}
		return last
	}
	restore := func(backup string) {
		t.Helper()
		server.Stop(t)
		must(t, os.RemoveAll(server.Data()), os.CopyFS(server.Data(), os.DirFS(backup)))
		server.Restart(t)
	}
	use(2)
	server.Stop(t)
	backup := filepath.Join(t.TempDir(), "backup")
	must(t, os.CopyFS(backup, os.DirFS(server.Data())))
	server.Restart(t)
	high := use(20)
	old := acquire(t, newLocker(t, onEtcd(t, server.Endpoint()), piton.WithGuards(book)), "a")

	restore(backup)
	c := onEtcd(t, server.Endpoint())
	plain, err := c.Acquire(t.Context(), piton.Request{Lock: "another lock", Holder: "h", TTL: time.Minute})
	must(t, err)
	if plain.Token >= high {
		t.Fatalf("token %d after %d: the backup has forgotten nothing", plain.Token, high)
	}
	next := acquire(t, newLocker(t, onEtcd(t, server.Endpoint()), piton.WithGuards(book)), "a")
	if next.Token() <= old.Token() {
		t.Errorf("token %d after %d", next.Token(), old.Token())
	}
	if err := book.write(t.Context(), old.Fence()); !errors.Is(err, piton.ErrStale) {
		t.Errorf("a write of the holder whom the backup does not know: %v", err)
	}
	if _, err := c.Renew(t.Context(), piton.Grant{Fence: old.Fence(), TTL: time.Minute}); !errors.Is(err, piton.ErrLost) {
		t.Errorf("its renewal: %v", err)
	}
	must(t, book.write(t.Context(), next.Fence()))
	wantLost(t, old.Release(t.Context()), piton.ReasonTaken)
	release(t, next)

	// And an etcd that knows nothing at all.
	server.Stop(t)
	must(t, os.RemoveAll(server.Data()))
	server.Restart(t)
	if last := use(1); last <= next.Token() {
		t.Errorf("on an empty etcd: token %d after %d", last, next.Token())
	}
	book.check(t)
}
