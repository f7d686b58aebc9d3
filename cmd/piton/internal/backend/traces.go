package backend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/pitonlock/piton/redis/redislock"
	"github.com/redis/go-redis/v9"
)

// Traces are what a coordinator keeps for locks, beside its own view of them: for
// programs that make locks in order to try it, and then remove every trace. Prefixes
// are of letters, digits, dashes, slashes and underscores.
type Traces interface {
	// Kept counts what is kept for ever for free locks whose names begin with prefix.
	Kept(ctx context.Context, prefix string) (int, error)
	// Sweep removes whatever is kept for locks whose names begin with prefix, also
	// when they are held.
	Sweep(ctx context.Context, prefix string) error
}

// noTraces is a coordinator that ends with this process.
type noTraces struct{}

func (noTraces) Kept(context.Context, string) (int, error) { return 0, nil }
func (noTraces) Sweep(context.Context, string) error       { return nil }

type redisTraces struct{ client redis.UniversalClient }

func (t redisTraces) Kept(ctx context.Context, prefix string) (int, error) {
	kept := 0
	err := t.each(ctx, prefix, func(r redis.Cmdable, key string) error {
		ttl, err := r.PTTL(ctx, key).Result()
		if ttl == -1 || ttl > redislock.Idle {
			kept++
		}
		return err
	})
	return kept, err
}

func (t redisTraces) Sweep(ctx context.Context, prefix string) error {
	return t.each(ctx, prefix, func(r redis.Cmdable, key string) error { return r.Del(ctx, key).Err() })
}

// each calls f, one at a time, for the keys of all locks that begin with prefix.
func (t redisTraces) each(ctx context.Context, prefix string, f func(r redis.Cmdable, key string) error) error {
	turn := make(chan struct{}, 1)
	scan := func(ctx context.Context, r redis.Cmdable) error {
		keys := r.Scan(ctx, 0, "piton:{"+prefix+"*", 1000).Iterator()
		for keys.Next(ctx) {
			turn <- struct{}{}
			err := f(r, keys.Val())
			<-turn
			if err != nil {
				return err
			}
		}
		return keys.Err()
	}
	if cluster, ok := t.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, r *redis.Client) error { return scan(ctx, r) })
	}
	return scan(ctx, t.client)
}

// sqlTraces are rows. Free ones are not kept for ever: sqllock collects them ten
// minutes after their release, sqlitelock keeps at most 10 000.
type sqlTraces struct {
	db     *sql.DB
	column string // of the lock, quoted
	floor  bool   // a deleted row raises the floor of all tokens, as in SQLite
}

func (sqlTraces) Kept(context.Context, string) (int, error) { return 0, nil }

// Sweep leaves the floor as it was: names that are never used again need none, and
// a law has asked for tokens beside which nothing would be left for the others.
func (t sqlTraces) Sweep(ctx context.Context, prefix string) error {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var floor int64
	if t.floor {
		if _, err := tx.ExecContext(ctx, "UPDATE piton_floor SET token = token"); err != nil { // nobody else changes it meanwhile
			return err
		}
		if err := tx.QueryRowContext(ctx, "SELECT token FROM piton_floor").Scan(&floor); err != nil {
			return err
		}
	}
	// Of what a prefix may have, LIKE takes only underscores for more than themselves.
	like := strings.ReplaceAll(prefix, "_", "!_") + "%"
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("DELETE FROM piton_locks WHERE %s LIKE '%s' ESCAPE '!'", t.column, like)); err != nil {
		return err
	}
	if t.floor {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE piton_floor SET token = %d", floor)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// fileTraces opens the file of the embedded coordinator for one sweep.
type fileTraces struct{ raw string }

func (fileTraces) Kept(context.Context, string) (int, error) { return 0, nil }

func (t fileTraces) Sweep(ctx context.Context, prefix string) (err error) {
	db, _, done, err := openSQL(ctx, "coordinator", t.raw)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	return sqlTraces{db, "lock", true}.Sweep(ctx, prefix)
}
