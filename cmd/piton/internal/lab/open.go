//go:build linux

package lab

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/pitonlock/piton/cmd/piton/internal/backend"
	"github.com/pitonlock/piton/sqlguard"
	"github.com/redis/go-redis/v9"
)

// openStorage opens the database at raw for the laboratory.
func openStorage(ctx context.Context, raw, prefix string) (*storage, func() error, error) {
	db, dialect, closeDB, err := backend.OpenStorage(ctx, raw)
	if err != nil {
		return nil, nil, err
	}
	guard, err := sqlguard.New(db, dialect)
	if err != nil {
		_ = closeDB()
		return nil, nil, err
	}
	return newStorage(db, guard, dialect, prefix), closeDB, nil
}

// openServer opens the coordinator at raw for the usual locks. That Piton can
// use it too has been seen by backend.OpenCoordinator before.
func openServer(ctx context.Context, raw, prefix string) (server, error) {
	scheme, _, _ := strings.Cut(strings.ToLower(raw), ":")
	switch scheme {
	case "sqlite":
		db, _, _, err := backend.OpenStorage(ctx, raw)
		if err != nil {
			return nil, err
		}
		return newSQLiteServer(db, prefix), nil
	case "redis", "rediss":
		opts, err := redis.ParseURL(raw)
		if err != nil {
			return nil, &backend.URLError{Problem: fmt.Sprintf("coordinator %s is not a valid URL; write redis://USER:PASSWORD@HOST:PORT/DB", backend.Redact(raw))}
		}
		return &redisServer{redis.NewClient(opts)}, nil
	}
	return nil, &backend.URLError{Problem: fmt.Sprintf("coordinator %s is not for proofs: they need one that several processes can use and that has the usual lock to compare with; write sqlite:///path, redis://host:6379 or rediss://host:6379", backend.Redact(raw))}
}

func fileURL(path string) string { return (&url.URL{Scheme: "sqlite", Path: path}).String() }
