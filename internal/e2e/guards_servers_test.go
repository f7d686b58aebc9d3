package e2e

import (
	"strings"
	"testing"

	"github.com/pitonlock/piton/internal/servertest"
)

func postgresDSN(tb testing.TB) string { return servertest.SharedPostgres(tb).NewDatabase(tb).DSN() }

func mariadbDSN(tb testing.TB) string { return servertest.SharedMariaDB(tb).NewDatabase(tb).DSN() }

// withUser is dsn for another user, who has no password.
func withUser(tb testing.TB, dsn, user string) string {
	tb.Helper()
	before, after, ok := strings.Cut(dsn, "@")
	if !ok {
		tb.Fatal("the data source name has no user")
	}
	scheme, _, ok := strings.Cut(before, "://")
	if !ok {
		return user + "@" + after
	}
	return scheme + "://" + user + "@" + after
}
