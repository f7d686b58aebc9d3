package backend

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/pitonlock/piton/redis/redislock"
	"github.com/redis/go-redis/v9"
)

// redisForms say how a URL of each kind is written.
var redisForms = map[string]string{
	"":         "redis://USER:PASSWORD@HOST:6379/DB",
	"sentinel": "redis+sentinel://USER:PASSWORD@SENTINEL:26379,SENTINEL:26379/NAME, where NAME is what the Sentinels call the primary",
	"cluster":  "redis+cluster://USER:PASSWORD@HOST:6379,HOST:6379",
}

func (b *Backend) openRedis(ctx context.Context, raw string) error {
	client, err := OpenRedis(raw)
	if err != nil {
		return err
	}
	c, err := redislock.New(client)
	if err != nil {
		return errors.Join(err, client.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, ReachTimeout)
	defer cancel()
	if err := serves(ctx, client, redisKind(raw), b.Redacted); err != nil {
		_ = client.Close()
		return err
	}
	b.Warnings, _ = c.Check(ctx) // a user that may not ask has no use for them
	b.Traces = redisTraces{client}
	b.Coordinator, b.Close = c, func() error { return errors.Join(c.Close(), client.Close()) }
	return nil
}

// OpenRedis returns a client of the server, Sentinels or Cluster at raw. Whether
// anybody answers there is not looked at. Its errors are [*URLError].
func OpenRedis(raw string) (redis.UniversalClient, error) {
	redis.SetLogger(silent{}) // stderr belongs to the command
	kind := redisKind(raw)
	client, err := redisClient(kind, raw)
	var mistake *URLError
	if err != nil && !errors.As(err, &mistake) {
		err = &URLError{fmt.Sprintf("coordinator %s: %s; write %s", Redact(raw), reason(err), redisForms[kind])}
	}
	return client, err
}

func redisKind(raw string) string {
	scheme, _, _ := strings.Cut(strings.ToLower(raw), "://")
	_, kind, _ := strings.Cut(scheme, "+")
	return kind
}

// A renewal is bounded by its context; a socket or a dial that ignores it would use
// up the lease. A client of a Cluster asks any node what it needs to know, for the
// whole of its read timeout when that node is frozen, before it asks the next.
const (
	redisDial   = 2 * time.Second
	clusterRead = time.Second
)

func redisClient(kind, raw string) (redis.UniversalClient, error) {
	switch kind {
	case "sentinel":
		u, err := severalRedis(raw, "26379")
		if err != nil {
			return nil, err
		}
		name, database, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
		if name == "" {
			return nil, errors.New("the name of the primary is missing")
		}
		u.Path = "/" + database
		u.RawQuery += "&master_name=" + url.QueryEscape(name)
		opts, err := redis.ParseFailoverURL(u.String())
		if err != nil {
			return nil, err
		}
		opts.ContextTimeoutEnabled = true
		if opts.DialTimeout == 0 {
			opts.DialTimeout = redisDial
		}
		return redis.NewFailoverClient(opts), nil
	case "cluster":
		u, err := severalRedis(raw, "6379")
		if err != nil {
			return nil, err
		}
		if u.Path != "" && u.Path != "/" && u.Path != "/0" {
			return nil, fmt.Errorf("a Cluster has no database %s", strings.TrimPrefix(u.Path, "/"))
		}
		u.Path = ""
		opts, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, err
		}
		opts.ContextTimeoutEnabled = true
		if opts.DialTimeout == 0 {
			opts.DialTimeout = redisDial
		}
		if opts.ReadTimeout == 0 {
			opts.ReadTimeout = clusterRead
		}
		return redis.NewClusterClient(opts), nil
	}
	opts, err := redis.ParseURL(raw)
	if err != nil {
		return nil, err
	}
	opts.ContextTimeoutEnabled = true
	if opts.DialTimeout == 0 {
		opts.DialTimeout = redisDial
	}
	return redis.NewClient(opts), nil
}

// severalRedis writes a URL of several hosts as go-redis has it: the others are
// options of the first.
func severalRedis(raw, defaultPort string) (*url.URL, error) {
	u, hosts, err := splitHosts("coordinator", raw, defaultPort)
	if err != nil {
		return nil, err
	}
	u.Scheme, _, _ = strings.Cut(u.Scheme, "+")
	u.Host = hosts[0]
	query := u.Query()
	for _, host := range hosts[1:] {
		query.Add("addr", host)
	}
	u.RawQuery = query.Encode()
	return u, nil
}

// serves makes sure that the server answers, is of the kind that the URL says, and
// takes writes.
func serves(ctx context.Context, client redis.UniversalClient, kind, redacted string) error {
	err := client.Ping(ctx).Err()
	if err != nil {
		switch text := err.Error(); {
		case strings.Contains(text, "cluster support disabled"):
			return &URLError{fmt.Sprintf("coordinator %s is a single server, not a Cluster; write redis://HOST:PORT", redacted)}
		case kind == "sentinel" && ctx.Err() == nil:
			err = fmt.Errorf("%w (a Sentinel that answers does not know a primary of that name)", err)
		}
		return unreachable("coordinator", redacted, err)
	}
	info, err := client.Info(ctx, "server", "replication", "cluster").Result()
	if err != nil {
		info, _ = client.Info(ctx).Result() // before Redis 7 it takes one section
	}
	has := func(line string) bool { return strings.Contains(info, line+"\r\n") }
	switch {
	case has("redis_mode:sentinel"):
		return &URLError{fmt.Sprintf("coordinator %s is a Sentinel; write %s", redacted, redisForms["sentinel"])}
	case kind == "" && (has("redis_mode:cluster") || has("cluster_enabled:1")):
		return &URLError{fmt.Sprintf("coordinator %s is a node of a Cluster; write %s", redacted, redisForms["cluster"])}
	case kind == "" && has("role:slave"):
		return &URLError{fmt.Sprintf("coordinator %s is a replica, which takes no writes; name its primary, or its Sentinels: %s", redacted, redisForms["sentinel"])}
	}
	return nil
}

// silent drops what go-redis would log on stderr; its errors come back as errors.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
