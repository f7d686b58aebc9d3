//go:build linux

package lab

import (
	"context"
	"net/url"

	"github.com/pitonlock/piton/cmd/piton/internal/backend"
	"github.com/pitonlock/piton/sqlguard"
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

func fileURL(path string) string { return (&url.URL{Scheme: "sqlite", Path: path}).String() }
