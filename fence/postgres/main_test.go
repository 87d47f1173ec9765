package postgres_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/highwater/highwater/fence/internal/pgtest"
	"github.com/highwater/highwater/fence/postgres"
)

const long = 30 * time.Second

var server *pgtest.Server

func TestMain(m *testing.M) { pgtest.Main(m, &server) }

// demo is the database that most tests write to, and how it is guarded. The
// tables belong to tabowner, app writes them, the guard belongs to neither.
const demo = `
	set role tabowner;
	create table customers (id text primary key);
	create table invoices (id text primary key, amount int, customer text references customers on delete cascade on update cascade, note text);
	create table lines (invoice text not null, n int, v int, primary key (invoice, n));
	create table parts (id text not null, y int not null, v int) partition by list (y);
	create table parts_1 partition of parts for values in (1);
	create table parts_2 partition of parts for values in (2);
	create table plain (id text primary key, amount int);
	grant all on all tables in schema public to app;
	reset role;
	insert into customers values ('c1'), ('c2');
	insert into invoices values ('A', 0, 'c1'), ('B', 0, 'c1'), ('C', 0, 'c2');
	insert into lines select 'A', g, 0 from generate_series(1, 3) g;
	insert into parts values ('A', 1, 0), ('A', 2, 0), ('B', 1, 0);
	insert into plain values ('A', 0);`

var guards = []postgres.InstallOptions{
	{Table: "invoices", Resource: "'invoices/' || id"},
	{Table: "lines", Resource: "'invoices/' || invoice"},
	{Table: "parts", Resource: "'invoices/' || id"},
}

var template struct {
	once         sync.Once
	roles, ready bool
}

// roles makes the roles of the tests, which belong to the server and not to one
// database.
func roles(t testing.TB) {
	admin := server.Connect(t, "postgres", "postgres")
	template.once.Do(func() {
		// To switch ordinary triggers off is a right that can be given away.
		exec(t, admin, `create role app login; create role tabowner login; grant set on parameter session_replication_role to app, tabowner`)
		exec(t, admin, "create database unguarded_demo")
		db := server.Connect(t, "postgres", "unguarded_demo")
		exec(t, db, "grant create on schema public to tabowner; "+demo)
		db.Close(context.Background())
		exec(t, admin, "create database guarded_demo template unguarded_demo")
		db = server.Connect(t, "postgres", "guarded_demo")
		for _, g := range guards {
			if _, err := postgres.Install(context.Background(), db, g); err != nil {
				t.Fatal(err)
			}
		}
		db.Close(context.Background())
		template.ready = true
	})
	if !template.ready {
		t.Fatal("the demo databases could not be made; see the first failure")
	}
}

// database is one test's own database.
type database struct {
	t     testing.TB
	name  string
	admin *pgx.Conn
}

func guarded(t testing.TB) *database   { return newDatabase(t, "guarded_demo") }
func unguarded(t testing.TB) *database { return newDatabase(t, "unguarded_demo") }

func newDatabase(t testing.TB, from string) *database {
	t.Helper()
	roles(t)
	name := server.Database(t, from)
	return &database{t, name, server.Connect(t, "postgres", name)}
}

// as connects as a role.
func (d *database) as(role string) *session {
	d.t.Helper()
	s := &session{d, server.Connect(d.t, role, d.name)}
	exec(d.t, s.conn, "set idle_in_transaction_session_timeout = '60s'")
	return s
}

func (d *database) app() *session { d.t.Helper(); return d.as("app") }

func (d *database) exec(sql string) { d.t.Helper(); exec(d.t, d.admin, sql) }

// text is one value, as text.
func (d *database) text(query string) string {
	d.t.Helper()
	var s *string
	if err := d.admin.QueryRow(context.Background(), query).Scan(&s); err != nil {
		d.t.Fatalf("%s: %v", query, err)
	}
	if s == nil {
		return "null"
	}
	return *s
}

// mark is the mark of a resource, or "".
func (d *database) mark(resource string) string {
	d.t.Helper()
	return d.text("select coalesce((select token::text from fence.high_water where resource = '" + resource + "'), '')")
}

func (d *database) wantMark(resource, want string) {
	d.t.Helper()
	if got := d.mark(resource); got != want {
		d.t.Errorf("the mark of %s is %q, want %q", resource, got, want)
	}
}

func (d *database) want(query, want string) {
	d.t.Helper()
	if got := d.text(query); got != want {
		d.t.Errorf("%s: %q, want %q", query, got, want)
	}
}

// session is one connection.
type session struct {
	d    *database
	conn *pgx.Conn
}

func exec(t testing.TB, conn *pgx.Conn, sql string) {
	t.Helper()
	if err := try(conn, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// try runs one or several statements.
func try(conn *pgx.Conn, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

func (s *session) try(sql string) error { return try(s.conn, sql) }

func (s *session) ok(sql string) {
	s.d.t.Helper()
	exec(s.d.t, s.conn, sql)
}

// fails runs sql, which must end in one of the SQLSTATEs, and ends the
// transaction that it was in.
func (s *session) fails(sql string, states ...string) *pgconn.PgError {
	s.d.t.Helper()
	err := s.try(sql)
	wantState(s.d.t, sql, err, states...)
	s.try("rollback")
	var e *pgconn.PgError
	errors.As(err, &e)
	return e
}

func wantState(t testing.TB, what string, err error, states ...string) {
	t.Helper()
	if got := state(err); !slices.Contains(states, got) {
		t.Fatalf("%s: %q (%v), want SQLSTATE %s", what, got, err, strings.Join(states, " or "))
	}
}

// state is the SQLSTATE of an error; empty for none, "?" for another error.
func state(err error) string {
	var e *pgconn.PgError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	}
	return "?"
}

// start runs sql in the background.
func (s *session) start(sql string) *running {
	r := &running{s, sql, make(chan error, 1)}
	go func() { r.err <- s.try(sql) }()
	return r
}

// running is what start has started.
type running struct {
	s   *session
	sql string
	err chan error
}

// blocked waits until the session waits for a lock.
func (r *running) blocked() *running {
	r.s.d.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	stop := time.After(long)
	for {
		if n := r.s.d.text("select cardinality(pg_blocking_pids(" + itoa(r.s.conn.PgConn().PID()) + "))::text"); n != "0" {
			return r
		}
		select {
		case err := <-r.err:
			r.s.d.t.Fatalf("%s: was not blocked, but ended with %v", r.sql, err)
		case <-stop:
			r.s.d.t.Fatalf("%s: is not blocked", r.sql)
		case <-tick.C:
		}
	}
}

// ends waits for the end of what was started.
func (r *running) ends() error {
	r.s.d.t.Helper()
	select {
	case err := <-r.err:
		return err
	case <-time.After(long):
		r.s.d.t.Fatalf("%s: does not end", r.sql)
		return nil
	}
}

func (r *running) ok() {
	r.s.d.t.Helper()
	if err := r.ends(); err != nil {
		r.s.d.t.Fatalf("%s: %v", r.sql, err)
	}
}

func itoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// reset takes a guarded demo database back to its beginning, as far as the tests
// of interleavings have come. It is quicker than a database for each.
func (d *database) reset() {
	d.t.Helper()
	d.exec(`
		begin;
		select fence.enter_many('{"invoices/A": 999999999999999, "invoices/B": 999999999999999, "invoices/C": 999999999999999}');
		update invoices set amount = 0;
		delete from lines where n >= 10;
		alter table fence.high_water disable trigger user;
		truncate fence.high_water;
		alter table fence.high_water enable always trigger fence_never_lower;
		alter table fence.high_water enable always trigger fence_never_empty;
		update fence.settings set least = 0;
		commit`)
}

func (d *database) install(t testing.TB, o postgres.InstallOptions) postgres.Inspection {
	t.Helper()
	r, err := postgres.Install(context.Background(), d.admin, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// finds says whether an inspection has a finding.
func finds(r postgres.Inspection, effect postgres.Effect, subject, text string) bool {
	return slices.ContainsFunc(r.Findings, func(f postgres.Finding) bool {
		return f.Effect == effect && f.Subject == subject && strings.Contains(f.Text, text)
	})
}

// until waits for a query to give a value.
func (d *database) until(query, want string) {
	d.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for stop := time.Now().Add(long); d.text(query) != want; <-tick.C {
		if time.Now().After(stop) {
			d.t.Fatalf("%s: %q, want %q", query, d.text(query), want)
		}
	}
}
