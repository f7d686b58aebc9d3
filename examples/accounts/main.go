// Command accounts is the classic fenced worker: a lock on Redis, balances in
// PostgreSQL. Run it twice, freeze one with SIGSTOP, and nothing is lost.
//
//	accounts --redis redis://127.0.0.1:6379 --postgres postgres://me@127.0.0.1/me --migrate
//
// Each flag is also an environment variable, --every is ACCOUNTS_EVERY. URLs with
// a password belong there, since everybody can see a command line.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/redis/redislock"
	"github.com/redis/go-redis/v9"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr, Add)) }

// run returns the exit code: 0 after SIGTERM, SIGINT or --help, 2 when the command
// line is wrong, 1 when anything else is.
func run(args []string, out io.Writer, newWork func(amount int64, think time.Duration) Work) int {
	s, err := parse(args, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(out, "accounts:", err)
		return 2
	}
	// The signal ends ctx. Everything else follows from that: renewal stops, the
	// transaction is rolled back, Do waits for it and then releases the lock.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal kills

	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if err := serve(ctx, s, newWork(s.amount, s.think), log); err != nil {
		fmt.Fprintln(out, "accounts:", err)
		return 1
	}
	return 0
}

type settings struct {
	redis, postgres   string
	account, amount   int64
	every, think, ttl time.Duration
	migrate           bool
}

func parse(args []string, out io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("accounts", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are returned
	flags.StringVar(&s.redis, "redis", "redis://127.0.0.1:6379", "`URL` of the Redis that keeps the locks")
	flags.StringVar(&s.postgres, "postgres", "", "`URL` of the PostgreSQL database that keeps the balances")
	flags.Int64Var(&s.account, "account", 1, "number of the account")
	flags.Int64Var(&s.amount, "amount", 1, "what is added each time; negative to withdraw")
	flags.DurationVar(&s.every, "every", time.Second, "time between two additions")
	flags.DurationVar(&s.think, "think", 0, "time between reading a balance and writing it")
	flags.DurationVar(&s.ttl, "ttl", 30*time.Second, "how long the lock outlives a worker that died")
	flags.BoolVar(&s.migrate, "migrate", false, "first create the table and the account if they are missing")

	// A variable is set like a flag and is no default, which --help would show.
	var wrong error
	flags.VisitAll(func(f *flag.Flag) {
		name := "ACCOUNTS_" + strings.ToUpper(f.Name)
		if value := os.Getenv(name); value != "" && flags.Set(f.Name, value) != nil {
			wrong = errors.Join(wrong, fmt.Errorf("the variable %s is not a value of --%s", name, f.Name))
		}
	})
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(out, "accounts adds to an account under a fenced lock. Each flag is also a variable: --every is ACCOUNTS_EVERY.")
		flags.SetOutput(out)
		flags.PrintDefaults()
		return s, err
	case err != nil || wrong != nil:
		return s, errors.Join(err, wrong)
	case flags.NArg() > 0:
		return s, errors.New("there is an argument without a flag; see --help") // not shown: it may be a URL
	case s.postgres == "":
		return s, errors.New("no database; give --postgres postgres://USER@HOST/DATABASE or set ACCOUNTS_POSTGRES")
	case s.every <= 0 || s.think < 0:
		return s, fmt.Errorf("--every is %v and --think is %v; want more than 0, and 0 or more", s.every, s.think)
	}
	return s, nil
}

// serve connects everything and runs the worker until ctx ends.
func serve(ctx context.Context, s settings, work Work, log *slog.Logger) error {
	options, err := redis.ParseURL(s.redis)
	if err != nil {
		return errors.New("--redis is not a URL like redis://HOST:6379") // err would show the password
	}
	options.ContextTimeoutEnabled = true // calls end with their context
	client := redis.NewClient(options)
	defer client.Close()
	coordinator, err := redislock.New(client)
	if err != nil {
		return err
	}
	defer coordinator.Close()

	db, err := openPostgres(s.postgres)
	if err != nil {
		return err
	}
	defer db.Close()
	repository, err := NewRepository(db)
	if err != nil {
		return err
	}
	err = prepare(ctx, s, client, db, repository)
	switch {
	case ctx.Err() != nil:
		return nil // stopped before it began
	case err != nil:
		return err
	}

	host, _ := os.Hostname() // a label for people
	locker, err := piton.New(coordinator,
		piton.WithTTL(s.ttl),
		piton.WithGuards(repository), // Acquire seals the row
		piton.WithOwner(fmt.Sprintf("accounts on %s, process %d", host, os.Getpid())),
		piton.WithLogger(log))
	if err != nil {
		return err
	}
	worker := &Worker{locker, repository, s.account, s.every, work, log}
	context.AfterFunc(ctx, func() { log.Info("stopping", "because", context.Cause(ctx)) })
	err = worker.Run(ctx)

	// What Do left to the background, such as giving back a lock whose acquisition
	// was cancelled, needs the connections, which are closed after this.
	closing, cancel := context.WithTimeout(context.Background(), s.ttl)
	defer cancel()
	return errors.Join(err, locker.Close(closing))
}

// prepare finds out at the start what would otherwise fail in every round.
func prepare(ctx context.Context, s settings, client *redis.Client, db *sql.DB, repository *Repository) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	if s.migrate {
		if err := repository.Migrate(ctx, s.account); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	if _, err := db.ExecContext(ctx, "SELECT FROM account_balances LIMIT 0"); err != nil {
		return fmt.Errorf("postgres: the table of balances cannot be read (--migrate creates it): %w", err)
	}
	return nil
}

func openPostgres(url string) (*sql.DB, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errors.New("--postgres is not a URL like postgres://USER@HOST/DATABASE") // err may show the password
	}
	// When a context ends, the server is asked to end the statement, and answers.
	// By default pgx drops the connection instead, and the lock would be released
	// while the server may still be busy with what it will roll back.
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: answerWithin}
	}
	return stdlib.OpenDB(*config), nil
}
