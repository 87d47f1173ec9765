package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/highwater/highwater/fence/postgres"
)

// path is one way to write what belongs to the resource invoices/A.
type path struct {
	name string
	sql  string
	copy string // sent to sql, which is a COPY … FROM STDIN
}

func (p path) run(s *session) error {
	if p.copy == "" {
		return s.try(p.sql)
	}
	_, err := s.conn.PgConn().CopyFrom(context.Background(), strings.NewReader(p.copy), p.sql)
	return err
}

var paths = []path{
	{name: "insert", sql: `insert into lines values ('A', 9, 9)`},
	{name: "insert select", sql: `insert into lines select id, 9, 9 from invoices where id = 'A'`},
	{name: "insert of many rows", sql: `insert into lines select 'A', g, g from generate_series(20, 200) g`},
	{name: "update", sql: `update invoices set amount = 9 where id = 'A'`},
	{name: "update that changes nothing", sql: `update invoices set amount = amount where id = 'A'`},
	{name: "update from", sql: `update invoices i set amount = v from lines l where l.invoice = i.id and n = 1`},
	{name: "update of several resources", sql: `update invoices set amount = amount + 1`},
	{name: "delete", sql: `delete from invoices where id = 'A'`},
	{name: "delete using", sql: `delete from lines using invoices where id = invoice`},
	{name: "upsert that inserts", sql: `insert into lines values ('A', 9, 9) on conflict do nothing`},
	{name: "upsert that updates", sql: `insert into invoices values ('A', 9) on conflict (id) do update set amount = excluded.amount`},
	{name: "merge update", sql: `merge into invoices i using (values ('A')) v (id) on i.id = v.id when matched then update set amount = 9`},
	{name: "merge delete", sql: `merge into invoices i using (values ('A')) v (id) on i.id = v.id when matched then delete`},
	{name: "merge insert", sql: `merge into lines l using (values ('A')) v (id) on l.invoice = v.id and n = 9 when not matched then insert values ('A', 9, 9)`},
	{name: "writable CTE", sql: `with w as (update invoices set amount = 9 where id = 'A' returning 1) select count(*) from w`},
	{name: "DO block", sql: `do $$ begin update invoices set amount = 9 where id = 'A'; end $$`},
	{name: "DO block that swallows errors", sql: `do $$ begin begin update invoices set amount = 9 where id = 'A'; exception when division_by_zero then null; end; end $$`},
	{name: "dynamic SQL", sql: `do $$ begin execute 'update invoices set amount = 9 where id = ''A'''; end $$`},
	{name: "view", sql: `update v_invoices set amount = 9 where id = 'A'`},
	{name: "view with an INSTEAD OF trigger", sql: `update v_instead set amount = 9 where id = 'A'`},
	{name: "rule", sql: `insert into inbox values ('A')`},
	{name: "trigger of another table", sql: `insert into outbox values ('A')`},
	{name: "SECURITY DEFINER function of the table's owner", sql: `select write_as_owner()`},
	{name: "prepared statement", sql: `deallocate all; prepare w as update invoices set amount = 9 where id = 'A'; execute w`},
	{name: "cursor", sql: `declare c cursor for select * from invoices where id = 'A' for update; fetch c; update invoices set amount = 9 where current of c`},
	{name: "copy", sql: `copy lines from stdin`, copy: "A\t9\t9\n"},
	{name: "copy into a view", sql: `copy v_instead from stdin`, copy: "A\t9\n"},
	{name: "partitioned table", sql: `insert into parts values ('A', 1, 9)`},
	{name: "partition, insert", sql: `insert into parts_1 values ('A', 1, 9)`},
	{name: "partition, update", sql: `update parts_1 set v = 9 where id = 'A'`},
	{name: "partition, delete", sql: `delete from parts_2 where id = 'A'`},
	{name: "partition, copy", sql: `copy parts_1 from stdin`, copy: "A\t1\t9\n"},
	{name: "move between partitions", sql: `update parts set y = 1 where id = 'A' and y = 2`},
	{name: "cascade of a delete", sql: `delete from customers where id = 'c1'`},
	{name: "cascade of an update", sql: `update customers set id = 'c9' where id = 'c1'`},
	{name: "deferred cascade", sql: `delete from d_parents; set constraints all immediate`},
	{name: "replaced name of a row", sql: `update lines set invoice = 'A' where invoice = 'A'`},
	{name: "session without triggers", sql: `set local session_replication_role = replica; update invoices set amount = 9 where id = 'A'`},
}

const pathObjects = `
	set role tabowner;
	create view v_invoices as select id, amount from invoices;
	create view v_instead as select id, amount from invoices;
	create function instead() returns trigger language plpgsql as $$ begin
		if tg_op = 'INSERT' then insert into lines values (new.id, new.amount, 0);
		else update invoices set amount = new.amount where id = new.id; end if;
		return new; end $$;
	create trigger instead instead of insert or update on v_instead for each row execute function instead();
	create table inbox (id text);
	create rule inbox as on insert to inbox do also update invoices set amount = 9 where id = new.id;
	create table outbox (id text);
	create function outbox() returns trigger language plpgsql as $$ begin update invoices set amount = 9 where id = new.id; return new; end $$;
	create trigger outbox before insert on outbox for each row execute function outbox();
	create function write_as_owner() returns void language sql security definer as $$ update invoices set amount = 9 where id = 'A' $$;
	create table d_parents (id text primary key);
	create table d_children (id text references d_parents on delete cascade deferrable initially deferred);
	grant all on all tables in schema public to app;
	grant execute on all functions in schema public to app;
	reset role;
	insert into d_parents values ('A');
	insert into d_children values ('A');`

// forge makes a claim by hand, for this transaction, that fence.enter never saw.
func forge(resource string, token int) string {
	return fmt.Sprintf(`select set_config(fence_slot(%s), jsonb_build_object('x', pg_current_xact_id()::text, 'c', jsonb_build_object(%[1]s, %d))::text, true); `, "'"+resource+"'", token)
}

// forging lets app find out under which setting a claim is kept.
const forging = `create or replace function public.fence_slot(text) returns text language sql security definer as $$ select fence._slot($1) $$;`

// Conformance 3 to 8, 12, 15, 18, 40 and 44, on every path.
func TestConformance03_EveryPath(t *testing.T) {
	d := guarded(t)
	d.exec(pathObjects + forging)
	ctx := context.Background()
	if _, err := postgres.Install(ctx, d.admin, postgres.InstallOptions{Table: "d_children", Resource: "'invoices/' || id"}); err != nil {
		t.Fatal(err)
	}
	app := d.app()
	const enterAll = `select fence.enter_many('{"invoices/A": 42, "invoices/B": 42, "invoices/C": 42}'); `
	app.ok("begin; " + enterAll + "commit")
	before := d.text("select md5(string_agg(x::text, '')) from (select * from invoices order by id) x")
	for _, p := range paths {
		t.Run(p.name, func(t *testing.T) {
			d := &database{t, d.name, d.admin}
			app := &session{d, app.conn}
			try := func(first string) error {
				app.ok("begin; " + first)
				err := p.run(app)
				if err == nil && first != enterAll { // what a constraint puts off
					err = app.try("commit")
				}
				app.ok("rollback")
				return err
			}
			wantState(t, "no token", try(""), "TF002")
			wantState(t, "the token of another resource", try("select fence.enter('invoices/other', 99); "), "TF002")
			wantState(t, "an older claim made by hand", try(forge("invoices/A", 41)+forge("invoices/B", 41)+forge("invoices/C", 41)), "TF001")
			wantState(t, "a claim that was not admitted", try(forge("invoices/A", 43)+forge("invoices/B", 43)+forge("invoices/C", 43)), "TF002")
			wantState(t, "the claim of an earlier transaction", try(`select set_config(fence_slot('invoices/A'), '{"x": "1", "c": {"invoices/A": 42}}', true); `), "TF002")
			wantState(t, "the admitted token", try(enterAll), "")
			d.want("select md5(string_agg(x::text, '')) from (select * from invoices order by id) x", before)
			d.wantMark("invoices/A", "42")
		})
	}
	// Autocommit, as a psql user types it.
	app.fails("update invoices set amount = 9 where id = 'A'", "TF002")
}

// One statement that admits and writes.
func TestOneStatementForm(t *testing.T) {
	d := guarded(t)
	app := d.app()
	const form = `with f as materialized (select fence.enter('invoices/A', %d)) update invoices set amount = %[1]d from f where id = 'A'`
	app.ok(fmt.Sprintf(form, 42))
	app.fails(fmt.Sprintf(form, 41), "TF001")
	d.want("select amount::text from invoices where id = 'A'", "42")
}

func TestConformance06_EqualTokenAgain(t *testing.T) {
	d := guarded(t)
	app := d.app()
	for range 3 {
		app.ok("begin; " + enter(42) + set(42) + "commit")
	}
	d.wantMark("invoices/A", "42")
}

func TestConformance13_EveryResourceOfAStatement(t *testing.T) {
	d := guarded(t)
	app := d.app()
	const both = "update invoices set amount = 5 where id in ('A', 'B')"
	app.fails("begin; "+enter(42)+both, "TF002")
	d.want("select sum(amount)::text from invoices", "0")
	app.ok(`begin; select fence.enter_many('{"invoices/B": 43, "invoices/A": 42}', 'h'); ` + both + "; commit")
	d.want("select sum(amount)::text from invoices", "10")
	d.wantMark("invoices/A", "42")
	d.wantMark("invoices/B", "43")
}

func TestConformance14_MoveNeedsBothTokens(t *testing.T) {
	d := guarded(t)
	app := d.app()
	const move = "update lines set invoice = 'C' where invoice = 'A'; "
	app.fails("begin; "+enter(42)+move, "TF002")
	app.fails("begin; select fence.enter('invoices/C', 42); "+move, "TF002")
	app.ok("begin; select fence.enter('invoices/C', 42); " + enter(42) + move + "commit")
	d.want("select count(*)::text from lines where invoice = 'C'", "3")
}

func TestConformance16_MarkOutlivesTheRow(t *testing.T) {
	d := guarded(t)
	app := d.app()
	app.ok("begin; " + enter(42) + "delete from invoices where id = 'A'; commit")
	app.fails("begin; "+enter(41)+"insert into invoices values ('A', 1)", "TF001")
	d.want("select count(*)::text from invoices where id = 'A'", "0")
}

func TestConformance17_Truncate(t *testing.T) {
	d := guarded(t)
	d.exec("grant truncate on invoices, lines, parts, parts_1, customers to app")
	app := d.app()
	for _, sql := range []string{"truncate invoices", "truncate lines, plain", "truncate parts", "truncate parts_1", "truncate customers cascade",
		"set local session_replication_role = replica; truncate invoices"} {
		app.fails("begin; "+enter(42)+sql, "TF005")
	}
	d.want("select count(*)::text from invoices", "3")
}

func TestConformance19_OneNumberTwoHolders(t *testing.T) {
	d := guarded(t)
	app := d.app()
	app.ok("begin; select fence.enter('invoices/A', 42, 'b'); commit")
	e := app.fails("begin; select fence.enter('invoices/A', 42, 'c')", "TF003")
	if e.Message != "fence conflict token=42 resource=invoices/A" {
		t.Errorf("message %q", e.Message)
	}
	app.fails("begin; select fence.enter('invoices/A', 42, 'B')", "TF003")
	app.ok("begin; select fence.enter('invoices/A', 42); commit") // does not say who
	// Who did not say is asked for by the first who does.
	app.ok("begin; select fence.enter('invoices/B', 42); commit; begin; select fence.enter('invoices/B', 42, 'b'); commit")
	app.fails("begin; select fence.enter('invoices/B', 42, 'c')", "TF003")
	app.ok("begin; select fence.enter('invoices/A', 43, 'c'); commit")
	d.want("select holder from fence.high_water where resource = 'invoices/A'", "c")
}

func TestConformance20_MalformedTokens(t *testing.T) {
	d := guarded(t)
	app := d.app()
	app.ok("begin; " + enter(42) + "commit")
	for _, token := range []string{"0", "-1", "1000000000000000", "9223372036854775807", "null"} {
		app.fails("begin; select fence.enter('invoices/A', "+token+")", "TF004")
	}
	app.fails("begin; select fence.enter('invoices/A', 9223372036854775808)", "42883") // a numeric
	app.fails("begin; select fence.enter('invoices/A', 42.0)", "42883")
	app.fails("begin; select fence.enter('invoices/A', '')", "22P02")
	app.fails("begin; select fence.enter('invoices/A', '4e1')", "22P02")
	for _, claims := range []string{`{"invoices/A": 0}`, `{"invoices/A": -1}`, `{"invoices/A": 42.0}`, `{"invoices/A": "42"}`, `{"invoices/A": null}`,
		`{"invoices/A": true}`, `{"invoices/A": [42]}`, `{"invoices/A": 1000000000000000}`, `{"": 42}`, `{}`, `[]`, `42`, `null`} {
		app.fails("begin; select fence.enter_many('"+claims+"')", "TF004")
	}
	app.fails("begin; select fence.enter_many(null)", "TF004")
	for _, resource := range []string{"''", "null", "repeat('a', 513)", "repeat('ä', 257)"} {
		app.fails("begin; select fence.enter("+resource+", 42)", "TF004")
	}
	app.fails("begin; select fence.enter('invoices/A', 42, repeat('h', 257))", "TF004")
	d.want("select count(*)::text from fence.high_water", "1")
	d.wantMark("invoices/A", "42")
}

func TestConformance21_NeighboursNearTheEnd(t *testing.T) {
	d := guarded(t)
	app := d.app()
	app.ok("begin; select fence.enter('invoices/A', 999999999999998); commit")
	app.ok(`begin; select fence.enter_many('{"invoices/A": 999999999999999}'); commit`)
	app.fails("begin; select fence.enter('invoices/A', 999999999999998)", "TF001")
	app.ok("begin; select fence.enter('invoices/A', 999999999999999); " + set(1) + "commit")
}

// A token may jump as far as it likes: a restored authority's floor does.
func TestConformance22_NoLimitOnJumps(t *testing.T) {
	d := guarded(t)
	app := d.app()
	app.ok("begin; " + enter(1) + "commit")
	app.ok("begin; select fence.enter('invoices/A', 999999999999999); commit")
	d.wantMark("invoices/A", "999999999999999")
}

// names are different names, however alike.
var names = []string{"B-1042", "b-1042", "B-1042 ", " B-1042", "B-1042\t", "B-1042\n", "\u00e9", "e\u0301", "B%2D1042", "b'q", `b"q`, `b\q`, "{}", `{"x":1}`, "$$", "a,b", "a/b",
	"x", "c", "\U0001F600", "'; drop table invoices; --", strings.Repeat("n", 500)}

func TestConformance23_24_NamesByteForByte(t *testing.T) {
	d := guarded(t)
	ctx := context.Background()
	app := d.app()
	for i, name := range names {
		tx, err := app.conn.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range names[:i] { // admitted for all others
			if _, err := tx.Exec(ctx, "select fence.enter($1, 42)", "invoices/"+other); err != nil {
				t.Fatal(err)
			}
		}
		_, err = tx.Exec(ctx, "insert into lines values ($1, 1, 1)", name)
		wantState(t, name, err, "TF002")
		tx.Rollback(ctx)

		tx, _ = app.conn.Begin(ctx)
		if _, err := tx.Exec(ctx, "select fence.enter($1, $2)", "invoices/"+name, 42); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, "insert into lines values ($1, 1, 1)", name); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		_, err = app.conn.Exec(ctx, "select fence.enter($1, 41)", "invoices/"+name)
		wantState(t, name, err, "TF001")
	}
	d.want("select count(*)::text from fence.high_water", fmt.Sprint(len(names)))
}

// A collation that holds two names to be equal does not make them one resource.
func TestConformance23_NondeterministicCollation(t *testing.T) {
	d := unguarded(t)
	d.exec(`create collation nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		create table docs (id text collate nocase, v int); grant all on docs to app; insert into docs values ('a', 0);
		create table cased (id int, name text collate nocase); grant all on cased to app; insert into cased values (1, 'a')`)
	d.install(t, postgres.InstallOptions{Table: "docs", Resource: "id"})
	d.install(t, postgres.InstallOptions{Table: "cased", Resource: "'n/' || name"})
	app := d.app()
	app.fails("begin; select fence.enter('A', 42); update docs set v = 1 where id = 'a'", "TF002")
	app.fails("begin; select fence.enter('n/a', 42); update cased set name = 'A'", "TF002")
	app.fails("begin; select fence.enter('n/A', 42); update cased set name = 'A'", "TF002")
	app.ok("begin; select fence.enter('a' collate nocase, 42); update docs set v = 1; commit")
	app.fails(`begin; select fence.enter('a' collate "de-x-icu", 41)`, "TF001")
}

func TestConformance45_SavepointTakesTheClaimBack(t *testing.T) {
	d := guarded(t)
	app := d.app()
	app.fails("begin; savepoint s; "+enter(42)+"rollback to s; "+set(1), "TF002")
	app.ok("begin; savepoint s; " + enter(42) + "release s; " + set(1) + "commit")
	app.ok("begin; " + enter(42) + "savepoint s; " + set(2) + "rollback to s; " + set(3) + "commit")
	d.want("select amount::text from invoices where id = 'A'", "3")
	// Also the lock stays that the transaction had before the savepoint.
	a, b := d.app(), d.app()
	a.ok("begin; " + enter(42) + "savepoint s; " + enter(42) + set(4) + "rollback to s")
	r := b.start("begin; " + enter(43) + "commit").blocked()
	a.ok("commit")
	r.ok()
}

func TestConformance46_SwallowedErrors(t *testing.T) {
	d := guarded(t)
	app := d.app()
	app.ok("begin; " + enter(42) + "commit")
	app.ok(`do $$ begin perform fence.enter('invoices/A', 41); exception when others then null; end; $$`)
	app.ok(`do $$ begin begin update invoices set amount = 9 where id = 'A'; exception when others then null; end; end $$`)
	// The swallowed enter has left no claim behind.
	app.fails(`begin; do $$ begin perform fence.enter('invoices/A', 41); exception when others then null; end; $$; `+set(9), "TF002")
	d.want("select amount::text from invoices where id = 'A'", "0")
}

// A claim that was put into the session, and not into a transaction, meets
// another client behind a pooler.
func TestConformance43_ClaimLeftInTheSession(t *testing.T) {
	d := guarded(t)
	d.exec(forging)
	app := d.app()
	app.ok("begin; " + enter(42) + "commit")
	app.ok(`begin; ` + enter(42) + `select set_config(fence_slot('invoices/A'), current_setting(fence_slot('invoices/A')), false); commit`)
	app.fails("begin; "+set(9), "TF002")
	app.fails(set(9), "TF002")
	app.ok("begin; " + enter(42) + set(1) + "commit")
	// What is no claim at all is an error, and no way in.
	app.ok(`select set_config(fence_slot('invoices/A'), 'rubbish', false)`)
	app.fails("begin; "+set(9), "22P02")
	// SET LOCAL outside a transaction sets nothing, and leaves '' behind.
	other := d.app()
	other.ok(`select set_config(fence_slot('invoices/A'), '{"x":"1","c":{"invoices/A":42}}', true)`)
	other.fails(set(9), "TF002")
}

func TestConformance55_EveryRefusalSaysWhat(t *testing.T) {
	d := guarded(t)
	d.exec(forging)
	app := d.app()
	app.ok("begin; " + enter(42) + "commit")
	for _, c := range []struct{ sql, state, message, detail, table string }{
		{enter(41), "TF001", "fence stale token=41 high_water=42 resource=invoices/A", `{"resource" : "invoices/A", "token" : 41, "high_water" : 42}`, ""},
		{forge("invoices/A", 41) + set(1), "TF001", "fence stale token=41 high_water=42 resource=invoices/A", `{"resource" : "invoices/A", "token" : 41, "high_water" : 42}`, "public.invoices"},
		{set(1), "TF002", "fence unclaimed resource=invoices/A", `{"resource" : "invoices/A", "token" : null, "high_water" : null}`, "public.invoices"},
		{"insert into lines values ('A\"}', 1, 1)", "TF002", `fence unclaimed resource=invoices/A"}`, `{"resource" : "invoices/A\"}", "token" : null, "high_water" : null}`, "public.lines"},
		{"truncate lines", "TF005", "fence refused: TRUNCATE of public.lines touches every resource", `{"resource" : null, "token" : null, "high_water" : null}`, "public.lines"},
	} {
		e := app.fails("begin; "+c.sql, c.state)
		if e.Message != c.message || e.Detail != c.detail || e.TableName != c.table || e.Hint == "" || e.SchemaName != "fence" {
			t.Errorf("%s: message %q, detail %q, table %q, hint %q", c.sql, e.Message, e.Detail, e.TableName, e.Hint)
		}
	}
}

// The name that counts is the one that the row has in the end.
func TestTheRowAsItWasWritten(t *testing.T) {
	d := unguarded(t)
	d.exec(`
		create table g (id int, kind text, name text generated always as (kind || '/' || id) stored, v int);
		create table b (id text, v int);
		create function zz() returns trigger language plpgsql as $$ begin new.id := upper(new.id); return new; end $$;
		create function skip() returns trigger language plpgsql as $$ begin return null; end $$;
		grant all on g, b to app;`)
	d.install(t, postgres.InstallOptions{Table: "g", Resource: "name"})
	d.install(t, postgres.InstallOptions{Table: "b", Resource: "id"})
	d.exec("create trigger zz before insert or update on b for each row execute function zz()")
	app := d.app()
	app.ok("begin; select fence.enter('inv/1', 1); insert into g values (1, 'inv'); commit")
	app.fails("begin; select fence.enter('inv/1', 1); update g set id = 2", "TF002")
	app.fails("begin; select fence.enter('a', 1); insert into b values ('a')", "TF002")
	app.ok("begin; select fence.enter('A', 1); insert into b values ('a'); commit")
	// A row that another trigger keeps from being written needs no token.
	d.exec("create trigger zzz before update on b for each row execute function skip()")
	app.ok("update b set v = 1")
	d.want("select count(*)::text from b where v = 1", "0")
}

func TestRowWithoutAName(t *testing.T) {
	d := unguarded(t)
	d.exec("create table n (id text, v int); grant all on n to app; insert into n values (null, 0)")
	r := d.install(t, postgres.InstallOptions{Table: "n", Resource: "'n/' || id"})
	if len(r.Samples) != 1 || r.Samples[0] != "" {
		t.Errorf("samples %q: an empty one must stand for the row without a name", r.Samples)
	}
	app := d.app()
	app.fails("begin; select fence.enter('n/1', 1); insert into n values (null)", "TF002")
	app.fails("update n set v = 1", "TF002")
	app.fails("begin; select fence.enter('n/1', 1); update n set id = '1'", "TF002")
}

// A transaction with thousands of claims: none is lost, and the server's lock
// table is not filled.
func TestThousandsOfClaims(t *testing.T) {
	d := guarded(t)
	app := d.app()
	const many = `begin; select fence.enter_many((select jsonb_object_agg('invoices/n' || g, %d) from generate_series(1, 3000) g));
		insert into lines select 'n' || g, %[1]d, 0 from generate_series(1, 3000) g; `
	app.ok(fmt.Sprintf(many, 41) + "commit")
	app.ok(fmt.Sprintf(many, 42))
	d.want("select (count(*) <= 64)::text from pg_locks where locktype = 'advisory' and pid = "+itoa(app.conn.PgConn().PID()), "true")
	app.ok("commit; " + strings.Replace(fmt.Sprintf(many, 42), ", 42, 0", ", 43, 0", 1))
	d.want("select (count(*) <= 64)::text from pg_locks where locktype = 'advisory' and pid = "+itoa(app.conn.PgConn().PID()), "true")
	app.ok("commit")
	d.want("select count(*)::text from lines where invoice like 'n%'", "9000")
	app.fails("begin; select fence.enter('invoices/n2999', 41)", "TF001")
}
