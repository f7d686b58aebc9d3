package consullock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// errEnded is the answer about a session that is not there.
var errEnded = errors.New("the session has ended")

// sessionInfo is a session that is there; the zero value is none.
type sessionInfo struct {
	id    string
	ttl   time.Duration
	index uint64 // of its creation, 0 where nobody asked
}

// begin makes a session. The client's own method cannot ask for a lock-delay of 0,
// which it leaves to the server, whose default is 15 s. A session with health checks
// would end with them, whatever of its time is left; Checks is what NodeChecks was
// called before Consul 1.7.
func (c *Coordinator) begin(ctx context.Context, name string, ttl time.Duration) (sessionInfo, error) {
	var answer struct{ ID string }
	_, err := c.client.Raw().Write("/v1/session/create", map[string]any{
		"Name": name, "TTL": ttl.String(), "Behavior": api.SessionBehaviorDelete, "LockDelay": "0s",
		"NodeChecks": []string{}, "Checks": []string{},
	}, &answer, write(ctx))
	switch {
	case err != nil && strings.Contains(err.Error(), "Session TTL"):
		return sessionInfo{}, fmt.Errorf("consul does not take a TTL of %v; the shortest is its setting session_ttl_min, 10 s by default, the longest 24 h: %w", ttl, err)
	case err != nil:
		return sessionInfo{}, err
	case answer.ID == "":
		return sessionInfo{}, errors.New("consul made a session without an id")
	}
	return sessionInfo{id: answer.ID, ttl: ttl}, nil
}

// renewSession starts the time of a session anew. errEnded may be the answer of a
// server that is not up to date.
func (c *Coordinator) renewSession(ctx context.Context, id string) (sessionInfo, error) {
	entry, _, err := c.client.Session().Renew(id, write(ctx))
	switch {
	case err != nil:
		return sessionInfo{}, err
	case entry == nil:
		return sessionInfo{}, errEnded
	}
	return infoOf(entry)
}

// look up a session's index.
func (c *Coordinator) lookUp(ctx context.Context, id string) (sessionInfo, error) {
	entry, _, err := c.client.Session().Info(id, consistent(ctx))
	switch {
	case err != nil:
		return sessionInfo{}, err
	case entry == nil:
		return sessionInfo{}, errEnded
	}
	return infoOf(entry)
}

func infoOf(entry *api.SessionEntry) (sessionInfo, error) {
	ttl, err := time.ParseDuration(entry.TTL)
	if err != nil {
		return sessionInfo{}, fmt.Errorf("session %s has the TTL %q: %w", entry.ID, entry.TTL, err)
	}
	return sessionInfo{entry.ID, ttl, entry.CreateIndex}, nil
}

// destroy ends a session and with it the key that it holds. What is still under
// way and wants to lock one will fail. A session that has ended is none.
func (c *Coordinator) destroy(ctx context.Context, id string) error {
	if id == "" {
		return nil
	}
	_, err := c.client.Session().Destroy(id, write(ctx))
	return err
}

// destroyAll ends all sessions of an acquisition.
func (c *Coordinator) destroyAll(ctx context.Context, name string) error {
	all, _, err := c.client.Session().List(consistent(ctx))
	if err != nil {
		return err
	}
	for _, entry := range all {
		if entry.Name != name {
			continue
		}
		if err := c.destroy(ctx, entry.ID); err != nil {
			return err
		}
	}
	return nil
}

// consistent is a read that the leader answers after most servers have confirmed
// that it leads. Without it one that was frozen and replaced might answer.
func consistent(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

func write(ctx context.Context) *api.WriteOptions { return new(api.WriteOptions).WithContext(ctx) }
