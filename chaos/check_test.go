package chaos

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/highwater/highwater/lease"
)

var someOfAll = Rules{
	Least: Least{Grants: 50, Renewals: 20, Releases: 20, Reads: 20, Ranges: 20},
	Late:  time.Second,
}

func TestGoodHistoriesPass(t *testing.T) {
	for seed := range uint64(10) {
		records := invented(seed, 8, 2000)
		for _, v := range Check(records, someOfAll) {
			t.Errorf("seed %d: %v", seed, v)
		}
	}
}

// TestPlantedFaults breaks good histories in one place and wants the checker
// of that promise to say so. Each fault is planted in a few places all over the
// history, alone each time.
func TestPlantedFaults(t *testing.T) {
	faults := []struct {
		name      string
		invariant string
		// plant changes records[i] or those around it, and says whether it
		// found what it needs there.
		plant func(records []Record, i int) ([]Record, bool)
	}{
		{"a token twice", "I1", func(rs []Record, i int) ([]Record, bool) {
			j := earlierGrant(rs, i, nil)
			if !granted(rs[i]) || j < 0 {
				return nil, false
			}
			rs[i].Token = rs[j].Token
			return rs, true
		}},
		{"two tokens swapped", "I1", func(rs []Record, i int) ([]Record, bool) {
			j := earlierGrant(rs, i, func(r Record) bool { return r.Return < rs[i].Invoke })
			if !granted(rs[i]) || j < 0 {
				return nil, false
			}
			swapTokens(rs, rs[i].Token, rs[j].Token)
			return rs, true
		}},
		{"a counter that fell back", "I1", func(rs []Record, i int) ([]Record, bool) {
			if !granted(rs[i]) || earlierGrant(rs, i, func(r Record) bool { return r.Return < rs[i].Invoke }) < 0 {
				return nil, false
			}
			swapTokens(rs, rs[i].Token, 1)
			return rs, true
		}},
		{"a second holder", "I2", func(rs []Record, i int) ([]Record, bool) {
			r := &rs[i]
			if r.Op != OpAcquire || r.Code != lease.CodeLeaseHeld || !certainlyHeld(rs, *r) {
				return nil, false
			}
			*r = Record{Client: r.Client, Op: OpAcquire, Name: r.Name, Invoke: r.Invoke, Return: r.Return, Status: 201,
				Outcome: OK, Holder: r.Holder, Token: freshToken(rs, i), TTLMs: inventedTTL, RemainingMs: inventedTTL}
			return rs, true
		}},
		{"a renewal with another token", "I3", func(rs []Record, i int) ([]Record, bool) {
			if rs[i].Op != OpRenew || rs[i].Outcome != OK {
				return nil, false
			}
			rs[i].Answered++
			return rs, true
		}},
		{"a renewal that made a lease", "I3", func(rs []Record, i int) ([]Record, bool) {
			if rs[i].Op != OpRenew || rs[i].Outcome != OK {
				return nil, false
			}
			rs[i].Token, rs[i].Answered = 7, 7
			return rs, true
		}},
		{"a renewal that shortened", "I3", func(rs []Record, i int) ([]Record, bool) {
			r := &rs[i]
			if r.Op != OpRenew || r.Outcome != OK || r.Return-r.Invoke > 20*ms || !grantedJustBefore(rs, *r) {
				return nil, false
			}
			r.RemainingMs, r.TTLMs = 1, 0
			return rs, true
		}},
		{"a lease that ended early, seen by a read", "I4", func(rs []Record, i int) ([]Record, bool) {
			r := &rs[i]
			if r.Op != OpGet || r.Outcome != OK || !certainlyHeld(rs, *r) {
				return nil, false
			}
			*r = Record{Client: r.Client, Op: OpGet, Name: r.Name, Invoke: r.Invoke, Return: r.Return,
				Status: 404, Outcome: Refused, Code: lease.CodeNotHeld}
			return rs, true
		}},
		{"a lease that ended early, seen by its holder", "I4", func(rs []Record, i int) ([]Record, bool) {
			r := &rs[i]
			if r.Op != OpRenew || r.Outcome != OK || !certainlyHeld(rs, *r) {
				return nil, false
			}
			*r = Record{Client: r.Client, Op: OpRenew, Name: r.Name, Token: r.Token, Invoke: r.Invoke, Return: r.Return,
				Status: 410, Outcome: Refused, Code: lease.CodeLeaseLost}
			return rs, true
		}},
		{"more time left than there can be", "I4", func(rs []Record, i int) ([]Record, bool) {
			if rs[i].Op != OpGet || rs[i].Outcome != OK {
				return nil, false
			}
			rs[i].RemainingMs = rs[i].TTLMs + 1
			return rs, true
		}},
		{"a lease that lived on", "I5", func(rs []Record, i int) ([]Record, bool) {
			r := rs[i]
			if !granted(r) || released(rs, r.Token) || renewed(rs, r.Token) {
				return nil, false
			}
			late := r.Return + (inventedTTL+1001)*ms
			return append(rs, Record{Client: "late", Op: OpGet, Name: r.Name, Invoke: late, Return: late + 1, Status: 200,
				Outcome: OK, Token: r.Token, Holder: r.Holder, TTLMs: inventedTTL, RemainingMs: 1}), true
		}},
		{"an acquire answered as not applied, and seen", "I6", func(rs []Record, i int) ([]Record, bool) {
			if rs[i].Op != OpGet || rs[i].Outcome != OK {
				return nil, false
			}
			j := slices.IndexFunc(rs, func(r Record) bool { return r.Holder == rs[i].Holder && granted(r) })
			if j < 0 {
				return nil, false
			}
			rs[j] = Record{Client: rs[j].Client, Op: OpAcquire, Name: rs[j].Name, Holder: rs[j].Holder, TTLMs: inventedTTL,
				Invoke: rs[j].Invoke, Return: rs[j].Return, Status: 503, Outcome: Refused, Code: lease.CodeNoLeader}
			return rs, true
		}},
		{"a release answered as not applied, and applied", "I4", func(rs []Record, i int) ([]Record, bool) {
			r := &rs[i]
			if r.Op != OpRelease || r.Outcome != OK {
				return nil, false
			}
			r.Status, r.Outcome, r.Code = 503, Refused, lease.CodeNoLeader
			free := Record{Client: "later", Op: OpGet, Name: r.Name, Invoke: r.Return + 1, Return: r.Return + 2, Status: 404,
				Outcome: Refused, Code: lease.CodeNotHeld}
			// Only where the lease would otherwise still be held.
			return append(rs, free), certainHold(readStory(rs, &findings{}).lives[r.Name], &free) != nil
		}},
		{"a release answered ok, and not applied", "I6", func(rs []Record, i int) ([]Record, bool) {
			r := rs[i]
			if r.Op != OpRelease || r.Outcome != OK {
				return nil, false
			}
			return append(rs, Record{Client: "later", Op: OpRenew, Name: r.Name, Token: r.Token, Answered: r.Token,
				Invoke: r.Return + 1, Return: r.Return + 2, Status: 200, Outcome: OK, RemainingMs: 1}), true
		}},
		{"a grant that nobody asked for", "I6", func(rs []Record, i int) ([]Record, bool) {
			if rs[i].Op != OpGet || rs[i].Outcome != OK {
				return nil, false
			}
			rs[i].Holder = "nobody"
			return rs, true
		}},
		{"a read of an older holder", "I2", func(rs []Record, i int) ([]Record, bool) {
			r := rs[i]
			j := earlierGrant(rs, i, func(g Record) bool { return g.Name == r.Name })
			if !granted(r) || j < 0 {
				return nil, false
			}
			return append(rs, Record{Client: "later", Op: OpGet, Name: r.Name, Token: rs[j].Token, Holder: rs[j].Holder,
				Invoke: r.Return + 1, Return: r.Return + 2, Status: 200, Outcome: OK, TTLMs: inventedTTL, RemainingMs: 1}), true
		}},
		{"a range that overlaps", "I8", func(rs []Record, i int) ([]Record, bool) {
			if rs[i].Op != OpNext || rs[i].Outcome != OK || rs[i].First == 1 {
				return nil, false
			}
			rs[i].First--
			rs[i].Last--
			return rs, true
		}},
		{"a range that is too short", "I8", func(rs []Record, i int) ([]Record, bool) {
			if rs[i].Op != OpNext || rs[i].Outcome != OK {
				return nil, false
			}
			rs[i].Last--
			return rs, true
		}},
		{"a sequence that fell back", "I8", func(rs []Record, i int) ([]Record, bool) {
			r := rs[i]
			if r.Op != OpNext || r.Outcome != OK {
				return nil, false
			}
			j := slices.IndexFunc(rs, func(o Record) bool {
				return o.Op == OpNext && o.Outcome == OK && o.Name == r.Name && o.Count == r.Count && o.Return < r.Invoke
			})
			if j < 0 {
				return nil, false
			}
			rs[i].First, rs[j].First = rs[j].First, rs[i].First
			rs[i].Last, rs[j].Last = rs[j].Last, rs[i].Last
			return rs, true
		}},
	}
	const places = 10
	good := invented(99, 8, 400)
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			planted := 0
			for i := 0; i < len(good) && planted < places; i++ {
				broken, ok := fault.plant(slices.Clone(good), i)
				if !ok {
					continue
				}
				planted++
				i += len(good) / places / 2 // spread them
				found := Check(broken, Rules{Late: time.Second})
				if !slices.ContainsFunc(found, func(v Violation) bool { return v.Invariant == fault.invariant }) {
					t.Fatalf("planted near record %d, found %v", i, found)
				}
			}
			if planted == 0 {
				t.Fatal("the history has no place for this fault")
			}
		})
	}
}

func granted(r Record) bool { return r.Op == OpAcquire && r.Outcome == OK }

func earlierGrant(rs []Record, i int, also func(Record) bool) int {
	for j := i - 1; j >= 0; j-- {
		if granted(rs[j]) && (also == nil || also(rs[j])) {
			return j
		}
	}
	return -1
}

// swapTokens exchanges two tokens in every record.
func swapTokens(rs []Record, a, b lease.Token) {
	swap := func(t *lease.Token) {
		switch *t {
		case a:
			*t = b
		case b:
			*t = a
		}
	}
	for i := range rs {
		if rs[i].Op != OpNext {
			swap(&rs[i].Token)
			swap(&rs[i].Answered)
			swap(&rs[i].HeldToken)
		}
	}
}

// freshToken lets a planted grant break no other promise: it renumbers all
// later tokens and returns the number that became free.
func freshToken(rs []Record, i int) lease.Token {
	largest := lease.Token(0)
	for _, r := range rs[:i] {
		largest = max(largest, r.Token, r.HeldToken)
	}
	shift := func(t *lease.Token) {
		if *t > largest {
			*t++
		}
	}
	for j := range rs {
		if rs[j].Op != OpNext {
			shift(&rs[j].Token)
			shift(&rs[j].Answered)
			shift(&rs[j].HeldToken)
		}
	}
	return largest + 1
}

func certainlyHeld(rs []Record, r Record) bool {
	s := readStory(rs, &findings{})
	held := certainHold(s.lives[r.Name], &r)
	// The record itself must not be what makes it certain.
	return held != nil && (r.Token == 0 || held.token == r.Token) && r.Return < held.acquire.Invoke+inventedTTL*ms
}

func grantedJustBefore(rs []Record, r Record) bool {
	return slices.ContainsFunc(rs, func(g Record) bool {
		return granted(g) && g.Token == r.Token && g.Return < r.Invoke && r.Return < g.Invoke+inventedTTL/2*ms
	})
}

func released(rs []Record, t lease.Token) bool {
	return slices.ContainsFunc(rs, func(r Record) bool { return r.Op == OpRelease && r.Token == t })
}

func renewed(rs []Record, t lease.Token) bool {
	return slices.ContainsFunc(rs, func(r Record) bool { return r.Op == OpRenew && r.Token == t })
}

// TestUnknownExcuses has an unknown outcome stand for both of its fates.
func TestUnknownExcuses(t *testing.T) {
	grant := Record{Client: "a", Op: OpAcquire, Name: "r", Holder: "a-1", Token: 5, TTLMs: 10_000, RemainingMs: 10_000,
		Invoke: 0, Return: 1, Status: 201, Outcome: OK}
	release := Record{Client: "a", Op: OpRelease, Name: "r", Token: 5, Invoke: 2, Return: 3, Outcome: Unknown}
	free := Record{Client: "b", Op: OpGet, Name: "r", Invoke: 4, Return: 5, Status: 404, Outcome: Refused, Code: lease.CodeNotHeld}
	held := Record{Client: "b", Op: OpGet, Name: "r", Invoke: 4, Return: 5, Status: 200, Outcome: OK,
		Holder: "a-1", Token: 5, TTLMs: 10_000, RemainingMs: 9_999}
	lost := Record{Client: "b", Op: OpAcquire, Name: "r", Holder: "b-1", TTLMs: 10_000, Invoke: 6, Return: 7, Outcome: Unknown}
	found := Record{Client: "c", Op: OpAcquire, Name: "r", Holder: "c-1", TTLMs: 10_000, Invoke: 8, Return: 9, Status: 409,
		Outcome: Refused, Code: lease.CodeLeaseHeld, HeldHolder: "b-1", HeldToken: 6}
	for name, records := range map[string][]Record{
		"applied":          {grant, release, free},
		"not applied":      {grant, release, held},
		"not yet applied":  {grant, release, held, {Client: "c", Op: OpGet, Name: "r", Invoke: 6, Return: 7, Status: 404, Outcome: Refused, Code: lease.CodeNotHeld}},
		"a grant unheard":  {grant, release, free, lost, found},
		"no grant at all":  {grant, release, lost, held},
		"its token unseen": {grant, release, lost, free},
	} {
		for _, v := range Check(records, Rules{Late: time.Second}) {
			t.Errorf("%s: %v", name, v)
		}
	}
	// But what was seen once binds: the unheard grant cannot have two tokens.
	again := found
	again.Client, again.Holder, again.HeldToken, again.Invoke, again.Return = "d", "d-1", 7, 10, 11
	if got := Check([]Record{grant, release, free, lost, found, again}, Rules{}); len(got) == 0 || got[0].Invariant != "I1" {
		t.Errorf("one acquire with two tokens: found %v", got)
	}
}

func TestNothingHappenedIsAFault(t *testing.T) {
	got := Check(nil, someOfAll)
	if len(got) != 5 || got[0].Invariant != "least" || !strings.Contains(got[0].String(), "fewer than 50") {
		t.Errorf("an empty history: found %v", got)
	}
}

func TestHistoryRoundTrip(t *testing.T) {
	records := invented(3, 4, 500)
	var file bytes.Buffer
	if err := WriteRecords(&file, records); err != nil {
		t.Fatal(err)
	}
	lines := strings.Count(file.String(), "\n")
	if lines != len(records) {
		t.Errorf("%d records on %d lines", len(records), lines)
	}
	got, err := ReadRecords(&file)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, records) {
		t.Error("the records read are not those written")
	}
	if _, err := ReadRecords(strings.NewReader(`{"op":"get","colour":"red"}`)); err == nil || !strings.Contains(err.Error(), "colour") {
		t.Errorf("an unknown member: %v", err)
	}
}

// BenchmarkCheck keeps the checker fit for a million records.
func BenchmarkCheck(b *testing.B) {
	records := invented(1, 16, 1_000_000)
	for b.Loop() {
		if found := Check(records, Rules{Late: time.Second}); len(found) > 0 {
			b.Fatal(found[0])
		}
	}
}
