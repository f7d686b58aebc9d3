package main

import (
	"fmt"
	"os"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/sqlguard"
)

type admitCmd struct {
	Dialect string `arg:"" enum:"postgres,mysql,sqlite" help:"postgres, mysql (MariaDB too) or sqlite."`
	Fence   string `env:"PITON_FENCE" placeholder:"FENCE" help:"The fence. Default: that of the piton run around this command."`
}

func (admitCmd) Help() string {
	return `For scripts under piton run: the SQL that lets a transaction go on only while the storage has recorded
no newer holder. It has to come first in the transaction, and the client has to end at an error:

    piton run --guard postgres://db/app invoices -- sh -c '
      { piton admit postgres; cat invoices.sql; } | psql -1 -v ON_ERROR_STOP=1 postgres://db/app'

    { echo "BEGIN;"; piton admit mysql; cat invoices.sql; echo "COMMIT;"; } | mariadb app
    { echo "BEGIN IMMEDIATE;"; piton admit sqlite; cat invoices.sql; echo "COMMIT;"; } | sqlite3 -bail app.db

The database has to be a --guard of the piton run: that seals it. The reads that a write depends on
belong into the same transaction, or after the piton run began.`
}

var dialects = map[string]sqlguard.Dialect{"postgres": sqlguard.Postgres, "mysql": sqlguard.MySQL, "sqlite": sqlguard.SQLite}

func (c *admitCmd) Run() error {
	if c.Fence == "" {
		return &exitError{exitUsage, "there is no fence: PITON_FENCE is not set; call it in a command of piton run, or give --fence"}
	}
	f, err := piton.ParseFence(c.Fence)
	if err != nil {
		return &exitError{exitUsage, err.Error()}
	}
	script, err := sqlguard.AdmitScript(dialects[c.Dialect], f)
	if err != nil {
		return &exitError{exitUsage, err.Error()}
	}
	if _, err := fmt.Fprint(os.Stdout, script); err != nil {
		return err
	}
	return nil
}
