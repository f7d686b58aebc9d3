package servertest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Consul is a running Consul server with its agent, alone or as a member of a
// [ConsulCluster].
type Consul struct {
	*Server
	name string
	rpc  int // the port of the other servers' and of raft
}

// consulPorts are those of one member beside that of HTTP.
type consulPorts struct{ rpc, serf int }

// consulSettings make short TTLs possible, failures quick to be noticed, and dead
// members stay members.
const consulSettings = `session_ttl_min = "1s" performance { raft_multiplier = 1 } autopilot { cleanup_dead_servers = false }`

var sharedConsul shared[*Consul]

// StartConsul starts a Consul of one server for this test with the given further
// command line arguments, such as "-hcl", `session_ttl_min = "10s"`; the later ones
// win. TTLs of one second and more are possible.
func StartConsul(tb testing.TB, args ...string) *Consul {
	tb.Helper()
	server, err := startConsul(args...)
	return own(tb, server, err)
}

// SharedConsul returns the Consul that all tests of the binary share. Use keys that
// contain something of the test's own, since nobody empties it.
func SharedConsul(tb testing.TB) *Consul {
	tb.Helper()
	return sharedConsul.get(tb, func() (*Consul, error) { return startConsul() })
}

// URL is consul://127.0.0.1:PORT.
func (c *Consul) URL() string { return "consul://" + c.Addr() }

// Data is the member's data folder, for an end of the server with other data
// ([Server.Stop], change, [Server.Restart]).
func (c *Consul) Data() string { return filepath.Join(c.folder, "data") }

func startConsul(args ...string) (*Consul, error) {
	all, err := newConsuls(1, args)
	if err != nil {
		return nil, err
	}
	return all[0], all[0].start(freePort)
}

// newConsuls prepares the members of a cluster.
func newConsuls(size int, args []string) ([]*Consul, error) {
	ports := make([]consulPorts, size)
	for n := range ports {
		for _, port := range []*int{&ports[n].rpc, &ports[n].serf} {
			var err error
			if *port, err = freePort(); err != nil {
				return nil, err
			}
		}
	}
	all := make([]*Consul, size)
	for n := range all {
		var err error
		if all[n], err = newConsul(n, ports, args); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func newConsul(n int, ports []consulPorts, args []string) (*Consul, error) {
	binary, err := findConsul()
	if err != nil {
		return nil, err
	}
	folder, err := newFolder("consul")
	if err != nil {
		return nil, err
	}
	name := fmt.Sprint("m", n)
	fixed := []string{
		"agent", "-server", "-bootstrap-expect", strconv.Itoa(len(ports)), "-node", name, "-disable-host-node-id",
		"-data-dir", filepath.Join(folder, "data"), "-bind", "127.0.0.1", "-client", "127.0.0.1",
		"-dns-port", "-1", "-grpc-port", "-1", "-serf-wan-port", "-1",
		"-server-port", strconv.Itoa(ports[n].rpc), "-serf-lan-port", strconv.Itoa(ports[n].serf),
		"-retry-interval", "1s", "-hcl", consulSettings,
	}
	for other, p := range ports {
		if other != n {
			fixed = append(fixed, "-retry-join", "127.0.0.1:"+strconv.Itoa(p.serf))
		}
	}
	return &Consul{name: name, rpc: ports[n].rpc, Server: &Server{
		kind: "consul", binary: binary, folder: folder, ending: syscall.SIGTERM,
		probe: func(conn net.Conn) error { return probeConsul(conn, name) },
		args: func(port int) []string {
			return append(append(fixed[:len(fixed):len(fixed)], "-http-port", strconv.Itoa(port)), args...)
		},
	}}, nil
}

// findConsul looks where consul.sh puts the program, too.
func findConsul() (string, error) {
	path, err := find("consul", "consul, of Debian 11 only; sh internal/servertest/install.sh")
	if err == nil || errors.Is(err, errSystem) {
		return path, err
	}
	folders := []string{"/usr/local/bin"}
	if cache, noCache := os.UserCacheDir(); noCache == nil {
		folders = append(folders, filepath.Join(cache, "piton", "bin"))
	}
	for _, folder := range folders {
		if found, missing := exec.LookPath(filepath.Join(folder, "consul")); missing == nil {
			return found, nil
		}
	}
	return "", err
}

// probeConsul asks for the member's entry in the catalog, which a leader has to
// confirm, and without which it takes no sessions.
func probeConsul(conn net.Conn, name string) error {
	if _, err := fmt.Fprintf(conn, "GET /v1/catalog/node/%s?consistent HTTP/1.0\r\n\r\n", name); err != nil {
		return err
	}
	reply, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	var entry struct{ Node *struct{ Node string } }
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("the catalog was answered by %s", reply.Status)
	}
	if err := json.NewDecoder(reply.Body).Decode(&entry); err != nil {
		return err
	}
	if entry.Node == nil {
		return fmt.Errorf("%s is not in the catalog", name)
	}
	return nil
}

// ConsulCluster is a Consul of several servers, each a process of its own with an
// agent of its own.
type ConsulCluster struct{ Members []*Consul }

// StartConsulCluster starts a Consul of three servers for this test. Its leader is
// replaced a second or two after it stopped answering.
func StartConsulCluster(tb testing.TB, args ...string) *ConsulCluster {
	tb.Helper()
	members, err := startConsuls(3, args)
	check(tb, err)
	for _, m := range members {
		m.endWith(tb)
	}
	return &ConsulCluster{members}
}

func startConsuls(size int, args []string) ([]*Consul, error) {
	members, err := newConsuls(size, args)
	if err != nil {
		return nil, err
	}
	// No member is ready before most of them run.
	errs := make([]error, size)
	var all sync.WaitGroup
	for n, m := range members {
		all.Go(func() { errs[n] = m.start(freePort) })
	}
	all.Wait()
	for _, err := range errs {
		if err == nil {
			continue
		}
		for n, m := range members {
			if errs[n] == nil {
				_ = m.discard() // the reason for it is reported
			}
		}
		return nil, err
	}
	return members, nil
}

// Leader returns the leader as most members see it, at the latest after a few
// elections. A member that does not answer has no voice and does not lead.
func (c *ConsulCluster) Leader(tb testing.TB) *Consul {
	tb.Helper()
	var leader *Consul
	Eventually(tb, readyWithin, func() bool {
		answering, votes := map[string]*Consul{}, map[string]int{}
		for _, m := range c.Members {
			if its, err := m.leader(); err == nil {
				answering["127.0.0.1:"+strconv.Itoa(m.rpc)] = m
				votes[its]++
			}
		}
		for address, n := range votes {
			if n > len(c.Members)/2 && answering[address] != nil {
				leader = answering[address]
				return true
			}
		}
		return false
	}, "a leader of most members")
	return leader
}

// leader is the address of the leader that the member knows, "" for none.
func (c *Consul) leader() (string, error) {
	client := http.Client{Timeout: 300 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Get("http://" + c.Addr() + "/v1/status/leader")
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	var address string
	if err := json.NewDecoder(reply.Body).Decode(&address); err != nil {
		return "", err
	}
	return strings.TrimSpace(address), nil
}
