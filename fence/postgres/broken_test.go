package postgres_test

import (
	"testing"
)

// Designs that look right, each with the order of events in which a write of 41
// wins over an accepted one of 42. They are why the guard is as it is; if one of
// them stops failing here, PostgreSQL has changed.
func TestBrokenDesigns(t *testing.T) {
	const marks = `
		drop table if exists mark, doc cascade;
		create table mark (resource text primary key, token bigint not null);
		insert into mark values ('A', 41);
		create table doc (id text primary key, v int, tok bigint);
		insert into doc values ('A', 0, 41);
		grant all on mark, doc to app;
		create or replace function check_token(t bigint) returns void language plpgsql as $$ begin
			if t < (select token from mark where resource = 'A') then raise 'stale' using errcode = 'TF001'; end if; end $$;
		create or replace function check_key_share(t bigint) returns void language plpgsql as $$ begin
			perform from mark where resource = 'A' and token <= t for key share;
			if not found then raise 'stale' using errcode = 'TF001'; end if; end $$;
		create or replace function check_advisory(t bigint) returns void language plpgsql as $$ begin
			perform pg_advisory_xact_lock(1);
			if t < (select token from mark where resource = 'A') then raise 'stale' using errcode = 'TF001'; end if; end $$;`
	shared := unguarded(t)
	wins := func(d *database, won string) {
		d.t.Helper()
		if got := d.text("select v::text from doc where id = 'A'"); got != won {
			d.t.Errorf("the late write did not win: the value is %s", got)
		}
	}
	for _, c := range []struct {
		name string
		run  func(d *database, a, b *session)
	}{
		{"a plain SELECT of the mark before the write", func(d *database, a, b *session) {
			a.ok("begin; select check_token(41)")
			b.ok("begin; select check_token(42); update mark set token = 42; update doc set v = 42; commit")
			a.ok("update doc set v = 41; commit")
			wins(d, "41")
		}},
		{"the check in a transaction of its own", func(d *database, a, b *session) {
			a.ok("begin; select token from mark where token <= 41 for share; commit")
			b.ok("begin; update mark set token = 42; update doc set v = 42; commit")
			a.ok("begin; update doc set v = 41; commit")
			wins(d, "41")
		}},
		{"FOR KEY SHARE, which a raise does not wait for", func(d *database, a, b *session) {
			a.ok("begin; select check_key_share(41)")
			b.ok("begin; update mark set token = 42; update doc set v = 42; commit")
			a.ok("update doc set v = 41; commit")
			wins(d, "41")
		}},
		{"an advisory lock and an old snapshot", func(d *database, a, b *session) {
			a.ok("begin isolation level repeatable read; select 1 from mark")
			b.ok("begin; select check_advisory(42); update mark set token = 42; commit")
			a.ok("select check_advisory(41); update doc set v = 41; commit")
			wins(d, "41")
		}},
		{"a token column in the row, and a path that forgets it", func(d *database, a, b *session) {
			b.ok("update doc set v = 42, tok = 42 where id = 'A' and tok <= 42")
			a.ok("update doc set v = 41 where id = 'A'")
			wins(d, "41")
		}},
		{"a token column in the row, and the row deleted", func(d *database, a, b *session) {
			b.ok("delete from doc where id = 'A' and tok <= 42")
			a.ok("insert into doc values ('A', 41, 41) on conflict (id) do update set v = 41, tok = 41 where doc.tok <= 41")
			wins(d, "41")
		}},
		{"a statement trigger on the partitioned table", func(d *database, a, b *session) {
			d.exec(`create table p (id text, y int) partition by list (y); create table p_1 partition of p for values in (1); grant all on p, p_1 to app;
				create or replace function refuse() returns trigger language plpgsql as $$ begin raise 'stale' using errcode = 'TF001'; end $$;
				create trigger t before insert on p for each statement execute function refuse()`)
			a.fails("insert into p values ('A', 1)", "TF001")
			a.ok("insert into p_1 values ('A', 1)")
		}},
		{"a trigger that is not ENABLE ALWAYS", func(d *database, a, b *session) {
			d.exec(`create or replace function refuse() returns trigger language plpgsql as $$ begin raise 'stale' using errcode = 'TF001'; end $$;
				create trigger t after update on doc for each row execute function refuse()`)
			a.fails("update doc set v = 41", "TF001")
			a.ok("begin; set local session_replication_role = replica; update doc set v = 41; commit")
			wins(d, "41")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &database{t, shared.name, shared.admin}
			d.exec(marks)
			c.run(d, d.app(), d.app())
		})
	}
	t.Run("a share lock that is upgraded: two transactions of the new holder", func(t *testing.T) {
		d := &database{t, shared.name, shared.admin}
		d.exec(marks)
		a, b := d.app(), d.app()
		const check = "begin; select token from mark where resource = 'A' for share"
		a.ok(check)
		b.ok(check)
		r := a.start("update mark set token = 42").blocked()
		err := b.try("update mark set token = 42")
		if other := r.ends(); state(err) != "40P01" && state(other) != "40P01" {
			t.Errorf("no deadlock: %v, %v", err, other)
		}
	})
	t.Run("a plain queue: writers of the old token overlap for ever", func(t *testing.T) {
		d := &database{t, shared.name, shared.admin}
		d.exec(marks)
		a, b, c := d.app(), d.app(), d.app()
		a.ok("begin; select token from mark where resource = 'A' for share")
		r := b.start("update mark set token = 42").blocked()
		for range 3 { // each comes after the raise, and is let in before it
			c.ok("begin; select token from mark where resource = 'A' for share")
			a.ok("commit")
			r.blocked()
			a, c = c, a
		}
		a.ok("commit")
		r.ok()
	})
}
