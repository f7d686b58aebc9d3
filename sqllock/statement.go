package sqllock

import (
	"context"
	"database/sql"
	"strings"
)

// statement is one statement with its placeholders as the driver wants them.
type statement struct {
	text  string
	order []int // which argument each ? stands for; nil: the arguments as they are
}

// native takes statements with $1, $2 as they are.
func native(texts map[string]string) map[string]statement {
	all := map[string]statement{}
	for name, text := range texts {
		all[name] = statement{text: text}
	}
	return all
}

// positional turns :1, :2 into ?, in whatever order they stand.
func positional(texts map[string]string) map[string]statement {
	all := map[string]statement{}
	for name, text := range texts {
		s := statement{order: []int{}}
		for {
			before, after, found := strings.Cut(text, ":")
			s.text += before
			if !found {
				break
			}
			s.order = append(s.order, int(after[0]-'1'))
			s.text += "?"
			text = after[1:]
		}
		all[name] = s
	}
	return all
}

func (s statement) arrange(args []any) []any {
	if s.order == nil {
		return args
	}
	arranged := make([]any, len(s.order))
	for i, n := range s.order {
		arranged[i] = args[n]
	}
	return arranged
}

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (c *Coordinator) queryRow(ctx context.Context, q querier, name string, args ...any) *sql.Row {
	s := c.sql[name]
	return q.QueryRowContext(ctx, s.text, s.arrange(args)...)
}

// exec returns how many rows were affected.
func (c *Coordinator) exec(ctx context.Context, q querier, name string, args ...any) (int64, error) {
	s := c.sql[name]
	result, err := q.ExecContext(ctx, s.text, s.arrange(args)...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// name is a lock's name, or another text, as an argument: MySQL compares bytes
// only with bytes.
func (c *Coordinator) name(text string) any {
	if c.dialect == MySQL {
		return []byte(text)
	}
	return text
}
