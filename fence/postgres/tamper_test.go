package postgres_test

import (
	"context"
	"testing"

	"github.com/highwater/highwater/fence"
	"github.com/highwater/highwater/fence/postgres"
)

func TestConformance39_40_WritersCannotTouchTheGuard(t *testing.T) {
	d := guarded(t)
	app := d.app()
	app.ok("begin; " + enter(42) + "commit")
	for _, sql := range []string{
		"update fence.high_water set token = 1", "delete from fence.high_water", "truncate fence.high_water",
		"insert into fence.high_water (resource, token) values ('x', 1)",
		"update fence.settings set least = 1", "delete from fence.protected", "insert into fence.report_queue values ('x', 'x', 'x', now())",
		"select fence.raise('invoices/A', 999)", "select fence.protect('plain', 'id')", "select fence.unprotect('public.invoices')",
		"select fence._enter('invoices/A', 43, null)", "select fence._admit('invoices/A', 43, null, false)", "select fence._check('invoices/A', 1, true)",
		"alter table invoices disable trigger all", "drop trigger fence_row on invoices", "alter table fence.high_water disable trigger all",
		"create or replace function fence.enter(resource text, token bigint, holder text default null) returns bigint language sql as $$ select 1::bigint $$",
		"drop function fence.enter", "alter event trigger fence_ddl disable", "drop event trigger fence_drop", "drop schema fence cascade", "alter schema fence rename to f",
		"create function fence.x() returns int language sql as $$ select 1 $$", "set role fence_owner",
	} {
		app.fails(sql, "42501")
	}
	d.wantMark("invoices/A", "42")
	d.wantSound(fence.LevelEnforced)
	// Nor call the guard on a table of one's own to find out or to lock anything.
	app.ok("create temp table mine (id text, amount int, customer text, note text)")
	fn := d.text("select fn from fence.protected where relname = 'public.invoices'")
	app.ok("create trigger t after insert on mine for each row execute function " + fn + "()")
	app.fails("insert into mine values ('A')", "TF002")
}

// wantSound demands that the guards stand, at a level.
func (d *database) wantSound(level fence.Level) postgres.Inspection {
	d.t.Helper()
	r, err := postgres.Verify(context.Background(), d.admin)
	if err != nil {
		d.t.Fatal(err)
	}
	if r.Level != level {
		d.t.Errorf("level %q, want %q: %v", r.Level, level, r.Findings)
	}
	return r
}

// Conformance 41 and 42: the owner of the tables, who may do anything to them,
// cannot take a guard off, nor lead writes around it.
func TestConformance41_TheTablesOwner(t *testing.T) {
	d := guarded(t)
	owner := d.as("tabowner")
	for _, sql := range []string{
		"alter table invoices disable trigger fence_row", "alter table invoices disable trigger user", "alter table invoices enable trigger fence_row",
		"alter table invoices enable replica trigger fence_row", "alter trigger fence_row on invoices rename to x", "drop trigger fence_row on invoices",
		"alter table invoices disable trigger fence_truncate", "drop trigger fence_truncate on parts_1",
		"create or replace trigger fence_row after insert on invoices for each row execute function suppress_redundant_updates_trigger()",
		"alter table invoices rename to old", "alter table invoices set schema mine", "alter view invoices rename to old",
		"alter table invoices rename to old; create table invoices (like old)",
		"drop table invoices", "drop table lines cascade", "drop table parts_1", "drop table parts",
		"alter table parts detach partition parts_1", "alter table only parts disable trigger fence_row", "alter table parts_1 disable trigger fence_row",
		"alter table invoices alter amount type text using 'x'", "alter table invoices alter id type varchar(2) using 'X'", "alter table invoices set unlogged",
		"alter table invoices add w float default random()",
		"alter table invoices rename id to ident", "alter table lines drop column invoice", "alter table invoices drop column id",
		"create table heir () inherits (invoices)", "create unlogged table parts_3 partition of parts for values in (3)",
		"drop schema public cascade", "drop owned by tabowner", "reassign owned by tabowner to app; set session_replication_role = replica; drop trigger fence_row on invoices",
		"alter function fence._check(text, oid, boolean) owner to tabowner", "drop function fence._no_truncate() cascade",
	} {
		owner.fails("begin; create schema if not exists mine; "+sql+"; commit", "TF006", "42501", "2BP01")
	}
	d.wantSound(fence.LevelEnforced)
	app := d.app()
	app.fails("update invoices set amount = 9", "TF002")

	// What does no harm is let through.
	owner.ok(`alter table invoices add column extra text; alter table invoices add column n int default 5; alter table invoices drop column extra;
		create index on invoices (amount); alter table invoices add check (amount < 1000); comment on table invoices is 'x'; analyze invoices; cluster invoices using invoices_pkey;
		create table other (); drop table other; alter table invoices rename amount to sum; alter table invoices rename sum to amount; create temp table tmp (x int); drop table tmp`)
	d.wantSound(fence.LevelEnforced)
}

func TestConformance42_NewPartitions(t *testing.T) {
	d := guarded(t)
	owner, app := d.as("tabowner"), d.app()
	owner.ok(`create table parts_3 partition of parts for values in (3);
		create table parts_4 (id text not null, y int not null, v int); grant all on parts_4 to app`)
	app.ok("insert into parts_4 values ('A', 4, 0)") // not yet a part of it
	owner.ok(`alter table parts attach partition parts_4 for values in (4);
		create table parts_5 partition of parts for values in (5, 6) partition by list (y);
		create table parts_56 partition of parts_5 for values in (6);
		grant all on parts_3, parts_5, parts_56 to app`)
	for i, table := range []string{"parts", "parts_3", "parts_4", "parts_5", "parts_56"} {
		insert := "insert into " + table + " values ('A', " + itoa([]uint32{1, 3, 4, 6, 6}[i]) + ", 9)"
		app.fails(insert, "TF002")
		app.ok("begin; " + enter(42) + insert + "; commit")
		app.fails("update "+table+" set v = 1", "TF002")
		owner.fails("truncate "+table, "TF005")
		owner.fails("set session_replication_role = default; alter table "+table+" disable trigger fence_row", "TF006", "42501")
	}
	owner.fails("alter table parts detach partition parts_3", "TF006")
	d.want("select count(*)::text from fence.protected where root = 'parts'::regclass", "7")
	r := d.wantSound(fence.LevelEnforced)
	for _, table := range r.Tables {
		if table.Name == "public.parts" && table.Partitions != 6 {
			t.Errorf("%d partitions, want 6", table.Partitions)
		}
	}
}

// A superuser can take the defence down. Verify says so, and Install repairs it.
func TestSuperuserTampering(t *testing.T) {
	shared := guarded(t)
	for _, c := range []struct{ name, sql string }{
		{"row trigger", "alter table invoices disable trigger fence_row"},
		{"row trigger, origin", "alter table invoices enable trigger fence_row"},
		{"row trigger dropped", "drop trigger fence_row on invoices"},
		{"other function", "drop trigger fence_row on invoices; create trigger fence_row after insert or update or delete on invoices for each row execute function suppress_redundant_updates_trigger(); alter table invoices enable always trigger fence_row"},
		{"not every event", "drop trigger fence_row on invoices; do $$ begin execute 'create trigger fence_row after insert on invoices for each row execute function ' || (select fn from fence.protected where rel = 'invoices'::regclass) || '()'; end $$; alter table invoices enable always trigger fence_row"},
		{"truncate trigger", "drop trigger fence_truncate on invoices"},
		{"table renamed", "alter table invoices rename to old"},
		{"partition detached", "alter table parts detach partition parts_1"},
		{"unguarded partition", "alter table parts detach partition parts_1; delete from fence.protected where relname = 'public.parts_1'; drop trigger fence_truncate on parts_1; alter table parts attach partition parts_1 for values in (1)"},
		{"column renamed", "alter table invoices rename id to ident"},
		{"marks can be lowered", "alter table fence.high_water disable trigger fence_never_lower"},
		{"guard function is off", "do $$ begin execute 'drop function ' || (select fn from fence.protected where rel = 'invoices'::regclass) || '() cascade'; end $$"},
		{"table gone", "drop table invoices cascade"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &database{t, shared.name, shared.admin}
			d.exec("begin; alter event trigger fence_ddl disable; alter event trigger fence_drop disable; alter event trigger fence_rewrite disable; " + c.sql + "; " +
				"alter event trigger fence_ddl enable always; alter event trigger fence_drop enable always; alter event trigger fence_rewrite enable always; commit")
			d.wantSound(fence.LevelNone)
			// From now on every DDL command in the database says so.
			if c.name != "marks can be lowered" && c.name != "unguarded partition" {
				d.as("postgres").fails("create table x ()", "TF006")
			}
			switch c.name {
			case "table renamed":
				d.exec("alter event trigger fence_ddl disable; alter table old rename to invoices; alter event trigger fence_ddl enable always")
			case "column renamed":
				d.exec("alter event trigger fence_ddl disable; alter table invoices rename ident to id; alter event trigger fence_ddl enable always")
			case "partition detached":
				d.exec("alter event trigger fence_ddl disable; alter table parts attach partition parts_1 for values in (1); alter event trigger fence_ddl enable always")
			case "table gone":
				if err := postgres.Uninstall(context.Background(), d.admin, "public.invoices", false); err != nil {
					t.Fatal(err)
				}
				d.wantSound(fence.LevelEnforced)
				return
			}
			for _, g := range guards {
				d.install(t, g)
			}
			d.wantSound(fence.LevelEnforced)
			d.app().fails("update invoices set amount = 9", "TF002")
		})
	}
}

// No role lowers a mark, not even one that may write every table, or anything.
func TestMarksNeverFall(t *testing.T) {
	d := guarded(t)
	d.app().ok("begin; " + enter(42) + "commit")
	for _, role := range []string{"postgres", "writer"} {
		if role == "writer" {
			d.exec("drop role if exists writer; create role writer login in role pg_write_all_data, pg_read_all_data")
		}
		s := d.as(role)
		for _, sql := range []string{"update fence.high_water set token = 41", "delete from fence.high_water", "update fence.high_water set resource = 'x'",
			"insert into fence.high_water (resource, token) values ('invoices/A', 1) on conflict (resource) do update set token = 1"} {
			s.fails(sql, "TF006")
		}
	}
	d.as("postgres").fails("truncate fence.high_water", "TF006")
	d.as("postgres").fails("begin; set local session_replication_role = replica; update fence.high_water set token = 41", "TF006")
	d.wantMark("invoices/A", "42")
	r := d.wantSound(fence.LevelWhilePrivileges)
	if !finds(r, postgres.Weakens, "writer", "may write fence.high_water") {
		t.Errorf("findings %v", r.Findings)
	}
	d.exec("drop role writer")
}
