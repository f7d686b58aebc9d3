package locktest_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/locktest"
	"github.com/pitonlock/piton/memlock"
)

// line is a coordinator with a queue, and perhaps a mistake.
type line struct {
	*memlock.Coordinator
	mistake string

	mu      sync.Mutex
	waiting map[string][]string           // holders by lock
	looks   map[string]chan time.Duration // by holder
}

const claim = 50 * time.Millisecond

func newLine(mistake string) *line {
	return &line{Coordinator: memlock.New(), mistake: mistake, waiting: map[string][]string{}, looks: map[string]chan time.Duration{}}
}

func (l *line) Turns(_ context.Context, _, holder string) (<-chan time.Duration, func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looks[holder] = make(chan time.Duration, 1)
	return l.looks[holder], func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.looks, holder)
	}, nil
}

func (l *line) tell(holder string, look time.Duration) bool {
	looks := l.looks[holder]
	if looks == nil {
		return false
	}
	select {
	case earlier := <-looks:
		look = min(look, earlier)
	default:
	}
	looks <- look
	return true
}

// offer grants a free lock to the next, unless that is me.
func (l *line) offer(lock, me string) {
	for len(l.waiting[lock]) > 0 && l.mistake != "release only frees" {
		at := 0
		if l.mistake == "last come, first served" {
			at = len(l.waiting[lock]) - 1
		}
		next := l.waiting[lock][at]
		l.waiting[lock] = slices.Delete(l.waiting[lock], at, at+1)
		if next == me {
			return
		}
		if l.tell(next, 0) {
			_, _ = l.Coordinator.Acquire(context.Background(), piton.Request{Lock: lock, Holder: next, TTL: claim})
			if rest := l.waiting[lock]; len(rest) > 0 && l.mistake != "nobody watches the next" {
				l.tell(rest[0], claim)
			}
			return
		}
	}
}

func (l *line) Acquire(ctx context.Context, r piton.Request) (piton.Grant, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, held, _ := l.Get(ctx, r.Lock); !held && l.mistake != "who looks first after a crash is served" {
		l.offer(r.Lock, r.Holder)
	}
	return l.Coordinator.Acquire(ctx, r)
}

func (l *line) Queue(ctx context.Context, r piton.Request) (piton.Grant, error) {
	g, err := l.Acquire(ctx, r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && !slices.Contains(l.waiting[r.Lock], r.Holder) {
		l.waiting[r.Lock] = append(l.waiting[r.Lock], r.Holder)
	}
	return g, err
}

func (l *line) Release(ctx context.Context, g piton.Grant) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.Token == 0 && l.mistake != "nobody can give up" {
		l.waiting[g.Lock] = slices.DeleteFunc(l.waiting[g.Lock], func(h string) bool { return h == g.Holder })
	}
	err := l.Coordinator.Release(ctx, g)
	if err == nil {
		l.offer(g.Lock, "")
	}
	return err
}

func TestAFairQueue(t *testing.T) {
	if err := locktest.CheckLaw(t.Context(), law(t, "FirstComeFirstServed"), harness(newLine(""))).Err; err != nil {
		t.Error(err)
	}
}

func TestQueuesThatAreUnfair(t *testing.T) {
	for mistake, says := range map[string]string{
		"last come, first served":                 "the last after the release: done",
		"release only frees":                      "a late-comer after the release: done",
		"nobody watches the next":                 "the one behind it was not told",
		"nobody can give up":                      "",
		"who looks first after a crash is served": "the last after the crash: done",
	} {
		t.Run(mistake, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			err := locktest.CheckLaw(ctx, law(t, "FirstComeFirstServed"), harness(newLine(mistake))).Err
			if err == nil {
				t.Fatal("the law is said to be kept")
			}
			if !strings.Contains(err.Error(), says) {
				t.Errorf("got: %v; want it to say %q", err, says)
			}
		})
	}
}
