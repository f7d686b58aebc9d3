// Command accounts is the classic fenced worker: a lock on Redis, balances in
// PostgreSQL. Run it twice, freeze one with SIGSTOP, and nothing is lost.
//
//	accounts --redis redis://127.0.0.1:6379 --postgres postgres://me@127.0.0.1/me --migrate
package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/redis/redislock"
	"github.com/redis/go-redis/v9"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "accounts:", err)
		os.Exit(1)
	}
}

type settings struct {
	redis, postgres   string
	account, amount   int64
	every, think, ttl time.Duration
	migrate           bool
}

func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("accounts", flag.ContinueOnError)
	flags.StringVar(&s.redis, "redis", cmp.Or(os.Getenv("ACCOUNTS_REDIS"), "redis://127.0.0.1:6379"), "URL of the Redis that keeps the locks (ACCOUNTS_REDIS)")
	flags.StringVar(&s.postgres, "postgres", os.Getenv("ACCOUNTS_POSTGRES"), "URL of the PostgreSQL database that keeps the balances (ACCOUNTS_POSTGRES)")
	flags.Int64Var(&s.account, "account", 1, "number of the account")
	flags.Int64Var(&s.amount, "amount", 1, "what is added each time")
	flags.DurationVar(&s.every, "every", time.Second, "time between two additions")
	flags.DurationVar(&s.think, "think", 0, "time between reading a balance and writing it")
	flags.DurationVar(&s.ttl, "ttl", 30*time.Second, "TTL of the lock")
	flags.BoolVar(&s.migrate, "migrate", false, "create the table and the account if they are missing")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if s.postgres == "" {
		return s, errors.New("no database; give --postgres postgres://USER@HOST/DATABASE or set ACCOUNTS_POSTGRES")
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q; there are only flags", flags.Arg(0))
	}
	return s, nil
}

func run(args []string) error {
	s, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	// SIGTERM ends ctx. Everything else follows from that: renewal stops, the
	// transaction is rolled back, Do waits for it and then releases the lock.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))

	options, err := redis.ParseURL(s.redis)
	if err != nil {
		return errors.New("--redis is not a URL like redis://HOST:6379") // the error would show the password
	}
	options.ContextTimeoutEnabled = true
	client := redis.NewClient(options)
	defer client.Close()
	coordinator, err := redislock.New(client)
	if err != nil {
		return err
	}
	defer coordinator.Close()

	db, err := sql.Open("pgx", s.postgres)
	if err != nil {
		return errors.New("--postgres is not a URL like postgres://USER@HOST/DATABASE")
	}
	defer db.Close()
	repository, err := NewRepository(db)
	if err != nil {
		return err
	}
	if s.migrate {
		if err := errors.Join(repository.Migrate(ctx), repository.Open(ctx, s.account, 0)); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}

	host, _ := os.Hostname() // a label for people
	locker, err := piton.New(coordinator,
		piton.WithTTL(s.ttl),
		piton.WithGuards(repository),
		piton.WithOwner(fmt.Sprintf("accounts on %s, process %d", host, os.Getpid())),
		piton.WithLogger(log))
	if err != nil {
		return err
	}
	worker := &Worker{locker, repository, s.account, s.amount, s.every, s.think, log}
	err = worker.Run(ctx)
	log.Info("stopping")
	closing, cancel := context.WithTimeout(context.Background(), s.ttl)
	defer cancel()
	return errors.Join(err, locker.Close(closing))
}
