package postgres_test

import (
	"testing"
	"time"
)

// The benchmarks run the guarded and the unguarded write in turn, in one
// database, and report the guarded one's time as a multiple of the other's: x.
// Both go to tables of the same shape, with what PostgreSQL's own defaults
// make durable.

const twin = `
	create table free (id text primary key, amount int, customer text references customers, note text);
	create table free_lines (invoice text not null, n int, v int, primary key (invoice, n));
	grant all on free, free_lines to app;
	insert into free select * from invoices`

func compare(b *testing.B, rows int, unguarded, guarded func()) {
	b.Helper()
	unguarded()
	guarded()
	var without, with time.Duration
	for b.Loop() {
		start := time.Now()
		unguarded()
		middle := time.Now()
		guarded()
		without += middle.Sub(start)
		with += time.Since(middle)
	}
	n := float64(b.N * rows)
	b.ReportMetric(float64(with)/float64(without), "x")
	b.ReportMetric(float64(without.Microseconds())/n, "free-µs")
	b.ReportMetric(float64(with.Microseconds())/n, "guarded-µs")
	b.ReportMetric(0, "ns/op") // it would be the sum of both
}

// One short transaction: a client that sends its statements one by one, and one
// that sends them together.
func BenchmarkTransaction(b *testing.B) {
	for _, c := range []struct{ name, commit string }{{"durable", "on"}, {"not durable", "off"}} {
		b.Run(c.name, func(b *testing.B) {
			d := guarded(b)
			d.exec(twin)
			app := d.app()
			app.ok("set synchronous_commit = " + c.commit)
			run := func(statements ...string) func() {
				return func() {
					for _, sql := range statements {
						app.ok(sql)
					}
				}
			}
			const free, guarded = "update free set amount = amount + 1 where id = 'A'", "update invoices set amount = amount + 1 where id = 'A'"
			b.Run("one by one", func(b *testing.B) {
				compare(b, 1, run("begin", free, "commit"), run("begin", enter(42), guarded, "commit"))
			})
			b.Run("together", func(b *testing.B) {
				compare(b, 1, run("begin; "+free+"; commit"), run("begin; "+enter(42)+guarded+"; commit"))
			})
		})
	}
}

// Many rows in one statement; the figures are for one row.
func BenchmarkRows(b *testing.B) {
	const rows = 10_000
	d := guarded(b)
	d.exec(twin)
	app := d.app()
	insert := func(table string) string {
		return "insert into " + table + " select 'A', g + 100, 0 from generate_series(1, 10000) g; "
	}
	b.Run("insert", func(b *testing.B) {
		compare(b, rows, func() { app.ok("begin; " + insert("free_lines") + "rollback") },
			func() { app.ok("begin; " + enter(42) + insert("lines") + "rollback") })
	})
	app.ok("begin; " + enter(42) + insert("lines") + insert("free_lines") + "commit")
	b.Run("update", func(b *testing.B) {
		compare(b, rows, func() { app.ok("begin; update free_lines set v = v + 1; rollback") },
			func() { app.ok("begin; " + enter(42) + "update lines set v = v + 1; rollback") })
	})
}
