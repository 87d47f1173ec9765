package pgtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Open returns a database/sql handle. What it needs of a driver is little, and
// it shows that any driver serves whose errors have SQLState.
func (s *Server) Open(t testing.TB, role, database string) *sql.DB {
	t.Helper()
	s.need(t)
	db := sql.OpenDB(connector{s.url(role, database)})
	t.Cleanup(func() { db.Close() })
	return db
}

type connector struct{ url string }

func (c connector) Driver() driver.Driver { return nil }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := pgx.Connect(ctx, c.url)
	if err != nil {
		return nil, err
	}
	return &sqlConn{conn}, nil
}

type sqlConn struct{ conn *pgx.Conn }

func (c *sqlConn) Close() error { return c.conn.Close(context.Background()) }

func (c *sqlConn) Prepare(string) (driver.Stmt, error) {
	return nil, errors.New("this driver prepares nothing")
}

func (c *sqlConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *sqlConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	level, ok := map[sql.IsolationLevel]pgx.TxIsoLevel{
		sql.LevelDefault: "", sql.LevelReadCommitted: pgx.ReadCommitted,
		sql.LevelRepeatableRead: pgx.RepeatableRead, sql.LevelSerializable: pgx.Serializable,
	}[sql.IsolationLevel(o.Isolation)]
	if !ok {
		return nil, fmt.Errorf("no isolation level %v", sql.IsolationLevel(o.Isolation))
	}
	tx, err := c.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		return nil, err
	}
	return sqlTx{tx}, nil
}

type sqlTx struct{ tx pgx.Tx }

func (t sqlTx) Commit() error   { return t.tx.Commit(context.Background()) }
func (t sqlTx) Rollback() error { return t.tx.Rollback(context.Background()) }

func values(args []driver.NamedValue) []any {
	list := make([]any, len(args))
	for i, a := range args {
		list[i] = a.Value
	}
	return list
}

func (c *sqlConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	tag, err := c.conn.Exec(ctx, query, values(args)...)
	return driver.RowsAffected(tag.RowsAffected()), err
}

func (c *sqlConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.conn.Query(ctx, query, values(args)...)
	if err != nil {
		return nil, err
	}
	return &sqlRows{rows}, nil
}

type sqlRows struct{ rows pgx.Rows }

func (r *sqlRows) Close() error { r.rows.Close(); return r.rows.Err() }

func (r *sqlRows) Columns() []string {
	var names []string
	for _, f := range r.rows.FieldDescriptions() {
		names = append(names, f.Name)
	}
	return names
}

func (r *sqlRows) Next(dest []driver.Value) error {
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	row, err := r.rows.Values()
	if err != nil {
		return err
	}
	for i, v := range row {
		dest[i] = v
		if n := reflect.ValueOf(v); n.IsValid() && n.CanInt() {
			dest[i] = n.Int()
		}
	}
	return nil
}
