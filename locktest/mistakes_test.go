package locktest_test

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/memlock"
)

// mistakes are coordinators that break one law each, at least.
var mistakes = []struct {
	law, mistake, says string
	spoil              func(b *broken, c *memlock.Coordinator)
}{
	{"IdempotentPerHolder", "the holder itself is told that the lock is held", "the same holder again", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if held, ok, _ := c.Get(ctx, r.Lock); ok {
				return piton.Grant{}, &piton.HeldError{Lock: r.Lock, Token: held.Token, Remaining: held.Remaining}
			}
			return c.Acquire(ctx, r)
		}
	}},
	{"IdempotentPerHolder", "a floor does not lift the token of who holds", "with a floor above its token", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if _, held, _ := c.Get(ctx, r.Lock); held {
				r.Floor = 0
			}
			return c.Acquire(ctx, r)
		}
	}},
	{"TokenGrows", "tokens restart with each grant", "after release: token 1, before it 1", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			g, err := c.Acquire(ctx, r)
			g.Token = r.Floor + 1
			return g, err
		}
	}},
	{"FloorIsHonoured", "the floor is not looked at", "floor 1: the token is 1", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			r.Floor = 0
			return c.Acquire(ctx, r)
		}
	}},
	{"RenewOnlyOwn", "a renewal revives", "renewal of an expired grant: done", func(b *broken, c *memlock.Coordinator) {
		b.renew = func(ctx context.Context, g piton.Grant) (piton.Grant, error) {
			return c.Acquire(ctx, piton.Request{Lock: g.Lock, Holder: g.Holder, TTL: g.TTL})
		}
	}},
	{"RenewOnlyOwn", "the token is not compared", "renewal with another token: done", func(b *broken, c *memlock.Coordinator) {
		b.batch = func(ctx context.Context, grants []piton.Grant) []piton.RenewResult {
			results := make([]piton.RenewResult, len(grants))
			for i, g := range grants {
				results[i].Grant, results[i].Err = c.Renew(ctx, g)
			}
			return results
		}
		b.renew = func(ctx context.Context, g piton.Grant) (piton.Grant, error) {
			if held, ok, _ := c.Get(ctx, g.Lock); ok {
				g.Token = held.Token
			}
			return c.Renew(ctx, g)
		}
	}},
	{"ReleaseOnlyOwn", "release does not compare", "done; want a *piton.LostError", func(b *broken, c *memlock.Coordinator) {
		b.release = func(ctx context.Context, g piton.Grant) error {
			if held, ok, _ := c.Get(ctx, g.Lock); ok {
				_, err := c.Break(ctx, g.Lock, held.Token)
				return err
			}
			return nil
		}
	}},
	{"ReleaseOnlyOwn", "a repeated release is an error", "not held", func(b *broken, c *memlock.Coordinator) {
		b.release = func(ctx context.Context, g piton.Grant) error {
			if _, ok, _ := c.Get(ctx, g.Lock); !ok {
				return errors.New("not held")
			}
			return c.Release(ctx, g)
		}
	}},
	{"NoSharedClock", "grants end early", "after the request for", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			ttl := r.TTL
			r.TTL = ttl * 9 / 10
			g, err := c.Acquire(ctx, r)
			g.TTL = ttl
			return g, err
		}
	}},
	{"NoSharedClock", "grants never end by themselves", "the end of a crashed holder's grant", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			ttl := r.TTL
			r.TTL = time.Hour
			g, err := c.Acquire(ctx, r)
			g.TTL = ttl
			var held *piton.HeldError
			if errors.As(err, &held) {
				held.Remaining = 0
			}
			return g, err
		}
		b.get = func(ctx context.Context, lock string) (piton.Held, bool, error) {
			held, ok, err := c.Get(ctx, lock)
			held.Remaining = time.Millisecond
			return held, ok, err
		}
	}},
	{"OddNames", "names are compared without case", "with other names held", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			lock := r.Lock
			r.Lock = strings.ToLower(lock)
			g, err := c.Acquire(ctx, r)
			g.Lock = lock
			return g, err
		}
	}},
	{"OddNames", "any name is accepted", "want it refused", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if piton.ValidateLock(r.Lock) != nil {
				return piton.Grant{Fence: piton.Fence{Lock: r.Lock, Token: 1, Holder: r.Holder}, TTL: r.TTL}, nil
			}
			return c.Acquire(ctx, r)
		}
	}},
	{"OneHolder", "everybody is granted", "hold at once", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if held, ok, _ := c.Get(ctx, r.Lock); ok {
				_, _ = c.Break(ctx, r.Lock, held.Token)
			}
			return c.Acquire(ctx, r)
		}
	}},
	{"WakeUp", "nobody is told", "was not told of a release", func(b *broken, _ *memlock.Coordinator) {
		b.watch = func(context.Context, string) (<-chan struct{}, func(), error) {
			return make(chan struct{}), func() {}, nil
		}
	}},
	{"TokenHeals", "the floor of a repair is not looked at", "after the loss of memory", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			r.Floor = 0
			return c.Acquire(ctx, r)
		}
	}},
	{"UnknownIsNotNo", "release of token 0 does nothing", "after the clean-up", func(b *broken, c *memlock.Coordinator) {
		b.release = func(ctx context.Context, g piton.Grant) error {
			if g.Token == 0 {
				return nil
			}
			return c.Release(ctx, g)
		}
	}},
	{"LostBeforeExpired", "more is promised than is kept", "before the end of the holder's trusted time", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			ttl := r.TTL
			r.TTL = ttl / 2
			g, err := c.Acquire(ctx, r)
			g.TTL = ttl
			return g, err
		}
	}},
	{"LostIsFinal", "tokens repeat", "the next token 1 after 1", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			g, err := c.Acquire(ctx, r)
			g.Token = r.Floor + 1
			return g, err
		}
	}},
	{"ReleaseAfterWork", "a lock ends when a contender looks", "in the work: nobody holds", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			g, err := c.Acquire(ctx, r)
			if err == nil {
				_ = c.Release(ctx, g)
			}
			return g, err
		}
	}},
	{"IdempotentPerHolder", "asking again does not start the time anew", "while the second time runs", func(b *broken, c *memlock.Coordinator) {
		first := map[string]piton.Grant{}
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if g, again := first[r.Holder]; again && r.Floor == 0 {
				return g, nil
			}
			g, err := c.Acquire(ctx, r)
			if err == nil {
				first[r.Holder] = g
			}
			return g, err
		}
	}},
	{"TokenGrows", "a break forgets the counter", "after break", func(b *broken, c *memlock.Coordinator) {
		last := int64(0)
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			g, err := c.Acquire(ctx, r)
			if err == nil {
				last++
				g.Token = piton.Token(last)
			}
			return g, err
		}
		b.breaks = func(ctx context.Context, lock string, _ piton.Token) (bool, error) {
			last = 0
			held, _, _ := c.Get(ctx, lock)
			return c.Break(ctx, lock, held.Token)
		}
	}},
	{"FloorIsHonoured", "a floor without room ends the grant of who holds", "the grant of who holds", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if r.Floor == piton.MaxToken {
				_ = c.Release(ctx, piton.Grant{Fence: piton.Fence{Lock: r.Lock, Holder: r.Holder}})
			}
			return c.Acquire(ctx, r)
		}
	}},
	{"RenewOnlyOwn", "a refused renewal gives the present holder more time", "holds", func(b *broken, c *memlock.Coordinator) {
		holders := map[string]piton.Grant{}
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			g, err := c.Acquire(ctx, r)
			if err == nil {
				holders[r.Lock] = g
			}
			return g, err
		}
		b.renew = func(ctx context.Context, g piton.Grant) (piton.Grant, error) {
			present := holders[g.Lock]
			present.TTL = g.TTL
			_, _ = c.Renew(ctx, present)
			return c.Renew(ctx, g)
		}
	}},
	{"RenewOnlyOwn", "one refusal spoils a batch", "of one's own grant", func(b *broken, c *memlock.Coordinator) {
		b.batch = func(ctx context.Context, grants []piton.Grant) []piton.RenewResult {
			results := make([]piton.RenewResult, len(grants))
			var err error
			for i, g := range grants {
				if err == nil {
					results[i].Grant, err = c.Renew(ctx, g)
				}
				results[i].Err = err
			}
			return results
		}
	}},
	{"RenewOnlyOwn", "a batch leaves refusals out", "results", func(b *broken, c *memlock.Coordinator) {
		b.batch = func(ctx context.Context, grants []piton.Grant) (results []piton.RenewResult) {
			for _, g := range grants {
				if renewed, err := c.Renew(ctx, g); err == nil {
					results = append(results, piton.RenewResult{Grant: renewed})
				}
			}
			return results
		}
	}},
	{"ReleaseOnlyOwn", "the clean-up of an unknown holder ends whatever is held", "whatever an older holder has: done", func(b *broken, c *memlock.Coordinator) {
		b.release = func(ctx context.Context, g piton.Grant) error {
			if held, ok, _ := c.Get(ctx, g.Lock); ok && g.Token == 0 {
				_, err := c.Break(ctx, g.Lock, held.Token)
				return err
			}
			return c.Release(ctx, g)
		}
	}},
	{"ReleaseOnlyOwn", "the new holder's token is not told", "taken by token 0", func(b *broken, c *memlock.Coordinator) {
		b.release = func(ctx context.Context, g piton.Grant) error {
			err := c.Release(ctx, g)
			var lost *piton.LostError
			if errors.As(err, &lost) {
				lost.By = 0
			}
			return err
		}
	}},
	{"ReleaseOnlyOwn", "a break does not compare", "break of another token: done", func(b *broken, c *memlock.Coordinator) {
		b.breaks = func(ctx context.Context, lock string, _ piton.Token) (bool, error) {
			held, _, _ := c.Get(ctx, lock)
			return c.Break(ctx, lock, held.Token)
		}
	}},
	{"NoSharedClock", "more time remains than was granted", "remain of", func(b *broken, c *memlock.Coordinator) {
		b.get = func(ctx context.Context, lock string) (piton.Held, bool, error) {
			held, ok, err := c.Get(ctx, lock)
			held.Remaining *= 1000 // another unit
			return held, ok, err
		}
	}},
	{"OddNames", "a prefix is a pattern", "list of", func(b *broken, c *memlock.Coordinator) {
		b.list = func(ctx context.Context, prefix string, limit int) ([]piton.Held, error) {
			return c.List(ctx, strings.TrimRight(prefix, "%_*?"), limit)
		}
	}},
	{"OddNames", "the limit is not kept", "at most 3", func(b *broken, c *memlock.Coordinator) {
		b.list = func(ctx context.Context, prefix string, _ int) ([]piton.Held, error) { return c.List(ctx, prefix, 0) }
	}},
	{"OddNames", "a name is shown in another form", "for", func(b *broken, c *memlock.Coordinator) {
		b.get = func(ctx context.Context, lock string) (piton.Held, bool, error) {
			held, ok, err := c.Get(ctx, lock)
			held.Lock = strings.TrimSpace(held.Lock)
			return held, ok, err
		}
	}},
	{"OddNames", "a name of one byte is refused", "a name of one byte", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if len(r.Lock) == 1 {
				return piton.Grant{}, errors.New("too short")
			}
			return c.Acquire(ctx, r)
		}
	}},
	{"WakeUp", "a stop ends all watches of the lock", "after another watcher stopped", func(b *broken, c *memlock.Coordinator) {
		var stops []func()
		b.watch = func(ctx context.Context, lock string) (<-chan struct{}, func(), error) {
			hints, stop, err := c.Watch(ctx, lock)
			stops = append(stops, stop)
			return hints, func() {
				for _, stop := range stops {
					stop()
				}
			}, err
		}
	}},
	{"UnknownIsNotNo", "a lost reply is followed by a refusal", "the reply was lost", func(b *broken, c *memlock.Coordinator) {
		b.acquire = func(ctx context.Context, r piton.Request) (piton.Grant, error) {
			if held, ok, _ := c.Get(ctx, r.Lock); ok {
				return piton.Grant{}, &piton.HeldError{Lock: r.Lock, Token: held.Token, Remaining: held.Remaining}
			}
			return c.Acquire(ctx, r)
		}
	}},
	{"NothingLeft", "a watcher is never forgotten", "the end of all goroutines", func(b *broken, c *memlock.Coordinator) {
		b.watch = func(ctx context.Context, lock string) (<-chan struct{}, func(), error) {
			hints, stop, err := c.Watch(ctx, lock)
			stuck := make(chan struct{})
			leaks.add(stuck)
			go func() { <-stuck }()
			return hints, stop, err
		}
	}},
}
