package sqlguard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/pitonlock/piton"
)

// ErrNoRow is returned by [Rows] when no row has the key. It is not a refusal.
var ErrNoRow = errors.New("sqlguard: no row has this key")

// Columns names the table that [Rows] guards. Names are written as the database
// stores them, without quotes; letters, digits and underscores.
type Columns struct {
	Table  string // "accounts" or "schema.accounts"
	Key    string // the column that identifies a row; unique
	Token  string // integer of 64 bits, NULL or 0 before the first write; default "last_fencing_token"
	Holder string // text, NULL before the first write; "" when the table has none
}

// Rows guards the rows of a table that carry the newest token themselves, the
// pattern UPDATE ... SET ..., last_fencing_token = t WHERE ... AND
// last_fencing_token < t with its gaps closed. A row is a fence domain of its
// own: use one lock for all writers of a row, and read what a write depends on
// by [Rows.Read], which seals the row.
//
// Without a holder column the number alone decides: should a coordinator that
// lost its memory grant one token twice, both holders are let in.
type Rows struct {
	dialect Dialect
	columns Columns
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// NewRows returns a guard for the rows of c.Table. It sends nothing.
func NewRows(d Dialect, c Columns) (*Rows, error) {
	if _, ok := statements[d]; !ok {
		return nil, fmt.Errorf("sqlguard: unknown dialect %v; want sqlguard.Postgres, sqlguard.MySQL or sqlguard.SQLite", d)
	}
	if c.Token == "" {
		c.Token = "last_fencing_token"
	}
	r := &Rows{dialect: d}
	var err error
	schema, table, qualified := strings.Cut(c.Table, ".")
	if !qualified {
		schema, table = "", schema
	} else if schema, err = quote(d, "schema", schema); err != nil {
		return nil, err
	}
	if r.columns.Table, err = quote(d, "table", table); err != nil {
		return nil, err
	}
	if qualified {
		r.columns.Table = schema + "." + r.columns.Table
	}
	if r.columns.Key, err = quote(d, "key column", c.Key); err != nil {
		return nil, err
	}
	if r.columns.Token, err = quote(d, "token column", c.Token); err != nil {
		return nil, err
	}
	if c.Holder != "" {
		if r.columns.Holder, err = quote(d, "holder column", c.Holder); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func quote(d Dialect, what, name string) (string, error) {
	if !identifier.MatchString(name) {
		return "", fmt.Errorf("sqlguard: the %s %q is not a plain SQL name; want a letter or underscore, then up to 62 letters, digits or underscores", what, name)
	}
	if d == MySQL {
		return "`" + name + "`", nil
	}
	return `"` + name + `"`, nil
}

// Read seals the row under f and reads columns of it into dest, for a write that
// depends on what was read: from then on, and once tx has committed, no older
// holder can change the row. [ErrNoRow] when there is none, a *[piton.StaleError]
// when the row has a newer token or the same of another holder.
func (r *Rows) Read(ctx context.Context, tx *sql.Tx, f piton.Fence, key any, columns []string, dest ...any) error {
	if len(columns) == 0 || len(columns) != len(dest) {
		return fmt.Errorf("sqlguard: read: %d columns for %d destinations", len(columns), len(dest))
	}
	quoted := make([]string, len(columns))
	for i, c := range columns {
		var err error
		if quoted[i], err = quote(r.dialect, "column", c); err != nil {
			return err
		}
	}
	if err := r.Update(ctx, tx, f, key, ""); err != nil {
		return err
	}
	// The row is locked by this transaction now, so reading it is still the same step.
	query := "SELECT " + strings.Join(quoted, ", ") + " FROM " + r.columns.Table + " WHERE " + r.columns.Key + " = " + r.place(1)
	if r.dialect == MySQL {
		query += " FOR UPDATE" // under REPEATABLE READ a plain SELECT may show an older state
	}
	err := tx.QueryRowContext(ctx, query, key).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%w: %s in %s", ErrNoRow, r.columns.Key, r.columns.Table)
	}
	return err
}

// Update changes the row with the key in one step with the check of f, and
// records f in the row. set is the list of assignments in SQL, such as
// "balance = balance + $1", with the placeholders of the database for args; ""
// only seals. It must not come from outside of the program.
//
// The row's token may be older than f (it is raised) or f itself (a holder may
// write as often as it likes). Otherwise the result is a *[piton.StaleError]; a
// row that does not exist is [ErrNoRow]. How many rows the driver says were
// changed plays no part, so MySQL's two ways of counting give the same result.
func (r *Rows) Update(ctx context.Context, tx *sql.Tx, f piton.Fence, key any, set string, args ...any) error {
	if tx == nil {
		return errors.New("sqlguard: update: the transaction is nil")
	}
	if err := validate(f); err != nil {
		return err
	}
	if r.dialect == MySQL {
		// InnoDB: lock, compare, write. The lock makes the three one step.
		if err := r.compare(ctx, tx, f, key, " FOR UPDATE"); err != nil {
			return err
		}
		query, all := r.statement(f, key, set, args)
		if _, err := tx.ExecContext(ctx, query, all...); err != nil {
			return fmt.Errorf("sqlguard: update of %s under token %d: %w", r.columns.Table, f.Token, err)
		}
		return nil
	}
	query, all := r.statement(f, key, set, args)
	var written int64
	err := tx.QueryRowContext(ctx, query, all...).Scan(&written)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("sqlguard: update of %s under token %d: %w", r.columns.Table, f.Token, err)
	}
	if err := r.compare(ctx, tx, f, key, ""); err != nil {
		return err
	}
	return fmt.Errorf("%w: it appeared in %s only now", ErrNoRow, r.columns.Table)
}

// statement builds the UPDATE with its arguments: the caller's, f, the key, f again.
func (r *Rows) statement(f piton.Fence, key any, set string, args []any) (string, []any) {
	all := append([]any(nil), args...)
	next := func(v any) string {
		all = append(all, v)
		return r.place(len(all))
	}
	assignments := r.columns.Token + " = " + next(int64(f.Token))
	if set != "" {
		assignments = set + ", " + assignments
	}
	if r.columns.Holder != "" {
		assignments += ", " + r.columns.Holder + " = " + next(f.Holder)
	}
	query := "UPDATE " + r.columns.Table + " SET " + assignments + " WHERE " + r.columns.Key + " = " + next(key)
	if r.dialect == MySQL {
		return query, all
	}
	token := "COALESCE(" + r.columns.Token + ", 0)"
	if r.columns.Holder == "" {
		query += " AND " + token + " <= " + next(int64(f.Token))
	} else {
		collation := map[Dialect]string{Postgres: `"C"`, SQLite: "BINARY"}[r.dialect]
		query += " AND (" + token + " < " + next(int64(f.Token)) + " OR " + token + " = " + next(int64(f.Token)) +
			" AND CAST(" + r.columns.Holder + " AS text) COLLATE " + collation + " = " + next(f.Holder) + ")"
	}
	return query + " RETURNING " + r.columns.Token, all
}

// compare reads what the row has recorded: ErrNoRow, *StaleError, or nil when f
// may write.
func (r *Rows) compare(ctx context.Context, tx *sql.Tx, f piton.Fence, key any, locking string) error {
	holder := "''"
	if r.columns.Holder != "" {
		holder = "COALESCE(" + r.columns.Holder + ", '')"
	}
	query := "SELECT COALESCE(" + r.columns.Token + ", 0), " + holder + " FROM " + r.columns.Table +
		" WHERE " + r.columns.Key + " = " + r.place(1) + locking
	mark := piton.Fence{Lock: f.Lock}
	err := tx.QueryRowContext(ctx, query, key).Scan(&mark.Token, &mark.Holder)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: %s in %s", ErrNoRow, r.columns.Key, r.columns.Table)
	case err != nil:
		return fmt.Errorf("sqlguard: reading the token in %s: %w", r.columns.Table, err)
	case mark.Token > f.Token,
		mark.Token == f.Token && r.columns.Holder != "" && mark.Holder != f.Holder:
		return &piton.StaleError{Fence: f, Mark: mark}
	}
	return nil
}

func (r *Rows) place(n int) string {
	if r.dialect == Postgres {
		return "$" + strconv.Itoa(n)
	}
	return "?"
}
