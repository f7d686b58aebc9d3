package servertest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Etcd is a running etcd, alone or as a member of an [EtcdCluster].
type Etcd struct{ *Server }

var sharedEtcd shared[*Etcd]

// StartEtcd starts an etcd of one member for this test with the given further
// command line arguments, of which the later ones win.
func StartEtcd(tb testing.TB, args ...string) *Etcd {
	tb.Helper()
	server, err := startEtcd(args...)
	return own(tb, server, err)
}

// SharedEtcd returns the etcd that all tests of the binary share. Use keys that
// contain something of the test's own, since nobody empties it.
func SharedEtcd(tb testing.TB) *Etcd {
	tb.Helper()
	return sharedEtcd.get(tb, func() (*Etcd, error) { return startEtcd() })
}

// URL is etcd://127.0.0.1:PORT.
func (e *Etcd) URL() string { return "etcd://" + e.Addr() }

// Endpoint is http://127.0.0.1:PORT.
func (e *Etcd) Endpoint() string { return "http://" + e.Addr() }

// Data is the member's data folder, for an end of the server with other data
// ([Server.Stop], change, [Server.Restart]).
func (e *Etcd) Data() string { return filepath.Join(e.folder, "data") }

// soloTiming makes a member alone its own leader at once. It has nobody to wait for.
var soloTiming = []string{"--heartbeat-interval", "20", "--election-timeout", "100"}

func startEtcd(args ...string) (*Etcd, error) {
	peer, err := freePort()
	if err != nil {
		return nil, err
	}
	members := map[string]int{"m0": peer}
	e, err := newEtcd("m0", members, append(soloTiming[:len(soloTiming):len(soloTiming)], args...))
	if err != nil {
		return nil, err
	}
	if err := e.start(freePort); err != nil {
		return nil, err
	}
	return e, nil
}

// newEtcd prepares one of the members, which are named with their peer ports.
func newEtcd(name string, members map[string]int, args []string) (*Etcd, error) {
	binary, err := find("etcd", "etcd-server")
	if err != nil {
		return nil, err
	}
	folder, err := newFolder("etcd")
	if err != nil {
		return nil, err
	}
	var cluster []string
	for member, port := range members {
		cluster = append(cluster, fmt.Sprintf("%s=http://127.0.0.1:%d", member, port))
	}
	peer := fmt.Sprintf("http://127.0.0.1:%d", members[name])
	return &Etcd{&Server{
		kind: "etcd", binary: binary, folder: folder, probe: probeEtcd, ending: syscall.SIGTERM,
		// Releases before 3.5 ask for this on anything but amd64.
		env: []string{"ETCD_UNSUPPORTED_ARCH=" + runtime.GOARCH},
		args: func(port int) []string {
			client := "http://127.0.0.1:" + strconv.Itoa(port)
			return append([]string{
				"--name", name, "--data-dir", filepath.Join(folder, "data"),
				"--listen-client-urls", client, "--advertise-client-urls", client,
				"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
				"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
			}, args...)
		},
	}}, nil
}

// probeEtcd asks whether the member is healthy: it knows a leader, and a write
// or a read gets through.
func probeEtcd(conn net.Conn) error {
	if _, err := fmt.Fprint(conn, "GET /health HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	reply, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("/health was answered by %s", reply.Status)
	}
	return nil
}

// EtcdCluster is an etcd of several members, each a process of its own.
type EtcdCluster struct{ Members []*Etcd }

// StartEtcdCluster starts an etcd of three members for this test. Its leader is
// replaced about half a second after it stopped answering.
func StartEtcdCluster(tb testing.TB, args ...string) *EtcdCluster {
	tb.Helper()
	c, err := startEtcdCluster(3, args...)
	check(tb, err)
	for _, m := range c.Members {
		m.endWith(tb)
	}
	return c
}

func startEtcdCluster(size int, args ...string) (*EtcdCluster, error) {
	peers, c := map[string]int{}, &EtcdCluster{}
	for n := range size {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		peers[fmt.Sprint("m", n)] = port
	}
	args = append([]string{"--heartbeat-interval", "50", "--election-timeout", "500"}, args...)
	for n := range size {
		m, err := newEtcd(fmt.Sprint("m", n), peers, args)
		if err != nil {
			return nil, err
		}
		c.Members = append(c.Members, m)
	}
	// No member is ready before most of them run.
	errs := make([]error, size)
	var all sync.WaitGroup
	for n, m := range c.Members {
		all.Go(func() { errs[n] = m.start(freePort) })
	}
	all.Wait()
	for _, err := range errs {
		if err == nil {
			continue
		}
		for n, m := range c.Members {
			if errs[n] == nil {
				_ = m.discard() // the reason for it is reported
			}
		}
		return nil, err
	}
	return c, nil
}

// Endpoints are the members' client addresses.
func (c *EtcdCluster) Endpoints() []string {
	var all []string
	for _, m := range c.Members {
		all = append(all, m.Endpoint())
	}
	return all
}

// Leader returns the leader as its followers see it, at the latest after a few
// elections. Members that do not answer are not asked twice.
func (c *EtcdCluster) Leader(tb testing.TB) *Etcd {
	tb.Helper()
	var leader *Etcd
	Eventually(tb, readyWithin, func() bool {
		ids, votes := map[string]*Etcd{}, map[string]int{}
		for _, m := range c.Members {
			if id, its, err := m.status(); err == nil {
				ids[id] = m
				votes[its]++
			}
		}
		for id, n := range votes {
			if n > len(c.Members)/2 && ids[id] != nil {
				leader = ids[id]
				return true
			}
		}
		return false
	}, "a leader of most members")
	return leader
}

// status is the member's id and that of its leader.
func (e *Etcd) status() (id, leader string, err error) {
	client := http.Client{Timeout: 300 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Post(e.Endpoint()+"/v3/maintenance/status", "application/json", strings.NewReader("{}"))
	if err != nil {
		return "", "", err
	}
	defer reply.Body.Close()
	var status struct {
		Header struct {
			Member string `json:"member_id"`
		}
		Leader string
	}
	if err := json.NewDecoder(reply.Body).Decode(&status); err != nil {
		return "", "", err
	}
	return status.Header.Member, status.Leader, nil
}
