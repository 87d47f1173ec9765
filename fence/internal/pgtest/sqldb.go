package pgtest

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Open returns a database/sql handle, through pgx's own driver.
func (s *Server) Open(t testing.TB, role, database string) *sql.DB {
	t.Helper()
	s.need(t)
	config, err := pgx.ParseConfig(s.url(role, database))
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { db.Close() })
	return db
}
