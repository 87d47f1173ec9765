package postgres_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/highwater/highwater/fence"
	"github.com/highwater/highwater/fence/postgres"
)

func TestConformance09_10_11_RestartAndCrash(t *testing.T) {
	d := guarded(t)
	app := d.app()
	app.ok("begin; " + enter(42) + set(42) + "commit")
	app.ok("begin; select fence.enter('invoices/B', 42); commit") // a mark without data
	check := func() {
		t.Helper()
		*d = database{t, d.name, server.Connect(t, "postgres", d.name)}
		app := d.app()
		app.fails("begin; "+enter(41)+set(41), "TF001")
		app.fails("begin; select fence.enter('invoices/B', 41)", "TF001")
		app.fails(set(41), "TF002")
		d.want("select amount::text from invoices where id = 'A'", "42")
		app.ok("begin; " + enter(42) + set(42) + "commit")
		d.wantSound(fence.LevelEnforced)
	}
	server.Restart(t)
	check()

	// Killed between the answer to 43 and whatever comes next, with a late writer
	// half-way.
	a, b := d.app(), d.app()
	a.ok("begin; select fence.enter('invoices/C', 41); update invoices set amount = 41 where id = 'C'")
	b.ok("begin; " + enter(43) + set(43) + "commit")
	server.Crash(t)
	*d = database{t, d.name, server.Connect(t, "postgres", d.name)}
	d.wantMark("invoices/A", "43")
	d.wantMark("invoices/C", "")
	d.want("select amount::text from invoices where id = 'A'", "43")
	d.app().fails("begin; "+enter(42), "TF001")
}

func TestConformance47_DumpAndRestore(t *testing.T) {
	d := guarded(t)
	d.app().ok("begin; " + enter(42) + set(42) + "commit")
	for _, format := range []string{"custom", "plain"} {
		t.Run(format, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "dump")
			out := server.Run(t, "pg_dump", "-F", format, d.name)
			if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
				t.Fatal(err)
			}
			into := server.Database(t, "")
			server.Feed(t, file, map[string][]string{
				"custom": {"pg_restore", "--exit-on-error", "-d", into},
				"plain":  {"psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", into},
			}[format]...)
			r := &database{t, into, server.Connect(t, "postgres", into)}
			r.wantSound(fence.LevelEnforced)
			app := r.app()
			app.fails("begin; "+enter(41)+set(41), "TF001")
			app.fails("update parts_1 set v = 9", "TF002")
			app.ok("begin; " + enter(42) + set(7) + "commit")
			r.as("tabowner").fails("alter table invoices disable trigger fence_row", "TF006")
			r.as("tabowner").fails("begin; set local session_replication_role = replica; update invoices set amount = 1", "TF002")
			r.install(t, guards[0]) // still to be upgraded
		})
	}
}

// The dump of one table has its triggers but not the schema fence: they cannot be
// made, and the table comes back without a guard. Verify has nothing to say of a
// database that was never guarded but that; into one that is, it does not get.
func TestConformance48_PartialRestore(t *testing.T) {
	d := guarded(t)
	file := filepath.Join(t.TempDir(), "dump")
	out := server.Run(t, "pg_dump", "-F", "custom", "-t", "plain", "-t", "lines", d.name)
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	into := server.Database(t, "")
	server.Feed(t, file, "sh", "-c", "pg_restore -d "+into+" || true") // its errors scroll by
	r := &database{t, into, server.Connect(t, "postgres", into)}
	r.app().ok("update lines set v = 9") // nothing guards it
	if _, err := postgres.Verify(context.Background(), r.admin); err != postgres.ErrNotInstalled {
		t.Errorf("verify: %v, want %v", err, postgres.ErrNotInstalled)
	}
	// Data alone, into the guarded database: rejected, also with triggers disabled.
	out = server.Run(t, "pg_dump", "-F", "custom", "--data-only", "-t", "invoices", d.name)
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, options := range []string{"", "--disable-triggers"} {
		server.Feed(t, file, "sh", "-c", "! pg_restore --exit-on-error "+options+" -d "+d.name)
	}
	d.want("select count(*)::text from invoices", "3")
}

// A database from an older backup takes older tokens, until its marks are
// raised.
func TestConformance51_OlderBackup(t *testing.T) {
	ctx := context.Background()
	d := guarded(t) // the state of the backup: 41
	d.app().ok("begin; " + enter(41) + "commit")
	d.app().ok("begin; " + enter(41) + set(41) + "commit")
	if n, err := postgres.Raise(ctx, d.admin, "", 43); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	app := d.app()
	app.fails("begin; "+enter(42), "TF001")
	e := app.fails("begin; select fence.enter('never seen', 42)", "TF001")
	if e.Message != "fence stale token=42 high_water=43 resource=never seen" {
		t.Errorf("message %q", e.Message)
	}
	app.ok("begin; " + enter(43) + set(43) + "commit")
}

// The authority is the one that was restored: it gives numbers out again.
func TestConformance53_AuthorityRestored(t *testing.T) {
	d := guarded(t)
	app := d.app()
	app.ok("begin; " + enter(42) + "commit")
	app.fails("begin; "+enter(41), "TF001")
	app.fails("begin; select fence.enter('invoices/A', 42, 'someone else')", "TF003")
	floor, err := postgres.Floor(context.Background(), d.admin)
	if err != nil || floor != 42 {
		t.Fatal(floor, err)
	}
	app.ok("begin; select fence.enter('invoices/A', 43, 'someone else'); commit") // above the floor it heals
}

// Rows that logical replication applies were checked where they were written. The
// marks travel with them, and local writers of the copy are checked there.
func TestConformance49_50_LogicalReplication(t *testing.T) {
	from, to := guarded(t), guarded(t)
	from.app().ok("begin; " + enter(42) + set(42) + "commit")
	// The marks that the copy starts with are its own.
	from.exec("create publication p for table invoices, fence.high_water")
	// Both are on one server, so the slot is made first, and by itself.
	from.exec("select pg_create_logical_replication_slot('s_" + to.name + "', 'pgoutput')")
	to.exec("create subscription s connection '" + server.URL(t, "postgres", from.name) + "' publication p with (create_slot = false, slot_name = 's_" + to.name + "', copy_data = false)")
	t.Cleanup(func() {
		to.exec("alter subscription s disable; alter subscription s set (slot_name = none); drop subscription s")
		to.until("select count(*)::text from pg_replication_slots where slot_name = 's_"+to.name+"' and active", "0")
		from.exec("select pg_drop_replication_slot('s_" + to.name + "')")
	})
	from.app().ok("begin; select fence.enter('invoices/N', 43, 'b'); insert into invoices values ('N', 1); update invoices set amount = 2 where id = 'N'; commit")
	to.until("select coalesce((select amount from invoices where id = 'N'), 0)::text", "2")
	to.wantMark("invoices/N", "43")
	app := to.app()
	app.fails("update invoices set amount = 3 where id = 'N'", "TF002")
	app.fails("begin; select fence.enter('invoices/N', 42)", "TF001")
	if r := to.wantSound(fence.LevelEnforced); !finds(r, postgres.Note, "s", "subscription") {
		t.Errorf("findings %v", r.Findings)
	}
	// The copy becomes the original.
	app.ok("begin; select fence.enter('invoices/N', 44); update invoices set amount = 4 where id = 'N'; commit")
}
