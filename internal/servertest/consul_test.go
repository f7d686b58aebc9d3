package servertest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton/internal/process"
)

// consulCall is one call of the member's HTTP interface.
func consulCall(c *Consul, method, path, body string, within time.Duration) (string, error) {
	request, err := http.NewRequest(method, "http://"+c.Addr()+"/v1/"+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	client := http.Client{Timeout: within, Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if reply.StatusCode != http.StatusOK {
		return "", errors.New(reply.Status)
	}
	return string(text), err
}

func putConsul(t *testing.T, c *Consul, value string) {
	t.Helper()
	if text, err := consulCall(c, http.MethodPut, "kv/a", value, 5*time.Second); err != nil || strings.TrimSpace(text) != "true" {
		t.Errorf("put %s: %s, %v", value, text, err)
	}
}

func expectConsul(t *testing.T, c *Consul, want string) {
	t.Helper()
	if text, err := consulCall(c, http.MethodGet, "kv/a?raw&consistent", "", 5*time.Second); err != nil || text != want {
		t.Errorf("the key is %q, %v; want %q", text, err, want)
	}
}

func TestConsulRestartKeepsPortAndData(t *testing.T) {
	c := StartConsul(t)
	addr, pid := c.Addr(), c.Pid()
	if c.URL() != "consul://"+addr {
		t.Errorf("URL is %s; want that of %s", c.URL(), addr)
	}
	putConsul(t, c, "1")
	c.Kill(t)
	if process.Alive(pid) {
		t.Errorf("process %d is alive after Kill", pid)
	}
	c.Restart(t)
	if c.Addr() != addr || c.Pid() == pid {
		t.Errorf("restarted as process %d on %s; want another than %d on %s", c.Pid(), c.Addr(), pid, addr)
	}
	expectConsul(t, c, "1")
	if _, err := os.Stat(c.Data() + "/raft"); err != nil {
		t.Error(err)
	}
	for _, ttl := range []string{"1s", "10s"} {
		if _, err := consulCall(c, http.MethodPut, "session/create", `{"TTL":"`+ttl+`"}`, 5*time.Second); err != nil {
			t.Errorf("a session of %s: %v", ttl, err)
		}
	}
	c.Stop(t)
	if strings.Contains(c.lastWords(), "panic") {
		t.Error(c.lastWords())
	}
}

func TestConsulClusterReplacesItsLeader(t *testing.T) {
	c := StartConsulCluster(t)
	first := c.Leader(t)
	putConsul(t, first, "1")
	first.Pause(t)
	second := c.Leader(t)
	if second == first {
		t.Fatal("a frozen member leads")
	}
	putConsul(t, second, "2")
	if _, err := consulCall(first, http.MethodGet, "kv/a", "", 50*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frozen member: %v; want a timeout", err)
	}
	first.Resume(t)
	second.Kill(t)
	expectConsul(t, c.Leader(t), "2")
	second.Restart(t)
	expectConsul(t, second, "2")
}
