package piton

import (
	"context"
	"slices"
	"sync"
)

// queue lets the waiters of this Locker on one lock in one after the other,
// first come, first served, so that a process asks the coordinator once, however
// many of its goroutines wait.
type queue struct {
	mu    sync.Mutex
	turns map[string][]*turn // the first of each has its turn
}

type turn struct {
	lock string
	mine chan struct{} // closed when it is this waiter's turn
	poke chan struct{} // a lease of this Locker on the lock has ended: look at once
}

// join waits until all who joined before have left. The caller leaves when it is
// done. An error is ctx's cause; there is nothing to leave then.
func (q *queue) join(ctx context.Context, lock string) (*turn, error) {
	t := &turn{lock: lock, mine: make(chan struct{}), poke: make(chan struct{}, 1)}
	q.mu.Lock()
	if q.turns == nil {
		q.turns = map[string][]*turn{}
	}
	q.turns[lock] = append(q.turns[lock], t)
	if q.turns[lock][0] == t {
		close(t.mine)
	}
	q.mu.Unlock()
	select {
	case <-t.mine:
		return t, nil
	case <-ctx.Done():
		q.leave(t)
		return nil, context.Cause(ctx)
	}
}

func (q *queue) leave(t *turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting := q.turns[t.lock]
	at := slices.Index(waiting, t)
	waiting = slices.Delete(waiting, at, at+1)
	if len(waiting) == 0 {
		delete(q.turns, t.lock)
		return
	}
	q.turns[t.lock] = waiting
	if at == 0 {
		close(waiting[0].mine)
	}
}

// poke tells the first waiter that the lock may be free.
func (q *queue) poke(lock string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if waiting := q.turns[lock]; len(waiting) > 0 {
		select {
		case waiting[0].poke <- struct{}{}:
		default:
		}
	}
}
