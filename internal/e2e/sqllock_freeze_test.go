package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/faultproxy"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/sqllock"
)

// Wherever a contender freezes, it keeps a free lock from others for a TTL at most,
// and locks with other names, old or new, not at all.
func TestSQLLockContenderFreezes(t *testing.T) {
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`)
	eachSQLLock(t, func(t *testing.T, b sqlBackend, dsn string, c sqlClient) {
		const ttl = time.Second
		for _, lock := range []string{"old", "new"} {
			if lock == "old" {
				g, err := c.Acquire(t.Context(), piton.Request{Lock: lock, Holder: "first", TTL: ttl})
				must(t, err, c.Release(t.Context(), g))
			}
			for packets, frozen := 1, true; frozen; packets++ {
				frozen = freezeAfter(t, b, address, dsn, packets, lock+map[bool]string{true: fmt.Sprint(packets)}[lock == "new"], ttl)
				started := time.Now()
				for n := range 35 { // enough for a collection of old rows
					g, err := c.Acquire(t.Context(), piton.Request{Lock: fmt.Sprint("other ", lock, packets, n), Holder: "other", TTL: ttl})
					must(t, err, c.Release(t.Context(), g))
				}
				if took := time.Since(started); took > ttl {
					t.Errorf("%s, frozen after packet %d: 35 other locks took %v", lock, packets, took)
				}
				must(t, until(t, 3*ttl, func() error {
					_, err := c.Acquire(t.Context(), piton.Request{Lock: lock, Holder: fmt.Sprint("next", packets), TTL: ttl})
					return err
				}))
				must(t, c.Release(t.Context(), piton.Grant{Fence: piton.Fence{Lock: lock, Holder: fmt.Sprint("next", packets)}}))
			}
		}
	})
}

// freezeAfter lets a client acquire until it has sent so many packets, and leaves it
// there: its connection stays open. It is false when the client came to its end before.
func freezeAfter(t *testing.T, b sqlBackend, address *regexp.Regexp, dsn string, packets int, lock string, ttl time.Duration) bool {
	proxy := faultproxy.Start(t, address.FindString(dsn))
	frozen, err := b.client(address.ReplaceAllString(dsn, proxy.Addr()))
	must(t, err, frozen.db.PingContext(t.Context()))
	t.Cleanup(func() {
		proxy.OnData(nil)
		proxy.Heal()
		must(t, frozen.Close())
	})
	sent := 0
	proxy.OnData(func(dir faultproxy.Direction, _ []byte) {
		if dir == faultproxy.ToServer {
			if sent++; sent == packets {
				proxy.Set(faultproxy.ToClient, faultproxy.Hole)
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		_, err := frozen.Acquire(ctx, piton.Request{Lock: lock, Holder: "frozen", TTL: ttl})
		answer <- err
	}()
	select {
	case err := <-answer:
		return err != nil && !errors.Is(err, piton.ErrHeld)
	case <-ctx.Done(): // a driver may wait for the server to hear of that
		return true
	}
}

func until(t *testing.T, within time.Duration, f func() error) error {
	t.Helper()
	var err error
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(within); time.Now().Before(end); <-tick.C {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

// What a crash forgets would end before its holder knows.
func TestSQLLockRenewalsOutliveACrash(t *testing.T) {
	server := servertest.StartPostgres(t, "-c", "synchronous_commit=off", "-c", "wal_writer_delay=10s", "-c", "fsync=on")
	dsn := server.NewDatabase(t).DSN()
	open := func() sqlClient {
		db, err := sql.Open("pgx", dsn)
		must(t, err)
		c, err := sqllock.New(db, sqllock.Postgres)
		must(t, err)
		return sqlClient{c, db}
	}
	c := open()
	must(t, c.Migrate(t.Context()))
	r := piton.Request{Lock: "a", Holder: "h", TTL: 30 * time.Second}
	g, err := c.Acquire(t.Context(), r)
	must(t, err)
	g.TTL = 10 * time.Minute
	g, err = c.Renew(t.Context(), g)
	must(t, err)
	g.TTL = time.Hour
	if r := c.RenewBatch(t.Context(), []piton.Grant{g})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	server.Kill(t)
	must(t, c.Close())
	server.Restart(t)
	c = open()
	defer c.Close()
	if held, ok, err := c.Get(t.Context(), "a"); err != nil || !ok || held.Remaining < 50*time.Minute {
		t.Errorf("after the crash: %+v, %v, %v; want the last renewal", held, ok, err)
	}
}

func TestSQLLockRefusesALongHolder(t *testing.T) {
	eachSQLLock(t, func(t *testing.T, _ sqlBackend, _ string, c sqlClient) {
		_, err := c.Acquire(t.Context(), piton.Request{Lock: "a", Holder: strings.Repeat("h", 513), TTL: time.Second})
		if err == nil || errors.Is(err, piton.ErrHeld) {
			t.Errorf("got %v", err)
		}
		must(t, c.Release(t.Context(), grantOf(t, c, strings.Repeat("h", 512))))
	})
}

func grantOf(t *testing.T, c piton.Coordinator, holder string) piton.Grant {
	t.Helper()
	g, err := c.Acquire(t.Context(), piton.Request{Lock: "a", Holder: holder, TTL: time.Second})
	must(t, err)
	return g
}
