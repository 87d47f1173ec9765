package chaos

import (
	"fmt"
	"sort"
	"strings"
	"time"
)

// Least is what a history must hold to be worth believing: a run in which
// nothing happened violates nothing.
type Least struct {
	Grants   int // acquires answered ok
	Renewals int
	Releases int
	Reads    int
	Ranges   int // next answered ok
}

// Rules are the parts of a check that DESIGN.md leaves to the run.
type Rules struct {
	Least Least
	// Late is how much longer than its TTL an unrenewed lease may live: the
	// time without a leader, all in all, plus one tick. Zero does not check I5.
	Late time.Duration
}

// Violation is one broken promise and the records that show it.
type Violation struct {
	// Invariant is I1 to I8 as DESIGN.md numbers them, "answer" for one that
	// breaks the HTTP contract, "least" for too little to judge by, or
	// "history" for records that cannot be judged.
	Invariant string
	Detail    string
	Records   []Record
}

func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", v.Invariant, v.Detail)
	for _, r := range v.Records {
		b.WriteString("\n\t")
		b.WriteString(r.String())
	}
	return b.String()
}

// maxViolations bounds what one check reports: the first few show the fault,
// and a broken counter breaks every record after it.
const maxViolations = 50

// findings gathers violations up to the bound.
type findings struct{ violations []Violation }

func (f *findings) add(invariant string, records []*Record, format string, args ...any) {
	if len(f.violations) >= maxViolations {
		return
	}
	v := Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...)}
	for _, r := range records {
		v.Records = append(v.Records, *r)
	}
	f.violations = append(f.violations, v)
}

// Check judges a whole history and returns what it breaks, at most
// maxViolations. It takes time in proportion to n log n.
func Check(records []Record, rules Rules) []Violation {
	var f findings
	checkLeast(records, rules.Least, &f)
	checkAnswers(records, &f)
	s := readStory(records, &f)
	checkMonotonic(s, &f)
	checkExclusive(s, &f)
	checkRenewals(s, &f)
	checkEffects(s, &f)
	if rules.Late > 0 {
		checkEnds(s, rules.Late, &f)
	}
	checkSequences(records, &f)
	return f.violations
}

func checkLeast(records []Record, least Least, f *findings) {
	ok := map[Op]int{}
	for i := range records {
		if records[i].Outcome == OK {
			ok[records[i].Op]++
		}
	}
	for _, want := range []struct {
		op    Op
		least int
	}{
		{OpAcquire, least.Grants},
		{OpRenew, least.Renewals},
		{OpRelease, least.Releases},
		{OpGet, least.Reads},
		{OpNext, least.Ranges},
	} {
		if ok[want.op] < want.least {
			f.add("least", nil, "%d of %d records are a successful %s; a history with fewer than %d proves nothing",
				ok[want.op], len(records), want.op, want.least)
		}
	}
}

// checkAnswers finds answers that their Caller could not make sense of.
func checkAnswers(records []Record, f *findings) {
	for i := range records {
		if strings.HasPrefix(records[i].Detail, malformed) {
			f.add("answer", []*Record{&records[i]}, "an answer breaks the HTTP contract")
		}
	}
}

// span is something that was issued at some moment between invoke and known.
type span struct {
	invoke, known int64
	first, last   int64
	record        *Record
}

// checkRising finds spans that were known before another was asked for and are
// not below it. The spans are sorted in place.
func checkRising(spans []span, fault func(earlier, later span)) {
	byKnown := append([]span(nil), spans...)
	sort.Slice(byKnown, func(i, j int) bool { return byKnown[i].known < byKnown[j].known })
	sort.Slice(spans, func(i, j int) bool { return spans[i].invoke < spans[j].invoke })
	next, largest := 0, -1
	for _, s := range spans {
		for ; next < len(byKnown) && byKnown[next].known < s.invoke; next++ {
			if largest < 0 || byKnown[next].last > byKnown[largest].last {
				largest = next
			}
		}
		if largest >= 0 && byKnown[largest].last >= s.first {
			fault(byKnown[largest], s)
		}
	}
}
