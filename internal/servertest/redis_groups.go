package servertest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const failoverWithin = 30 * time.Second

// RedisSentinel is a primary with one replica, watched by three Sentinels.
type RedisSentinel struct {
	Name             string // of the primary, as the Sentinels call it
	Primary, Replica *Redis
	Sentinels        []*Redis
}

// StartRedisSentinel starts the five processes for this test and returns when the
// replica has the primary's data and the Sentinels know one another. They replace a
// primary that has been silent for half a second.
func StartRedisSentinel(tb testing.TB) *RedisSentinel {
	tb.Helper()
	s := &RedisSentinel{Name: "piton", Primary: StartRedis(tb, quickReplication...)}
	s.Replica = StartRedis(tb, append(quickReplication, "--replicaof", "127.0.0.1 "+strconv.Itoa(s.Primary.port))...)
	awaitReplica(tb, s.Replica)
	for range 3 {
		sentinel, err := startSentinel(s.Name, s.Primary)
		s.Sentinels = append(s.Sentinels, own(tb, sentinel, err))
	}
	for _, sentinel := range s.Sentinels {
		sentinel.Command(tb, "SENTINEL", "DEBUG", "INFO-PERIOD", "100", "PUBLISH-PERIOD", "100")
	}
	Eventually(tb, failoverWithin, func() bool {
		for _, sentinel := range s.Sentinels {
			state := fields(sentinel.Command(tb, "SENTINEL", "MASTER", s.Name))
			if state["num-slaves"] != "1" || state["num-other-sentinels"] != "2" {
				return false
			}
		}
		return true
	}, "Sentinels that know one another")
	return s
}

// Addrs are the addresses of the Sentinels.
func (s *RedisSentinel) Addrs() []string { return addrs(s.Sentinels) }

// LoseWrites makes the Sentinels replace the primary by a replica that lacks what
// the primary acknowledges during write, and returns when all of them have.
func (s *RedisSentinel) LoseWrites(tb testing.TB, write func()) {
	tb.Helper()
	loseWrites(tb, s.Primary, s.Replica, write)
	Eventually(tb, failoverWithin, func() bool {
		for _, sentinel := range s.Sentinels {
			at, _ := sentinel.Command(tb, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Name).([]any)
			if len(at) != 2 || at[1] != strconv.Itoa(s.Replica.port) {
				return false
			}
		}
		return s.Replica.role(tb) == "master"
	}, "failover by the Sentinels")
}

var quickReplication = []string{"--repl-diskless-sync-delay", "0"}

func startSentinel(name string, primary *Redis) (*Redis, error) {
	binary, err := find("redis-server", "redis-server")
	if err != nil {
		return nil, err
	}
	folder, err := newFolder("sentinel")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(folder, "sentinel.conf")
	text := fmt.Sprintf("dir %s\nbind 127.0.0.1\nsentinel monitor %[2]s 127.0.0.1 %[3]d 2\nsentinel down-after-milliseconds %[2]s 500\nsentinel failover-timeout %[2]s 3000\n",
		folder, name, primary.port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	server := &Server{
		kind: "sentinel", binary: binary, folder: folder, probe: probeRedis, ending: syscall.SIGTERM,
		args: func(port int) []string { return []string{config, "--sentinel", "--port", strconv.Itoa(port)} },
	}
	if err := server.start(freePort); err != nil {
		return nil, err
	}
	return &Redis{server}, nil
}

// RedisCluster is a Redis Cluster of three primaries, each with one replica.
type RedisCluster struct {
	Primaries, Replicas []*Redis // a replica has the index of its primary
}

// StartRedisCluster starts six processes for this test and returns when all of them
// serve all slots. A primary that has been silent for a second is replaced.
func StartRedisCluster(tb testing.TB) *RedisCluster {
	tb.Helper()
	c := &RedisCluster{}
	bus := map[*Redis]int{}
	for i := range 6 {
		node, port := startClusterNode(tb)
		bus[node] = port
		if i < 3 {
			c.Primaries = append(c.Primaries, node)
		} else {
			c.Replicas = append(c.Replicas, node)
		}
	}
	all := c.Nodes()
	for i, node := range all {
		node.Command(tb, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i > 0 {
			node.Command(tb, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(all[0].port), strconv.Itoa(bus[all[0]]))
		}
	}
	const slots = 16384
	for i, primary := range c.Primaries {
		primary.Command(tb, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/3), strconv.Itoa((i+1)*slots/3-1))
	}
	for i, replica := range c.Replicas {
		id := c.Primaries[i].Command(tb, "CLUSTER", "MYID").(string)
		Eventually(tb, failoverWithin, func() bool {
			_, err := replica.command("CLUSTER", "REPLICATE", id)
			return err == nil // its primary is not known yet
		}, "acquaintance of a replica with its primary")
	}
	for _, replica := range c.Replicas {
		awaitReplica(tb, replica)
	}
	c.awaitOK(tb, all)
	return c
}

// Nodes are all nodes.
func (c *RedisCluster) Nodes() []*Redis { return slices.Concat(c.Primaries, c.Replicas) }

// Addrs are the addresses of all nodes.
func (c *RedisCluster) Addrs() []string { return addrs(c.Nodes()) }

// PrimaryOf is the index of the primary that has the slot of key.
func (c *RedisCluster) PrimaryOf(tb testing.TB, key string) int {
	tb.Helper()
	slot := c.Primaries[0].Command(tb, "CLUSTER", "KEYSLOT", key).(int64)
	return int((slot*3 + 2) / 16384)
}

// LoseWrites makes the Cluster replace primary i by its replica, which lacks what the
// primary acknowledges during write, and returns when all slots are served again.
func (c *RedisCluster) LoseWrites(tb testing.TB, i int, write func()) {
	tb.Helper()
	loseWrites(tb, c.Primaries[i], c.Replicas[i], write)
	left := slices.DeleteFunc(c.Nodes(), func(r *Redis) bool { return r == c.Primaries[i] })
	Eventually(tb, failoverWithin, func() bool { return c.Replicas[i].role(tb) == "master" }, "failover by the Cluster")
	c.awaitOK(tb, left)
}

func (c *RedisCluster) awaitOK(tb testing.TB, nodes []*Redis) {
	tb.Helper()
	Eventually(tb, failoverWithin, func() bool {
		for _, node := range nodes {
			info, _ := node.Command(tb, "CLUSTER", "INFO").(string)
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:"+strconv.Itoa(6)) {
				return false
			}
		}
		return true
	}, "Cluster that serves all slots")
}

// startClusterNode returns the node and the port on which it talks to the others.
func startClusterNode(tb testing.TB) (node *Redis, bus int) {
	tb.Helper()
	bus, err := freePort()
	if err == nil {
		node, err = startRedis(append(quickReplication, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", strconv.Itoa(bus))...)
	}
	return own(tb, node, err), bus
}

// loseWrites: the replica stands still and its connection is cut, or it would read
// the writes from its socket later. It comes back when the primary is gone.
func loseWrites(tb testing.TB, primary, replica *Redis, write func()) {
	tb.Helper()
	Eventually(tb, failoverWithin, func() bool { // what was written before must be there
		return replica.offset(tb) == primary.offset(tb)
	}, "replica that has all the data")
	replica.Pause(tb)
	primary.Command(tb, "CLIENT", "KILL", "TYPE", "replica")
	write()
	primary.Kill(tb)
	replica.Resume(tb)
}

func awaitReplica(tb testing.TB, replica *Redis) {
	tb.Helper()
	Eventually(tb, failoverWithin, func() bool {
		role, _ := replica.Command(tb, "ROLE").([]any)
		return len(role) == 5 && role[0] == "slave" && role[3] == "connected"
	}, "connection of a replica to its primary")
}

func (r *Redis) role(tb testing.TB) string {
	tb.Helper()
	role, err := r.command("ROLE")
	list, _ := role.([]any)
	if err != nil || len(list) == 0 {
		return ""
	}
	name, _ := list[0].(string)
	return name
}

// offset is how far in the stream of replicated writes a node is.
func (r *Redis) offset(tb testing.TB) string {
	tb.Helper()
	info, _ := r.Command(tb, "INFO", "replication").(string)
	_, after, _ := strings.Cut(info, "master_repl_offset:")
	offset, _, _ := strings.Cut(after, "\r\n")
	return offset
}

func addrs(servers []*Redis) []string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Addr())
	}
	return all
}

// fields reads a flat list of names and values.
func fields(reply any) map[string]string {
	list, _ := reply.([]any)
	m := map[string]string{}
	for pair := range slices.Chunk(list, 2) {
		if len(pair) == 2 {
			m[fmt.Sprint(pair[0])] = fmt.Sprint(pair[1])
		}
	}
	return m
}
