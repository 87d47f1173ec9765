package postgres_test

import (
	"fmt"
	"testing"
)

// levels are the isolation levels. Under the last two, a transaction whose
// snapshot is older than what it meets ends in 40001, and its repetition is told
// what a new transaction is told.
var levels = []string{"read committed", "repeatable read", "serializable"}

func eachLevel(t *testing.T, test func(t *testing.T, d *database, begin string, rc bool)) {
	shared := guarded(t)
	for _, level := range levels {
		t.Run(level, func(t *testing.T) {
			d := &database{t, shared.name, shared.admin}
			d.reset()
			test(t, d, "begin isolation level "+level+"; ", level == levels[0])
		})
	}
}

func enter(token int) string {
	return fmt.Sprintf("select fence.enter('invoices/A', %d, 'h%[1]d'); ", token)
}

const write = "update invoices set amount = %d where id = 'A'; "

func set(amount int) string { return fmt.Sprintf(write, amount) }

// stale is what a late token is told: at once, or by the repetition.
func stale(s *session, r *running, again string, rc bool) {
	s.d.t.Helper()
	err := r.ends()
	s.try("rollback")
	if !rc && state(err) == "40001" {
		err = s.try(again)
		s.try("rollback")
	}
	wantState(s.d.t, r.sql, err, "TF001")
}

// 41 is at work, having raised the mark, when 42 comes.
func TestConformance25_RaiseWaitsForTheOlderWriter(t *testing.T) {
	eachLevel(t, func(t *testing.T, d *database, begin string, rc bool) {
		a, b := d.app(), d.app()
		a.ok(begin + enter(41) + set(41))
		r := b.start(begin + enter(42) + set(42) + "commit").blocked()
		a.ok("commit")
		err := r.ends()
		if !rc && state(err) == "40001" {
			b.try("rollback")
			err = b.try(begin + enter(42) + set(42) + "commit")
		}
		wantState(t, "42", err, "")
		d.want("select amount::text from invoices where id = 'A'", "42")
		d.wantMark("invoices/A", "42")
	})
}

// 41 is at work under a mark that was 41 already: it holds only a share lock.
func TestConformance26_RaiseWaitsForAnEqualOlderWriter(t *testing.T) {
	eachLevel(t, func(t *testing.T, d *database, begin string, rc bool) {
		a, b := d.app(), d.app()
		a.ok(begin + enter(41) + "commit")
		a.ok(begin + enter(41))
		r := b.start(begin + enter(42) + "commit").blocked()
		a.ok(set(41) + "commit")
		// A lock leaves the row as it is, so there is no 40001 here.
		wantState(t, "42", r.ends(), "")
		d.wantMark("invoices/A", "42")
		a.fails(begin+enter(41), "TF001")
	})
}

// A transaction stands in the queue once for each setting that claims are kept in.
// For a second name in one setting the lock on the mark alone must do.
func TestConformance26_WithoutThePlaceInTheQueue(t *testing.T) {
	eachLevel(t, func(t *testing.T, d *database, begin string, rc bool) {
		other := d.text(`select n from (select 'other/' || g as n from generate_series(1, 10000) g) x where fence._slot(n) = fence._slot('invoices/A') limit 1`)
		a, b := d.app(), d.app()
		first := begin + "select fence.enter('" + other + "', 1); " + enter(41)
		a.ok(first + "commit")
		a.ok(first)
		r := b.start(begin + enter(42) + "commit").blocked()
		a.ok(set(41) + "commit")
		wantState(t, "42", r.ends(), "")
		a.fails(begin+enter(41), "TF001")
	})
}

// A claim made by hand of the token that is current is taken for one: guards stop
// late writers, not malicious ones. It too is in flight until it has ended, and
// it too is found out when it is late.
func TestConformance44_ForgedClaimOfTheCurrentToken(t *testing.T) {
	eachLevel(t, func(t *testing.T, d *database, begin string, rc bool) {
		d.exec(forging)
		a, b, c := d.app(), d.app(), d.app()
		a.ok("begin; " + enter(41) + "commit")
		a.ok(begin + forge("invoices/A", 41) + set(41))
		c.ok(begin + "select count(*) from customers")
		r := b.start("begin; " + enter(42) + "commit").blocked()
		a.ok("commit")
		r.ok()
		again := begin + forge("invoices/A", 41) + "insert into lines values ('A', 10, 1)"
		stale(c, c.start(forge("invoices/A", 41)+"insert into lines values ('A', 10, 1)"), again, rc)
	})
}

func TestConformance27_OlderTokenWaitsAndIsStale(t *testing.T) {
	for _, known := range []bool{true, false} { // whether the resource has a mark
		t.Run(fmt.Sprintf("mark %v", known), func(t *testing.T) {
			eachLevel(t, func(t *testing.T, d *database, begin string, rc bool) {
				a, b := d.app(), d.app()
				if known {
					b.ok("begin; " + enter(40) + "commit")
				}
				b.ok(begin + enter(42) + set(42))
				again := begin + enter(41) + set(41) + "commit"
				r := a.start(again).blocked()
				b.ok("commit")
				stale(a, r, again, rc)
				d.want("select amount::text from invoices where id = 'A'", "42")
			})
		})
	}
}

func TestConformance28_RolledBackRaiseNeverWas(t *testing.T) {
	eachLevel(t, func(t *testing.T, d *database, begin string, rc bool) {
		a, b := d.app(), d.app()
		b.ok("begin; " + enter(40) + "commit")
		b.ok(begin + enter(42) + set(42))
		r := a.start(begin + enter(41) + set(41) + "commit").blocked()
		b.ok("rollback")
		r.ok()
		d.wantMark("invoices/A", "41")
		b.ok(begin + enter(42) + set(42) + "commit")
		d.want("select amount::text from invoices where id = 'A'", "42")
	})
}

// 42 came and went without a write, and the snapshot of 41 is from before.
func TestConformance29_OldSnapshotIsStale(t *testing.T) {
	eachLevel(t, func(t *testing.T, d *database, begin string, rc bool) {
		a, b := d.app(), d.app()
		a.ok("begin; " + enter(41) + "commit")
		a.ok(begin + "select count(*) from customers")
		b.ok("begin; " + enter(42) + "commit")
		again := begin + enter(41) + set(41)
		stale(a, a.start(enter(41)+set(41)), again, rc)
		d.want("select amount::text from invoices where id = 'A'", "0")
	})
}

// The same, and 41 was admitted before its statement that writes began; then 42
// cannot have come.
func TestConformance32_NobodyComesBetweenCheckAndCommit(t *testing.T) {
	eachLevel(t, func(t *testing.T, d *database, begin string, rc bool) {
		a, b := d.app(), d.app()
		a.ok("begin; " + enter(41) + "commit")
		a.ok(begin + enter(41))
		r := b.start("begin; " + enter(42) + "commit").blocked()
		a.ok(set(41))
		a.ok("commit")
		r.ok()
		d.want("select amount::text from invoices where id = 'A'", "41")
		a.fails(begin+enter(41), "TF001")
	})
}

func TestConformance30_FirstMarkRace(t *testing.T) {
	eachLevel(t, func(t *testing.T, d *database, begin string, rc bool) {
		a, b := d.app(), d.app()
		a.ok(begin + enter(41))
		r := b.start(begin + enter(42) + "commit").blocked()
		a.ok("commit")
		err := r.ends()
		if !rc && state(err) == "40001" {
			b.try("rollback")
			err = b.try(begin + enter(42) + "commit")
		}
		wantState(t, "42", err, "")
		d.wantMark("invoices/A", "42")
	})
}

func TestConformance31_OneHolderInParallel(t *testing.T) {
	eachLevel(t, func(t *testing.T, d *database, begin string, rc bool) {
		a, b := d.app(), d.app()
		a.ok("begin; " + enter(42) + "commit")
		a.ok(begin + enter(42) + "insert into lines values ('A', 10, 1)")
		b.ok(begin + enter(42) + "insert into lines values ('A', 11, 1)")
		a.ok("insert into lines values ('A', 12, 1); commit")
		b.ok("insert into lines values ('A', 13, 1); commit")
		d.want("select count(*)::text from lines where n >= 10", "4")
	})
}

// Two transactions of the new holder that both find the older mark: one raises,
// the other follows. A share lock that is upgraded would deadlock here.
func TestConformance31_BothRaise(t *testing.T) {
	eachLevel(t, func(t *testing.T, d *database, begin string, rc bool) {
		a, b := d.app(), d.app()
		a.ok("begin; " + enter(41) + "commit")
		a.ok(begin + enter(42) + "insert into lines values ('A', 10, 1)")
		again := begin + enter(42) + "insert into lines values ('A', 11, 1); commit"
		r := b.start(again).blocked()
		a.ok("commit")
		err := r.ends()
		if !rc && state(err) == "40001" {
			b.try("rollback")
			err = b.try(again)
		}
		wantState(t, "the second", err, "")
		d.want("select count(*)::text from lines where n >= 10", "2")
	})
}

func TestConformance36_BusyAfterTheTimeout(t *testing.T) {
	d := guarded(t)
	d.exec("alter function fence.enter(text, bigint, text) set lock_timeout = '50ms'")
	a, b := d.app(), d.app()
	a.ok("begin; " + enter(41) + set(41))
	e := b.fails("begin; "+enter(42), "55P03")
	if e.Where == "" {
		t.Error("nothing says where the lock timeout struck")
	}
	// The mark and the data are one transaction: who was not admitted has not
	// raised it.
	a.ok("commit")
	d.wantMark("invoices/A", "41")
	b.ok("begin; " + enter(42) + set(42) + "commit")
}

func TestConformance37_PreparedTransactionIsInFlight(t *testing.T) {
	d := guarded(t)
	a, b := d.app(), d.app()
	a.ok("begin; " + enter(41) + set(41) + "prepare transaction 'p-" + d.name + "'")
	r := b.start("begin; " + enter(42) + set(42) + "commit").blocked()
	a.ok("commit prepared 'p-" + d.name + "'")
	r.ok()
	d.want("select amount::text from invoices where id = 'A'", "42")
}

// Without a seal B builds on what it read before A's last write, and A's
// accepted write is lost although no token was stale. With a seal A is rejected.
func TestConformance38_SealBeforeRead(t *testing.T) {
	for _, seal := range []bool{false, true} {
		t.Run(fmt.Sprintf("seal %v", seal), func(t *testing.T) {
			d := guarded(t)
			a, b := d.app(), d.app()
			a.ok("begin; " + enter(41) + set(100) + "commit")
			if seal {
				b.ok("begin; " + enter(42) + "commit")
			}
			read := d.text("select amount::text from invoices where id = 'A'")
			late := a.try("begin; " + enter(41) + "update invoices set amount = amount + 5 where id = 'A'; commit")
			a.try("rollback")
			b.ok("begin; " + enter(42) + "update invoices set amount = " + read + " + 7 where id = 'A'; commit")
			if lost := late == nil; lost == seal {
				t.Errorf("A's write was accepted and lost: %v", lost)
			}
		})
	}
}

func TestConformance56_AThirdResourceIsNotHeldUp(t *testing.T) {
	d := guarded(t)
	a, b, c := d.app(), d.app(), d.app()
	a.ok("begin; " + enter(41))
	r := b.start("begin; " + enter(42) + "commit").blocked()
	c.ok("begin; select fence.enter('invoices/C', 7); update invoices set amount = 7 where id = 'C'; commit")
	a.ok("commit")
	r.ok()
}

// Writers of the old token that overlap for ever do not keep the new one out:
// who comes after the raise stands behind it.
func TestARaiseIsNotStarved(t *testing.T) {
	for _, by := range []string{"enter", "raise"} {
		t.Run(by, func(t *testing.T) {
			d := guarded(t)
			a, b, c := d.app(), d.app(), d.app()
			a.ok("begin; " + enter(41) + "commit")
			a.ok("begin; " + enter(41))
			var r *running
			if by == "enter" {
				r = b.start("begin; " + enter(42) + "commit").blocked()
			} else {
				admin := d.as("postgres")
				r = admin.start("select fence.raise('invoices/A', 42)").blocked()
			}
			late := c.start("begin; " + enter(41)).blocked()
			a.ok(set(41) + "commit")
			r.ok()
			wantState(t, "the later 41", late.ends(), "TF001")
		})
	}
}

// One transaction that goes from 41 to 42 by itself, beside another of 41.
func TestOneTransactionMayRaiseTwice(t *testing.T) {
	d := guarded(t)
	a := d.app()
	a.ok("begin; " + enter(41) + set(1) + enter(42) + set(2) + "commit")
	d.wantMark("invoices/A", "42")
	a.fails("begin; "+enter(42)+enter(41), "TF001")
}
