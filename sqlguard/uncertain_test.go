package sqlguard_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"

	"github.com/pitonlock/piton"
	"github.com/pitonlock/piton/sqlguard"
)

type stateError string

func (e stateError) Error() string    { return "SQLSTATE " + string(e) }
func (e stateError) SQLState() string { return string(e) }

// uncertainConn admits a transaction and answers its COMMIT with a SQLSTATE that no
// server of the tests gives when asked to; poolers and other databases that speak
// PostgreSQL's protocol do.
type uncertainConn struct{ state string }

func (c *uncertainConn) Connect(context.Context) (driver.Conn, error) { return c, nil }
func (c *uncertainConn) Driver() driver.Driver                        { return nil }
func (c *uncertainConn) Open(string) (driver.Conn, error)             { return c, nil }
func (c *uncertainConn) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("no") }
func (c *uncertainConn) Close() error                                 { return nil }
func (c *uncertainConn) Begin() (driver.Tx, error)                    { return c, nil }
func (c *uncertainConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return c, nil
}
func (c *uncertainConn) Ping(context.Context) error { return nil }
func (c *uncertainConn) Commit() error              { return stateError(c.state) }
func (c *uncertainConn) Rollback() error            { return nil }
func (c *uncertainConn) QueryContext(_ context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	return &oneMark{}, nil
}

type oneMark struct{ done bool }

func (r *oneMark) Columns() []string { return []string{"token", "holder", "txid"} }
func (r *oneMark) Close() error      { return nil }
func (r *oneMark) Next(dest []driver.Value) error {
	if r.done {
		return io.EOF
	}
	r.done = true
	dest[0], dest[1], dest[2] = int64(1), "h", int64(7)
	return nil
}

type uncertainServer struct{ *uncertainConn }

func (c uncertainServer) Driver() driver.Driver { return c.uncertainConn }

// SQLSTATE 40003 is "statement completion unknown", 08007 "transaction resolution unknown".
func TestACommitInDoubtIsUnknown(t *testing.T) {
	for _, state := range []string{"40003", "08007"} {
		db := sql.OpenDB(uncertainServer{&uncertainConn{state: state}})
		g, err := sqlguard.New(db, sqlguard.Postgres)
		if err != nil {
			t.Fatal(err)
		}
		err = g.Tx(t.Context(), piton.Fence{Lock: "x", Token: 1, Holder: "h"}, func(context.Context, *sql.Tx) error { return nil })
		if !errors.Is(err, piton.ErrUnknown) {
			t.Errorf("COMMIT answered %s; Tx says: %v", state, err)
		}
	}
}
