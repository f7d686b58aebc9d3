//go:build linux

package lab

import (
	"context"
	"fmt"
	"strings"

	"github.com/pitonlock/piton/cmd/piton/internal/backend"
)

// server is where the usual locks of one laboratory live, beside Piton's own.
type server interface {
	prepare(ctx context.Context) error
	lock(name string) usual
	// forget deletes what the server knows of the usual lock name.
	forget(ctx context.Context, name string) error
	// clean removes what prepare made.
	clean(ctx context.Context) error
	close() error
}

// openServer opens the coordinator at raw for the usual locks. That Piton can
// use it too has been seen by backend.OpenCoordinator before.
func openServer(ctx context.Context, raw, prefix string) (server, error) {
	scheme, _, _ := strings.Cut(strings.ToLower(raw), ":")
	switch system, _, _ := strings.Cut(scheme, "+"); system {
	case "sqlite", "postgres", "postgresql", "mysql", "mariadb":
		db, dialect, closeDB, err := backend.OpenStorage(ctx, raw)
		if err != nil {
			return nil, err
		}
		return newSQLServer(db, dialect, closeDB, prefix), nil
	case "redis", "rediss":
		client, err := backend.OpenRedis(raw)
		if err != nil {
			return nil, err
		}
		return redisServer{client}, nil
	case "etcd", "etcds":
		client, err := backend.OpenEtcd(raw)
		if err != nil {
			return nil, err
		}
		return etcdServer{client}, nil
	}
	return nil, &backend.URLError{Problem: fmt.Sprintf("coordinator %s is not for proofs: they need one that several processes can use; write sqlite:///path, redis://host:6379, etcd://host:2379 or another that piton run --help names", backend.Redact(raw))}
}
