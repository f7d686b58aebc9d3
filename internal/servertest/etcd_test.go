package servertest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pitonlock/piton/internal/process"
)

// etcdCall is one call of the member's JSON interface.
func etcdCall(e *Etcd, method string, request map[string]string, within time.Duration) (answer struct {
	Kvs []struct{ Value string }
}, err error,
) {
	for field, text := range request {
		request[field] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	body, err := json.Marshal(request)
	if err != nil {
		return answer, err
	}
	client := http.Client{Timeout: within, Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Post(e.Endpoint()+"/v3/kv/"+method, "application/json", strings.NewReader(string(body)))
	if err != nil {
		return answer, err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return answer, errors.New(reply.Status)
	}
	return answer, json.NewDecoder(reply.Body).Decode(&answer)
}

func put(t *testing.T, e *Etcd, key, value string) {
	t.Helper()
	if _, err := etcdCall(e, "put", map[string]string{"key": key, "value": value}, 5*time.Second); err != nil {
		t.Errorf("put %s: %v", key, err)
	}
}

func expectEtcd(t *testing.T, e *Etcd, key, want string) {
	t.Helper()
	answer, err := etcdCall(e, "range", map[string]string{"key": key}, 5*time.Second)
	got := fmt.Sprint(answer.Kvs)
	if len(answer.Kvs) == 1 {
		value, _ := base64.StdEncoding.DecodeString(answer.Kvs[0].Value)
		got = string(value)
	}
	if err != nil || got != want {
		t.Errorf("%s is %q, %v; want %q", key, got, err, want)
	}
}

func TestEtcdRestartKeepsPortAndData(t *testing.T) {
	e := StartEtcd(t)
	addr, pid := e.Addr(), e.Pid()
	if e.URL() != "etcd://"+addr || e.Endpoint() != "http://"+addr {
		t.Errorf("URL is %s, endpoint %s; want those of %s", e.URL(), e.Endpoint(), addr)
	}
	put(t, e, "a", "1")
	e.Kill(t)
	if process.Alive(pid) {
		t.Errorf("process %d is alive after Kill", pid)
	}
	e.Restart(t)
	if e.Addr() != addr || e.Pid() == pid {
		t.Errorf("restarted as process %d on %s; want another than %d on %s", e.Pid(), e.Addr(), pid, addr)
	}
	expectEtcd(t, e, "a", "1")
	if _, err := os.Stat(e.Data() + "/member"); err != nil {
		t.Error(err)
	}
	if a, b := SharedEtcd(t), SharedEtcd(t); a != b {
		t.Errorf("two shared servers, on %s and %s; want one", a.Addr(), b.Addr())
	}
}

func TestEtcdClusterReplacesItsLeader(t *testing.T) {
	c := StartEtcdCluster(t)
	if len(c.Endpoints()) != 3 {
		t.Errorf("endpoints %v; want three", c.Endpoints())
	}
	first := c.Leader(t)
	put(t, first, "a", "1")
	first.Pause(t)
	second := c.Leader(t)
	if second == first {
		t.Fatal("a frozen member leads")
	}
	put(t, second, "a", "2")
	if _, err := etcdCall(first, "range", map[string]string{"key": "a"}, 50*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frozen member: %v; want a timeout", err)
	}
	first.Resume(t)
	second.Kill(t)
	expectEtcd(t, c.Leader(t), "a", "2")
	second.Restart(t)
	expectEtcd(t, second, "a", "2")
}
