//go:build linux

package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/cmd/piton/internal/backend"
)

// stepLimit bounds one step of a worker beside the time that it may wait for
// the lock.
const stepLimit = 5 * time.Second

// holder is a worker's side of one protection.
type holder interface {
	acquire(ctx context.Context) (token int64, err error)
	// held is the check that the worker makes before it writes.
	held() bool
	// write returns errRefused or piton.ErrStale where the storage said no.
	write(ctx context.Context, balance int64) error
	release(ctx context.Context) error
	close(ctx context.Context) error
}

// Work is the main function of a worker process: it reads its orders and then
// steps from in until that ends, and reports on out. It does each step when it
// is told to and does not look whether the lease still stands: whatever stops it
// is the protection under trial, not a kind worker.
func Work(in io.Reader, out io.Writer) error {
	r := bufio.NewReader(in)
	line, err := r.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("reading the orders: %w", err)
	}
	var o orders
	if err := json.Unmarshal(line, &o); err != nil {
		return fmt.Errorf("reading the orders: %w", err)
	}
	w := &worker{orders: o, out: json.NewEncoder(out)}
	ctx := context.Background()
	if err := w.open(ctx); err != nil {
		w.report(event{Step: reportReady, Error: err.Error()})
		return err
	}
	w.report(event{Step: reportReady})
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return w.close(ctx)
		}
		w.report(w.do(ctx, line[:len(line)-1]))
	}
}

type worker struct {
	orders
	store   *storage
	holder  holder
	closers []func() error

	token   int64
	balance int64

	mu  sync.Mutex
	out *json.Encoder
}

func (w *worker) report(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(e) // a broken pipe: the laboratory is gone, and the next read says so
}

func (w *worker) open(ctx context.Context) error {
	store, closeStore, err := openStorage(ctx, w.Storage, w.Prefix)
	if err != nil {
		return err
	}
	w.store = store
	w.closers = append(w.closers, closeStore)
	if w.Protection == Sealed {
		return w.openSealed(ctx)
	}
	s, err := openServer(ctx, w.Coordinator, w.Prefix)
	if err != nil {
		return err
	}
	w.closers = append(w.closers, s.close)
	w.holder = &usualHolder{worker: w, lock: s.lock(w.Lock), compare: w.Protection == Compare}
	return nil
}

func (w *worker) openSealed(ctx context.Context) error {
	b, err := backend.OpenCoordinator(ctx, w.Coordinator)
	if err != nil {
		return err
	}
	w.closers = append(w.closers, b.Close)
	locker, err := piton.New(b.Coordinator, piton.WithTTL(w.TTL), piton.WithGuards(sealing{w}),
		piton.WithOwner(fmt.Sprintf("piton prove, worker %d", w.Worker)))
	if err != nil {
		return err
	}
	w.holder = &sealedHolder{worker: w, locker: locker}
	return nil
}

// sealing is the storage's guard, which also tells what it was asked and said.
type sealing struct{ *worker }

func (s sealing) Seal(ctx context.Context, f piton.Fence) error {
	err := s.store.guard.Seal(ctx, f)
	e := event{Step: reportSeal, Token: int64(f.Token)}
	if err != nil {
		e.Refused = err.Error()
	}
	s.report(e)
	return err
}

func (w *worker) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	errs := []error{w.holder.close(ctx)}
	for _, c := range w.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// do carries out one step.
func (w *worker) do(ctx context.Context, step string) event {
	ctx, cancel := context.WithTimeout(ctx, stepLimit+2*w.TTL)
	defer cancel()
	e := event{Step: step}
	var err error
	switch step {
	case stepAcquire:
		if w.token, err = w.holder.acquire(ctx); err == nil {
			err = w.store.note(ctx, w.Lock, kindGranted, w.Worker, w.token)
		}
	case stepRead:
		w.balance, err = w.store.balance(ctx, w.Lock)
		e.Balance = w.balance
	case stepCheck:
		e.Held = w.holder.held()
	case stepWrite:
		e.Balance = w.balance + w.Amount
		err = w.holder.write(ctx, e.Balance)
		if errors.Is(err, errRefused) || errors.Is(err, piton.ErrStale) {
			e.Refused = err.Error()
			err = w.store.note(ctx, w.Lock, kindRefused, w.Worker, w.token)
		}
	case stepRelease:
		err = w.holder.release(ctx)
	default:
		err = fmt.Errorf("unknown step %q", step)
	}
	e.Token = w.token
	if err != nil {
		e.Error = err.Error()
	}
	return e
}

func (w *worker) intent(balance int64) write {
	return write{account: w.Lock, worker: w.Worker, token: w.token, balance: balance}
}

// usualHolder is the protections "none" and "compare".
type usualHolder struct {
	*worker
	lock    usual
	compare bool
	lease   *usualLease
}

func (h *usualHolder) acquire(ctx context.Context) (token int64, err error) {
	if h.lease, err = acquireUsual(ctx, h.lock, h.TTL); err != nil || !h.compare {
		return 0, err
	}
	return h.lock.count(ctx)
}

func (h *usualHolder) held() bool { return h.lease.held() }

func (h *usualHolder) write(ctx context.Context, balance int64) error {
	if h.compare {
		return h.store.putCompare(ctx, h.intent(balance))
	}
	return h.store.put(ctx, h.intent(balance))
}

func (h *usualHolder) release(ctx context.Context) error { return h.lease.release(ctx) }

func (h *usualHolder) close(context.Context) error { return nil }

// sealedHolder is Piton.
type sealedHolder struct {
	*worker
	locker *piton.Locker
	lease  *piton.Lease
}

func (h *sealedHolder) acquire(ctx context.Context) (int64, error) {
	lease, err := h.locker.Acquire(ctx, h.Lock)
	if err != nil {
		return 0, err
	}
	h.lease = lease
	go func() {
		<-lease.Done()
		if err := lease.Err(); errors.Is(err, piton.ErrLost) {
			h.report(event{Step: reportLost, Refused: err.Error()})
		}
	}()
	return int64(lease.Token()), nil
}

func (h *sealedHolder) held() bool { return h.lease.Err() == nil }

// write leaves the lease's context aside: the storage alone shall say no.
func (h *sealedHolder) write(ctx context.Context, balance int64) error {
	return h.store.putSealed(ctx, h.lease.Fence(), h.intent(balance))
}

func (h *sealedHolder) release(ctx context.Context) error {
	err := h.lease.Release(ctx)
	if errors.Is(err, piton.ErrLost) {
		return nil // expected of the holder that was paused
	}
	return err
}

func (h *sealedHolder) close(ctx context.Context) error { return h.locker.Close(ctx) }
