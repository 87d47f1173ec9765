package postgres_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/highwater/highwater/fence"
	"github.com/highwater/highwater/fence/postgres"
	"github.com/highwater/highwater/lease"
)

func TestInstallReport(t *testing.T) {
	d := unguarded(t)
	r := d.install(t, guards[0])
	if r.Level != fence.LevelEnforced || r.Installed != "public.invoices" || !reflect.DeepEqual(r.Samples, []string{"invoices/A", "invoices/B", "invoices/C"}) {
		t.Errorf("%+v", r)
	}
	want := postgres.Table{Name: "public.invoices", Resource: "'invoices/' || id", Mode: postgres.Enforce, Writers: []string{"app", "tabowner"}, Owner: "tabowner"}
	if len(r.Tables) != 1 || !reflect.DeepEqual(r.Tables[0], want) {
		t.Errorf("tables %+v, want %+v", r.Tables, want)
	}
	if !finds(r, postgres.Note, "superusers", "postgres") {
		t.Errorf("findings %v", r.Findings)
	}
}

// The script that Plan gives does what Install does, as often as it is run.
func TestPlanIsAMigration(t *testing.T) {
	d := unguarded(t)
	script, err := postgres.Plan(postgres.InstallOptions{Table: "invoices", Resource: "'invoices/' || id", Writers: []string{"app"}, LockTimeout: 250 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "guard.sql")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	app := d.app()
	for range 2 {
		out := server.Feed(t, file, "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", d.name)
		if strings.Contains(out, "NOTICE") {
			t.Errorf("it speaks of what is of no interest:\n%s", out)
		}
		app.fails(set(1), "TF002")
		app.ok("begin; " + enter(42) + set(42) + "commit")
		app.fails("begin; "+enter(41), "TF001")
	}
	d.wantSound(fence.LevelEnforced)
	d.want("select (proconfig @> array['lock_timeout=250ms'])::text from pg_proc where oid = 'fence.enter(text,bigint,text)'::regprocedure", "true")
}

func TestOptionsAreChecked(t *testing.T) {
	for field, o := range map[string]postgres.InstallOptions{
		"table":        {Resource: "id"},
		"resource":     {Table: "t", Resource: " "},
		"mode":         {Table: "t", Resource: "id", Mode: "off"},
		"lock-timeout": {Table: "t", Resource: "id", LockTimeout: time.Microsecond},
		"writer":       {Table: "t", Resource: "id", Writers: []string{"a\x00"}},
	} {
		_, err := postgres.Plan(o)
		var e *lease.Error
		if !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestWhatCannotBeGuarded(t *testing.T) {
	d := unguarded(t)
	d.exec(`
		create unlogged table u (id text);
		create view v as select * from invoices;
		create materialized view m as select * from invoices;
		create temp table tmp (id text);
		create sequence s;
		create foreign data wrapper w; create server srv foreign data wrapper w; create foreign table f (id text) server srv;
		create table p (id text, y int) partition by list (y); create foreign table p_f partition of p for values in (1) server srv;
		create table q (id text, y int) partition by list (y); create unlogged table q_u partition of q for values in (1);
		create table parent (id text); create table child () inherits (parent);
		create table times (id text, at timestamptz);
		create function loose(text) returns text language plpgsql volatile as 'begin return $1; end'`)
	for _, c := range []struct{ table, resource, state, says string }{
		{"u", "id", "TF005", "public.u cannot be guarded: it is UNLOGGED: after a crash its rows are gone and the marks are not"},
		{"v", "id", "TF005", "is a view: guard the tables below it"},
		{"m", "id", "TF005", "is a materialized view"},
		{"tmp", "id", "TF005", "is a temporary table"},
		{"s", "last_value", "TF005", "is not a table"},
		{"f", "id", "TF005", "public.f cannot be guarded: it is a foreign table"},
		{"p", "id", "TF005", "public.p_f cannot be guarded: it is a foreign table"},
		{"q", "id", "TF005", "public.q_u cannot be guarded: it is UNLOGGED"},
		{"parts_1", "id", "TF005", "it is a partition, guard public.parts"},
		{"parent", "id", "TF005", "other tables inherit from it"},
		{"pg_class", "relname", "TF005", "belongs to the system"},
		{"nowhere", "id", "42P01", `"nowhere" does not exist`},
		{"invoices", "ident", "TF005", `column "ident" does not exist`},
		{"invoices", "'constant'", "TF005", "reads no column"},
		{"invoices", "loose(id)", "TF005", "must be marked IMMUTABLE"},
		{"invoices", "(select max(id) from lines)", "TF005", "cannot use subquery"},
		{"invoices", "max(id)", "TF005", "aggregate functions are not allowed"},
		{"times", "at", "TF005", "must be marked IMMUTABLE"},
		{"invoices", "id) || (", "TF005", "syntax error"},
	} {
		_, err := postgres.Install(context.Background(), d.admin, postgres.InstallOptions{Table: c.table, Resource: c.resource})
		if state(err) != c.state || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s, %s: %v, want %s %q", c.table, c.resource, err, c.state, c.says)
		}
		d.want("select count(*)::text from pg_namespace where nspname = 'fence'", "0") // all or nothing
	}
	_, err := postgres.Install(context.Background(), d.admin, postgres.InstallOptions{Table: "plain", Resource: "id", Writers: []string{"nobody here"}})
	if err == nil || !strings.Contains(err.Error(), `there is no role "nobody here"`) {
		t.Errorf("writer: %v", err)
	}
}

// Expressions mean what they meant where they were given, whatever the writer's
// search_path is and whatever the columns are called.
func TestResourceExpressions(t *testing.T) {
	d := unguarded(t)
	d.exec(`
		create schema lib; create function lib.slug(text) returns text language sql immutable as $$ select 'slug/' || lower($1) $$;
		revoke execute on function lib.slug from public;
		create type lib.kind as enum ('big', 'small'); create schema ops;
		create function ops.join(text, text) returns text language plpgsql immutable as $$ begin return $1 || '+' || $2; end $$;
		create operator ops.+ (leftarg = text, rightarg = text, function = ops.join);
		create table "Odd Names" ("new" text, "old" int, fence_is text, "A" text, v int);
		create table numbers (id bigint, part int, v int, kind lib.kind default 'big');
		grant all on "Odd Names", numbers to app;
		insert into "Odd Names" values ('X', 1, 'i', 'a', 0); insert into numbers values (7, 2, 0)`)
	app := d.app()
	for _, c := range []struct{ table, resource, name string }{
		{`"Odd Names"`, `lib.slug("new")`, "slug/x"},
		{`"Odd Names"`, `"new" || '/' || "old" || '/' || fence_is || "A"`, "X/1/ia"},
		{`"Odd Names"`, `'$g$ '' \ new.id /' || "A" -- a remark`, `$g$ ' \ new.id /a`},
		{`"Odd Names"`, `case "old" when 1 then 'one' else "A" end`, "one"},
		{"numbers", "'numbers/' || id", "numbers/7"},
		{"numbers", "id", "7"},
		{"numbers", "case when kind = 'big'::lib.kind then 'big/' || id end", "big/7"},
		{`"Odd Names"`, `"new" operator(ops.+) "A"`, "X+a"},
		{"numbers", "'n/' || id || '/' || part", "n/7/2"},
	} {
		d.exec("set search_path = public, lib")
		r := d.install(t, postgres.InstallOptions{Table: c.table, Resource: c.resource})
		if !slices.Contains(r.Samples, c.name) {
			t.Errorf("%s: samples %q, want %q", c.resource, r.Samples, c.name)
		}
		app.ok(`set search_path = pg_temp`)
		app.fails("update public."+c.table+" set v = 1", "TF002")
		app.fails("begin; select fence.enter('other', 42); update public."+c.table+" set v = 1", "TF002")
		app.ok("begin; select fence.enter('" + strings.ReplaceAll(c.name, "'", "''") + "', 42); update public." + c.table + " set v = 1; commit")
	}
}

func TestWriters(t *testing.T) {
	d := unguarded(t)
	exec(t, d.admin, "drop role if exists w1, w2, w3; create role w1 login; create role w2 login; create role w3 login")
	t.Cleanup(func() { exec(t, d.admin, "drop owned by w1, w2, w3; drop role w1, w2, w3") })
	d.exec("grant insert (id) on invoices to w1; grant select on invoices to w2; grant delete on parts_1 to w3")
	writers := func(r postgres.Inspection, table string) []string {
		for _, x := range r.Tables {
			if x.Name == table {
				return x.Writers
			}
		}
		return nil
	}
	if got := writers(d.install(t, guards[0]), "public.invoices"); !reflect.DeepEqual(got, []string{"app", "tabowner", "w1"}) {
		t.Errorf("writers %v", got)
	}
	if got := writers(d.install(t, guards[2]), "public.parts"); !reflect.DeepEqual(got, []string{"app", "tabowner", "w3"}) {
		t.Errorf("writers %v", got)
	}
	d.as("w1").ok("begin; " + enter(1) + "commit")
	d.as("w2").fails(enter(1), "42501")
	d.as("w3").ok("begin; " + enter(1) + "commit; select token from fence.high_water")

	// Named ones only: the others can still write the table, but are never let in.
	o := guards[0]
	o.Writers = []string{"app", "w2"}
	r := d.install(t, o)
	if !finds(r, postgres.Note, "public.invoices", "w1 may write it, but is no writer") {
		t.Errorf("findings %v", r.Findings)
	}
	d.as("w1").fails(enter(1), "42501")
	d.as("w1").fails("insert into invoices (id) values ('Z')", "TF002")
	d.as("w2").ok("begin; " + enter(1) + "commit")
	d.as("w3").ok("begin; " + enter(1) + "commit") // a writer of the other table
	o.Writers = []string{"public"}
	d.install(t, o)
	d.as("w1").ok("begin; " + enter(1) + "commit")
	if err := postgres.Uninstall(context.Background(), d.admin, "invoices", false); err != nil {
		t.Fatal(err)
	}
	d.as("w1").fails(enter(1), "42501")
	d.as("w3").ok("begin; " + enter(1) + "commit")
}

func TestReportMode(t *testing.T) {
	ctx := context.Background()
	d := guarded(t)
	o := guards[0]
	o.Mode = postgres.Report
	if r := d.install(t, o); r.Level != fence.LevelNone || !finds(r, postgres.Broken, "public.invoices", "mode is report") {
		t.Errorf("level %q, findings %v", r.Level, r.Findings)
	}
	d.exec("grant truncate on invoices to app; " + forging)
	app, owner := d.app(), d.as("tabowner")
	for _, level := range levels {
		begin := "begin isolation level " + level + "; "
		a, b := d.app(), d.app()
		a.ok(begin + set(1) + set(2) + "insert into invoices values ('N'); delete from invoices where id = 'N'")
		b.ok(begin + "update invoices set amount = 1 where id = 'B'; commit") // not held up by a
		a.ok("commit")
	}
	app.ok("begin; " + enter(42) + set(3) + "commit") // nothing to count
	app.ok("begin; " + forge("invoices/A", 41) + set(4) + "commit")
	app.ok("begin; truncate invoices; rollback") // what is rolled back was not written
	owner.ok("grant truncate on lines to app")
	owner.ok(set(6))
	app.fails("begin; "+enter(41), "TF001") // who shows a token is told, also now
	app.fails("update lines set v = 1", "TF002")

	d.exec("select fence._fold()") // what a later transaction does by itself
	owner.ok(set(7))
	s, err := postgres.Status(ctx, d.admin)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int64{}
	for _, r := range s.Reported {
		if r.FirstAt.IsZero() || r.LastAt.Before(r.FirstAt) {
			t.Errorf("%+v", r)
		}
		counts[r.Table+" "+r.Role+" "+r.Code] = r.Transactions
	}
	want := map[string]int64{"public.invoices app TF002": 6, "public.invoices app TF001": 1, "public.invoices tabowner TF002": 2}
	if !reflect.DeepEqual(counts, want) {
		t.Errorf("counts %v, want %v", counts, want)
	}

	// From report to enforce: a transaction that began before is not let through.
	old := d.app()
	old.ok("begin isolation level repeatable read; select 1 from customers")
	d.install(t, guards[0])
	old.fails(set(9), "TF002")
	app.fails("truncate invoices", "TF005")
}

// The 256th transaction, or so, tidies up.
func TestReportModeFolds(t *testing.T) {
	d := guarded(t)
	o := guards[0]
	o.Mode = postgres.Report
	d.install(t, o)
	app := d.app()
	app.ok("do $$ begin for i in 1..600 loop update invoices set amount = i where id = 'A'; commit; end loop; end $$")
	d.want("select (count(*) between 1 and 300)::text from fence.report_queue", "true")
	d.want("select (sum(transactions) + (select count(*) from fence.report_queue))::text from fence.report", "600")
}

// The owner of a table can guard it without a superuser's help; what is missing
// is said.
func TestInstallByTheTablesOwner(t *testing.T) {
	d := unguarded(t)
	d.exec("grant create on database " + d.name + " to tabowner")
	owner, app := d.as("tabowner"), d.app()
	o := guards[0]
	o.Writers = []string{"app"}
	for range 2 {
		r, err := postgres.Install(context.Background(), owner.conn, o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Level != fence.LevelWhilePrivileges || !finds(r, postgres.Note, "guard", "event trigger fence_ddl is missing") ||
			!finds(r, postgres.Weakens, "public.invoices", "its owner tabowner can switch the guard off") ||
			!finds(r, postgres.Weakens, "tabowner", "can act as tabowner, who owns the marks") {
			t.Errorf("level %q, findings %v", r.Level, r.Findings)
		}
	}
	app.fails(set(1), "TF002")
	app.ok("begin; " + enter(42) + set(42) + "commit")
	app.fails("begin; "+enter(41), "TF001")
	app.fails("update fence.high_water set token = 1", "42501")
	app.fails("alter table invoices disable trigger all", "42501")
	owner.fails("update fence.high_water set token = 1", "TF006")

	// A superuser takes it over, with the marks.
	r := d.install(t, o)
	if r.Level != fence.LevelEnforced {
		t.Errorf("level %q, findings %v", r.Level, r.Findings)
	}
	d.wantMark("invoices/A", "42")
	app.fails("begin; "+enter(41), "TF001")
	owner.fails("alter table invoices disable trigger all", "TF006", "42501")
	// And the owner cannot take it back.
	if _, err := postgres.Install(context.Background(), owner.conn, o); state(err) != "42501" {
		t.Errorf("install by the table's owner: %v", err)
	}
	if err := postgres.Uninstall(context.Background(), owner.conn, "invoices", true); state(err) != "42501" {
		t.Errorf("uninstall by the table's owner: %v", err)
	}
	d.wantSound(fence.LevelEnforced)
}

func TestInstallIsRefused(t *testing.T) {
	ctx := context.Background()
	t.Run("to whom the table does not belong", func(t *testing.T) {
		d := unguarded(t)
		d.exec("grant create on database " + d.name + " to app")
		if _, err := postgres.Install(ctx, d.app().conn, guards[0]); state(err) != "42501" {
			t.Error(err)
		}
		d.want("select count(*)::text from pg_namespace where nspname = 'fence'", "0")
	})
	t.Run("where the schema is another's", func(t *testing.T) {
		d := unguarded(t)
		d.exec("create schema fence")
		if _, err := postgres.Install(ctx, d.admin, guards[0]); err == nil || !strings.Contains(err.Error(), "not this guard's") {
			t.Error(err)
		}
	})
	t.Run("over a newer one", func(t *testing.T) {
		d := guarded(t)
		d.exec("update fence.settings set version = 2")
		if _, err := postgres.Install(ctx, d.admin, guards[0]); err == nil || !strings.Contains(err.Error(), "version 2") {
			t.Error(err)
		}
		d.wantSound(fence.LevelEnforced)
	})
	t.Run("while the table is written", func(t *testing.T) {
		d := unguarded(t)
		app := d.app()
		app.ok("begin; " + set(1))
		o := guards[0]
		o.LockTimeout = 20 * time.Millisecond
		if _, err := postgres.Install(ctx, d.admin, o); !errors.Is(err, fence.ErrBusy) {
			t.Error(err)
		}
		d.want("select count(*)::text from pg_namespace where nspname = 'fence'", "0")
	})
}

// A transaction that began before the guard came meets it.
func TestOldSnapshotMeetsTheGuard(t *testing.T) {
	d := unguarded(t)
	app := d.app()
	app.ok("begin isolation level repeatable read; select 1 from customers")
	d.install(t, guards[0])
	app.fails(set(1), "TF002")
}

func TestChangedExpression(t *testing.T) {
	d := guarded(t)
	app := d.app()
	app.ok("begin; " + enter(42) + set(1) + "commit")
	d.install(t, postgres.InstallOptions{Table: "invoices", Resource: "'bills/' || id"})
	app.fails("begin; "+enter(42)+set(2), "TF002")
	app.ok("begin; select fence.enter('bills/A', 42); " + set(2) + "commit")
	d.wantMark("invoices/A", "42")
}

func TestRaise(t *testing.T) {
	ctx := context.Background()
	d := guarded(t)
	app := d.app()
	raise := func(resource string, to lease.Token, want int64) {
		t.Helper()
		if n, err := postgres.Raise(ctx, d.admin, resource, to); err != nil || n != want {
			t.Fatalf("raise %q to %d: %d, %v; want %d", resource, to, n, err, want)
		}
	}
	app.ok("begin; " + enter(42) + "commit; begin; select fence.enter('invoices/B', 50, 'b'); commit")
	raise("invoices/A", 41, 0) // never lower
	d.want("select holder from fence.high_water where resource = 'invoices/A'", "h42")
	raise("invoices/A", 42, 0)
	raise("invoices/A", 45, 1)
	d.want("select holder from fence.high_water where resource = 'invoices/A'", "null")
	app.fails("begin; "+enter(44), "TF001")
	app.ok("begin; select fence.enter('invoices/A', 45, 'first'); " + set(1) + "commit")
	app.fails("begin; select fence.enter('invoices/A', 45, 'second')", "TF003")
	raise("unheard/of", 7, 1)
	app.fails("begin; select fence.enter('unheard/of', 6)", "TF001")

	raise("", 48, 2) // A and unheard/of; B is higher
	d.wantMark("invoices/A", "48")
	d.wantMark("invoices/B", "50")
	app.fails("begin; select fence.enter('new', 47)", "TF001")
	app.ok("begin; select fence.enter('new', 48); commit")
	raise("", 47, 0)

	// It waits for writers that are at work, but not for ever.
	app.ok("begin; select fence.enter('invoices/B', 50)")
	other := d.as("postgres")
	r := other.start("select fence.raise(null, 60)").blocked()
	app.ok("commit")
	r.ok()
	app.fails("begin; select fence.enter('invoices/B', 59)", "TF001")
	app.ok("begin; select fence.enter('invoices/B', 60)")
	if _, err := postgres.Raise(ctx, d.admin, "invoices/B", 61); !errors.Is(err, fence.ErrBusy) {
		t.Errorf("raise beside an open writer: %v", err)
	}
	app.ok("commit")

	for _, c := range []struct {
		resource string
		to       lease.Token
	}{{"a", 0}, {"a", lease.MaxToken + 1}, {"a//b", 1}} {
		if _, err := postgres.Raise(ctx, d.admin, c.resource, c.to); !errors.Is(err, lease.ErrBadRequest) {
			t.Errorf("raise %q to %d: %v", c.resource, c.to, err)
		}
	}
}

// A name that never had a mark, and a raise of all: whichever is first, an older
// token is not let in after it.
func TestRaiseOfAllAndAFirstToken(t *testing.T) {
	eachLevel(t, func(t *testing.T, d *database, begin string, rc bool) {
		a, b := d.app(), d.as("postgres")
		a.ok(begin + "select count(*) from customers") // a snapshot, but for read committed
		b.ok("select fence.raise(null, 50)")
		stale(a, a.start(enter(42)), begin+enter(42), rc)

		a.ok(begin + "select fence.enter('invoices/B', 55)")
		r := b.start("select fence.raise(null, 60)").blocked()
		a.ok("commit")
		r.ok()
		a.fails("begin; select fence.enter('invoices/C', 59)", "TF001")
		// A mark that came while the raise waited is raised by it as well.
		a.fails("begin; select fence.enter('invoices/B', 59)", "TF001")
	})
}

func TestStatusAndFloor(t *testing.T) {
	ctx := context.Background()
	d := guarded(t)
	if floor, err := postgres.Floor(ctx, d.admin); err != nil || floor != 0 {
		t.Errorf("floor of an unused guard: %d, %v", floor, err)
	}
	d.app().ok(`begin; select fence.enter_many('{"a": 7, "b": 9}'); commit`)
	s, err := postgres.Status(ctx, d.admin)
	if err != nil {
		t.Fatal(err)
	}
	if s.Marks != 2 || s.Highest != 9 || s.Least != 0 || s.Version != 1 || len(s.Tables) != 3 || s.Level != fence.LevelEnforced {
		t.Errorf("%+v", s)
	}
	if _, err := postgres.Raise(ctx, d.admin, "", 100); err != nil {
		t.Fatal(err)
	}
	if floor, err := postgres.Floor(ctx, d.admin); err != nil || floor != 100 {
		t.Errorf("floor: %d, %v", floor, err)
	}
}

func TestUninstall(t *testing.T) {
	ctx := context.Background()
	d := guarded(t)
	app := d.app()
	app.ok("begin; " + enter(42) + "commit")
	uninstall := func(table string, drop bool, says string) {
		t.Helper()
		err := postgres.Uninstall(ctx, d.admin, table, drop)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Fatalf("uninstall %s: %v, want %q", table, err, says)
		}
	}
	uninstall("plain", false, "plain is not guarded")
	uninstall("invoices", true, "they guard public.lines, public.parts as well")
	d.wantSound(fence.LevelEnforced)
	uninstall("invoices", false, "")
	app.ok(set(1))
	app.fails("update lines set v = 1", "TF002")
	d.wantSound(fence.LevelEnforced)
	d.install(t, guards[0])
	app.fails("begin; "+enter(41), "TF001") // the marks were kept
	for _, table := range []string{"invoices", "parts"} {
		uninstall(table, false, "")
	}
	d.want("select count(*)::text from pg_trigger where tgname like 'fence%' and tgrelid::regclass::text like 'parts%'", "0")
	uninstall("public.lines", true, "")
	d.want("select count(*)::text from pg_namespace where nspname = 'fence'", "0")
	d.want("select count(*)::text from pg_event_trigger", "0")
	app.ok("update lines set v = 1; truncate parts")
	for _, err := range []error{
		postgres.Uninstall(ctx, d.admin, "lines", false),
		func() error { _, err := postgres.Status(ctx, d.admin); return err }(),
		func() error { _, err := postgres.Floor(ctx, d.admin); return err }(),
		func() error { _, err := postgres.Raise(ctx, d.admin, "", 1); return err }(),
	} {
		if err != postgres.ErrNotInstalled {
			t.Errorf("%v, want %v", err, postgres.ErrNotInstalled)
		}
	}
}

// A function that names resources can be changed by its owner.
func TestExpressionWithAFunction(t *testing.T) {
	d := unguarded(t)
	d.exec(`grant create on schema public to tabowner; set role tabowner; create function slug(text) returns text language plpgsql immutable as $$ begin return 's/' || $1; end $$; reset role`)
	r := d.install(t, postgres.InstallOptions{Table: "invoices", Resource: "slug(id)"})
	if r.Level != fence.LevelWhilePrivileges || !finds(r, postgres.Weakens, "public.invoices", "tabowner owns the function public.slug(text)") {
		t.Errorf("level %q, findings %v", r.Level, r.Findings)
	}
	d.exec("alter function slug(text) owner to postgres")
	d.wantSound(fence.LevelEnforced)
	d.exec("drop function slug(text)")
	d.app().fails("begin; select fence.enter('s/A', 1); "+set(1), "42883") // it fails closed
}

// Who could take the guard down, one by one.
func TestFindings(t *testing.T) {
	d := guarded(t)
	exec(t, d.admin, "drop role if exists x; create role x login")
	t.Cleanup(func() { exec(t, d.admin, "drop owned by x; drop role x") })
	for _, c := range []struct{ do, undo, text string }{
		{"grant fence_owner to x", "revoke fence_owner from x", "can act as fence_owner"},
		{"alter role x createrole", "alter role x nocreaterole", "CREATEROLE"},
		{"grant pg_write_all_data to x", "revoke pg_write_all_data from x", "may write fence.high_water"},
		{"grant delete on fence.protected to x", "revoke delete on fence.protected from x", "may write fence.protected"},
		{"grant pg_execute_server_program to x", "revoke pg_execute_server_program from x", "can reach the server's files"},
	} {
		d.exec(c.do)
		if r := d.wantSound(fence.LevelWhilePrivileges); !finds(r, postgres.Weakens, "x", c.text) {
			t.Errorf("%s: findings %v", c.do, r.Findings)
		}
		d.exec(c.undo)
	}
	d.exec("alter event trigger fence_drop disable")
	if r := d.wantSound(fence.LevelWhilePrivileges); !finds(r, postgres.Note, "guard", "fence_drop is not ENABLE ALWAYS") || !finds(r, postgres.Weakens, "public.parts", "its owner tabowner") {
		t.Errorf("findings %v", r.Findings)
	}
	d.exec("alter event trigger fence_drop enable always")
	d.wantSound(fence.LevelEnforced)
}

// It writes nothing, so it runs where nothing can be written.
func TestVerifyOnlyReads(t *testing.T) {
	d := guarded(t)
	d.exec("set default_transaction_read_only = on")
	d.wantSound(fence.LevelEnforced)
	if _, err := postgres.Status(context.Background(), d.admin); err != nil {
		t.Error(err)
	}
}
