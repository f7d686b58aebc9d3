package consullock_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/internal/faultproxy"
	"github.com/pitonlock/piton/internal/servertest"
)

// trips calls before with the path of each request.
type trips struct {
	http.RoundTripper
	before func(path string)
}

func (t *trips) RoundTrip(r *http.Request) (*http.Response, error) {
	t.before(r.URL.Path)
	return t.RoundTripper.RoundTrip(r)
}

func wantFree(t *testing.T, c client, lock string) {
	t.Helper()
	if held, ok, err := c.Get(t.Context(), lock); ok || err != nil {
		t.Errorf("%q: %+v, %v, %v; want it free", lock, held, ok, err)
	}
	wantSessions(t, c, 0)
}

// A step is cut off at each of its requests in turn, which is lost, or its answer is.
// That says nothing about its outcome; the step is done again without harm, or the
// acquisition is given up, and neither leaves a session.
func TestStepsThatAreCutOff(t *testing.T) {
	direct, server := fresh(t)
	proxy := faultproxy.Start(t, server.Addr())
	transport := &http.Transport{}
	way := &trips{transport, func(string) {}}
	c, err := connectBy(proxy.Addr(), transport, way)
	must(t, err)
	cutOff := func(steps []string, at int, lost faultproxy.Direction, step func(ctx context.Context) error) {
		t.Helper()
		var seen []string
		way.before = func(path string) {
			if seen = append(seen, path); len(seen) == at+1 {
				proxy.Set(lost, faultproxy.Drop)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		err := step(ctx)
		if len(seen) != at+1 || !strings.HasPrefix(seen[at], steps[at]) {
			t.Errorf("the requests were %v; want %v", seen, steps[:at+1])
		}
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, piton.ErrHeld) || errors.Is(err, piton.ErrLost) {
			t.Errorf("cut off %v at %s: %v; want unknown", lost, steps[at], err)
		}
		way.before = func(string) {}
		proxy.ResetAll()
		proxy.Heal()
	}
	acquisition := []string{"/v1/txn", "/v1/session/create", "/v1/txn"}
	for at := range acquisition {
		for _, lost := range []faultproxy.Direction{faultproxy.ToServer, faultproxy.ToClient} {
			for _, again := range []bool{true, false} {
				cutOff(acquisition, at, lost, func(ctx context.Context) error {
					_, err := c.Acquire(ctx, request("a", "h"))
					return err
				})
				g := piton.Grant{Fence: piton.Fence{Lock: "a", Holder: "h"}} // whatever it has got
				if again {
					g = grant(t, c, request("a", "h"))
					if held, _, err := direct.Get(t.Context(), "a"); err != nil || held.Token != g.Token {
						t.Errorf("granted %v, held %+v, %v", g, held, err)
					}
					g.Token = 0 // the session of an attempt without an answer, too
				}
				must(t, c.Release(t.Context(), g))
				wantFree(t, direct, "a")
			}
		}
	}
	for _, lost := range []faultproxy.Direction{faultproxy.ToServer, faultproxy.ToClient} {
		g := grant(t, c, request("a", "h"))
		for at, steps := range [][]string{{"/v1/kv/"}, {"/v1/kv/", "/v1/session/renew/"}} {
			cutOff(steps, at, lost, func(ctx context.Context) error {
				_, err := c.Renew(ctx, g)
				return err
			})
			if again, err := c.Renew(t.Context(), g); err != nil || again != g {
				t.Errorf("the second renewal: %v, %v", again, err)
			}
		}
		cutOff([]string{"/v1/kv/", "/v1/session/destroy/"}, 1, lost, func(ctx context.Context) error { return c.Release(ctx, g) })
		must(t, c.Release(t.Context(), g))
		wantFree(t, direct, "a")
	}
}

// The write of an acquisition that was given up arrives late: it does nothing.
func TestARequestThatArrivesLateDoesNothing(t *testing.T) {
	direct, server := fresh(t)
	proxy := faultproxy.Start(t, server.Addr())
	transport := &http.Transport{}
	writes := 0
	way := &trips{transport, func(path string) {
		if path == "/v1/txn" {
			if writes++; writes == 2 { // the first one reads
				proxy.Set(faultproxy.ToServer, faultproxy.Hole)
			}
		}
	}}
	c, err := connectBy(proxy.Addr(), transport, way)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Acquire(ctx, request("a", "h")); !errors.Is(err, context.DeadlineExceeded) || writes != 2 {
		t.Fatalf("after %d transactions: %v", writes, err)
	}
	must(t, direct.Release(t.Context(), piton.Grant{Fence: piton.Fence{Lock: "a", Holder: "h"}}))
	answered := make(chan struct{})
	proxy.OnData(func(dir faultproxy.Direction, _ []byte) {
		if dir == faultproxy.ToClient {
			select {
			case <-answered:
			default:
				close(answered)
			}
		}
	})
	proxy.Heal()
	select {
	case <-answered:
	case <-time.After(10 * time.Second):
		t.Fatal("what arrived late was not answered")
	}
	wantFree(t, direct, "a")
}

// A leader is killed, or frozen, while a lock is held: the lease lives on or is lost
// in time, nobody else gets the lock while it lives, and the system goes on.
func TestTheLeaderIsReplaced(t *testing.T) {
	for how, end := range map[string]func(t *testing.T, m *servertest.Consul){
		"killed": func(t *testing.T, m *servertest.Consul) { m.Kill(t) },
		"frozen": func(t *testing.T, m *servertest.Consul) { m.Pause(t) },
	} {
		t.Run(how, func(t *testing.T) {
			cluster := servertest.StartConsulCluster(t)
			leader := cluster.Leader(t)
			var others []*servertest.Consul
			for _, m := range cluster.Members {
				if m != leader {
					others = append(others, m)
				}
			}
			holder, contender := open(t, others[0].Addr()), open(t, others[1].Addr())
			lockers := make([]*piton.Locker, 2)
			for i, c := range []client{holder, contender} {
				var err error
				lockers[i], err = piton.New(c, piton.WithTTL(20*time.Second))
				must(t, err)
			}
			lease, err := lockers[0].Acquire(t.Context(), "a")
			must(t, err)
			end(t, leader)
			next := cluster.Leader(t)
			if next == leader {
				t.Fatal("the leader was not replaced")
			}
			servertest.Eventually(t, 30*time.Second, func() bool {
				_, err := contender.Acquire(t.Context(), request("a", "h"))
				if err == nil {
					t.Fatal("granted while the lease lives")
				}
				return errors.Is(err, piton.ErrHeld)
			}, "an answer of the new leader")
			renewed := lease.Until()
			servertest.Eventually(t, 20*time.Second, func() bool { return lease.Until().After(renewed) }, "a renewal by the new leader")
			if how == "frozen" {
				leader.Resume(t)
			}
			must(t, lease.Err(), lease.Release(t.Context()))
			after, err := lockers[1].Acquire(t.Context(), "a")
			must(t, err)
			if after.Token() <= lease.Token() {
				t.Errorf("token %d after %d", after.Token(), lease.Token())
			}
			must(t, after.Release(t.Context()), lockers[0].Close(t.Context()), lockers[1].Close(t.Context()))
		})
	}
}
