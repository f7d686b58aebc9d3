package servertest

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// PgBouncer is a running PgBouncer, which hands each transaction to any of a few
// connections to a PostgreSQL server.
type PgBouncer struct{ *Server }

// StartPgBouncer starts a PgBouncer for this test in front of p, in the pool mode
// "transaction" and with two connections for each database.
func StartPgBouncer(tb testing.TB, p *Postgres) *PgBouncer {
	tb.Helper()
	server, err := startPgBouncer(p)
	return own(tb, server, err)
}

// Through is the DSN of a database of the server behind, by way of the pooler.
func (b *PgBouncer) Through(tb testing.TB, dsn string) string {
	tb.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		tb.Fatalf("pgbouncer: %v", err)
	}
	u.Host = b.Addr()
	return u.String()
}

func startPgBouncer(p *Postgres) (*PgBouncer, error) {
	binary, err := find("pgbouncer", "pgbouncer")
	if err != nil {
		return nil, err
	}
	user, err := unprivileged("postgres")
	if err != nil {
		return nil, err
	}
	folder, err := newFolder("pgbouncer")
	if err != nil {
		return nil, err
	}
	if err := giveTo(user, folder); err != nil {
		return nil, err
	}
	config := filepath.Join(folder, "pgbouncer.ini")
	server := &Server{
		kind: "pgbouncer", binary: binary, folder: folder, user: user, probe: probePostgres, ending: syscall.SIGINT,
		args: func(port int) []string {
			text := fmt.Sprintf("[databases]\n* = host=127.0.0.1 port=%d user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\n"+
				"auth_type = any\npool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 500\nignore_startup_parameters = extra_float_digits\n", p.port, port)
			// A file that cannot be written shows as a server that does not start.
			_ = os.WriteFile(config, []byte(text), 0o644)
			return []string{config}
		},
	}
	if err := server.start(freePort); err != nil {
		return nil, err
	}
	return &PgBouncer{server}, nil
}
