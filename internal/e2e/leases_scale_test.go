package e2e

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/servertest"
	"github.com/pitonlock/piton/memlock"
	"github.com/pitonlock/piton/redis/redislock"
	"github.com/redis/go-redis/v9"
)

var (
	names = flag.Int("names", 12_000, "how many lock names TestNothingLeftOfManyNames uses once")
	hold  = flag.Duration("hold", time.Minute, "how long TestTenThousandLeases holds its leases")
)

// Ten thousand leases of one process: no goroutine each, all renewed, none lost.
func TestTenThousandLeases(t *testing.T) {
	const leases = 10_000
	addr := servertest.StartRedis(t).Addr()
	c := onRedis(t, addr)
	var renewed, lost atomic.Int64
	l := newLocker(t, c, piton.WithTTL(15*time.Second), piton.WithObserver(func(e piton.Event) {
		switch e.Kind {
		case piton.EventRenewed:
			renewed.Add(1)
		case piton.EventLost:
			lost.Add(1)
		}
	}))
	held := make([]*piton.Lease, leases)
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := worker; i < leases; i += 8 {
				lease, err := l.Acquire(t.Context(), fmt.Sprintf("lock %d", i))
				if err != nil {
					t.Error(err)
					return
				}
				held[i] = lease
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	lowest, most := time.Hour, 0
	for start := time.Now(); time.Since(start) < *hold; after(t, 500*time.Millisecond) {
		most = max(most, runtime.NumGoroutine())
		for _, lease := range held {
			lowest = min(lowest, time.Until(lease.Until()))
		}
	}
	t.Logf("at most %d goroutines; lowest time left %v of 15s; %d renewals", most, lowest.Round(time.Millisecond), renewed.Load())
	if most > 200 {
		t.Errorf("up to %d goroutines for %d leases", most, leases)
	}
	if want := int64(leases) * int64(*hold/(5*time.Second)-1); renewed.Load() < want {
		t.Errorf("%d renewals; want %d or more", renewed.Load(), want)
	}
	for _, lease := range held {
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if err := lease.Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if lost.Load() > 0 {
		t.Errorf("%d leases were lost", lost.Load())
	}
}

// Many names, each locked once: what is left is bounded, in the process and at
// the coordinator. The full size is -names 1000000.
func TestNothingLeftOfManyNames(t *testing.T) {
	cycle := func(t *testing.T, c piton.Coordinator, workers int) {
		t.Helper()
		l := newLocker(t, c)
		var all sync.WaitGroup
		start := heap()
		goroutines := runtime.NumGoroutine()
		for worker := range workers {
			all.Go(func() {
				for i := worker; i < *names; i += workers {
					lease, err := l.Acquire(t.Context(), fmt.Sprintf("order %d", i))
					if err == nil {
						err = lease.Release(context.Background())
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		if grown := heap() - start; grown > 20<<20 {
			t.Errorf("the heap has grown by %d MB", grown>>20)
		}
		servertest.Eventually(t, 10*time.Second, func() bool { return runtime.NumGoroutine() <= goroutines+workers }, "goroutines as before")
	}
	t.Run("memlock", func(t *testing.T) { cycle(t, memlock.New(), 4) })
	t.Run("sqlitelock", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "locks.db")
		cycle(t, openFile(t, path), 1)
		if rows := countRows(t, path, "piton_locks"); rows > 10_000 {
			t.Errorf("%d rows are left; want at most 10000", rows)
		}
	})
	t.Run("redislock", func(t *testing.T) {
		addr := servertest.StartRedis(t, "--appendonly", "no", "--save", "").Addr()
		cycle(t, onRedis(t, addr), 16)
		client := redis.NewClient(&redis.Options{Addr: addr})
		defer func() { must(t, client.Close()) }()
		seen := 0
		for cursor := uint64(0); ; {
			keys, next, err := client.Scan(t.Context(), cursor, "*", 5000).Result()
			must(t, err)
			pipe := client.Pipeline()
			left := make([]*redis.DurationCmd, len(keys))
			for i, key := range keys {
				left[i] = pipe.PTTL(t.Context(), key)
			}
			if len(keys) > 0 {
				_, err = pipe.Exec(t.Context())
				must(t, err)
			}
			for i, key := range keys {
				seen++
				if ttl := left[i].Val(); ttl <= 0 || ttl > redislock.Idle {
					t.Fatalf("%s ends in %v; want at most %v", key, ttl, redislock.Idle)
				}
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
		if seen > 2**names {
			t.Errorf("%d keys for %d names", seen, *names)
		}
		t.Logf("%d keys are left, each for at most %v", seen, redislock.Idle)
	})
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func countRows(tb testing.TB, path, table string) (rows int) {
	tb.Helper()
	db := openSQLite(tb, path)
	must(tb, db.QueryRow("SELECT COUNT(*) FROM "+table).Scan(&rows))
	return rows
}
