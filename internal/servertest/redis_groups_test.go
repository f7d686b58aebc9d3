package servertest

import "testing"

func TestSentinelsReplaceAPrimaryAndLoseWrites(t *testing.T) {
	s := StartRedisSentinel(t)
	s.Primary.Command(t, "SET", "n", "kept")
	s.LoseWrites(t, func() {
		if reply := s.Primary.Command(t, "SET", "n", "acknowledged"); reply != "OK" {
			t.Errorf("the write was answered by %v", reply)
		}
	})
	if n := s.Replica.Command(t, "GET", "n"); n != "kept" {
		t.Errorf("after the failover n is %v; want the older value", n)
	}
	s.Replica.Command(t, "SET", "n", "again")
}

func TestAClusterReplacesAPrimaryAndLosesWrites(t *testing.T) {
	c := StartRedisCluster(t)
	i := c.PrimaryOf(t, "n")
	c.Primaries[i].Command(t, "SET", "n", "kept")
	c.LoseWrites(t, i, func() { c.Primaries[i].Command(t, "SET", "n", "acknowledged") })
	if n := c.Replicas[i].Command(t, "GET", "n"); n != "kept" {
		t.Errorf("after the failover n is %v; want the older value", n)
	}
	c.Replicas[i].Command(t, "SET", "n", "again")
}
