package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/highwater/highwater/lease"
)

// testLog feeds a state one entry after the other.
type testLog struct {
	*State
	t    *testing.T
	term uint64
	wall int64
}

// newLog returns the state of a cluster with that floor, whose grants have started.
func newLog(t *testing.T, floor lease.Token) *testLog {
	t.Helper()
	l := &testLog{State: New(), t: t, term: 1, wall: 1_750_000_000_000}
	l.ok(0, SetFloor{Floor: floor})
	return l
}

// at executes one entry stamped with authority time now.
func (l *testLog) at(now int64, commands ...Command) []Result {
	l.t.Helper()
	out, err := l.Apply(l.index+1, l.term, entryOf(l.term, now, l.wall, commands...))
	if err != nil {
		l.t.Fatal(err)
	}
	if out.Void || len(out.Results) != len(commands) {
		l.t.Fatalf("outcome %+v of %d commands", out, len(commands))
	}
	checkViews(l.t, l.State)
	return out.Results
}

// ok executes one command that must be applied.
func (l *testLog) ok(now int64, c Command) Result {
	l.t.Helper()
	r := l.at(now, c)[0]
	if r.Err != nil {
		l.t.Fatalf("%+v at %d: %v", c, now, r.Err)
	}
	return r
}

// refused executes one command that must be refused and must change nothing.
func (l *testLog) refused(now int64, c Command, code lease.Code) *lease.Error {
	l.t.Helper()
	l.at(now) // time passes first
	before := l.figures
	leases := leasesOf(l.State)
	r := l.at(now, c)[0]
	if r.Err == nil || r.Err.Code != code {
		l.t.Fatalf("%+v at %d gave %+v, want %s", c, now, r, code)
	}
	if !reflect.DeepEqual(r, Result{Err: r.Err}) {
		l.t.Fatalf("a refusal with a result: %+v", r)
	}
	before.index, before.digest = l.index, l.digest
	if l.figures != before || !reflect.DeepEqual(leasesOf(l.State), leases) {
		l.t.Fatalf("the refused %+v changed the state", c)
	}
	return r.Err
}

var request = lease.RequestID{1, 2, 3}

func acquire(resource string, ttl int64) Acquire {
	return Acquire{Resource: resource, Holder: "worker-a", TTL: ttl}
}

func TestAcquire(t *testing.T) {
	l := newLog(t, 41)
	got := l.ok(100, Acquire{Resource: "invoices/1", Holder: "w", TTL: 15_000, Metadata: []byte(`{"a":1}`), Request: request}).Lease
	want := lease.Lease{
		Resource: "invoices/1", Holder: "w", Token: 42, TTL: 15 * time.Second, Remaining: 15 * time.Second,
		Metadata: []byte(`{"a":1}`), GrantedAt: time.UnixMilli(l.wall).UTC(),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got.Metadata[0] = 'X' // the answer is the caller's own
	want.Remaining = 10 * time.Second
	l.at(5100)
	if a := l.Query(GetLease{"invoices/1"}); !reflect.DeepEqual(a, Answer{Leases: []lease.Lease{want}}) {
		t.Errorf("got %+v, want %+v", a, want)
	}
	info := lease.TokenInfo{Token: 42, State: lease.StateCurrent, Resources: []string{"invoices/1"}, Holder: "w", GrantedAt: want.GrantedAt}
	if a := l.Query(GetToken{42}); !reflect.DeepEqual(a, Answer{Token: info}) {
		t.Errorf("got %+v, want %+v", a, info)
	}
}

// C01: a node that sends its acquire again, after the lease that the first
// sending made has run out, is told of a lease that is live, under a new token.
func TestAcquireAgain(t *testing.T) {
	l := newLog(t, 0)
	c := Acquire{Resource: "a", Holder: "w", TTL: 1000, Request: request}
	first := l.ok(0, c).Lease
	again := l.ok(400, c).Lease
	if again.Token != first.Token || again.Remaining != 600*time.Millisecond {
		t.Errorf("the same request gave %+v after %+v", again, first)
	}
	late := l.ok(1001, c).Lease
	if late.Token != first.Token+1 || late.Remaining != time.Second {
		t.Errorf("after the end of %+v the same request gave %+v", first, late)
	}
}

// C04: a holder's name proves nothing; nor does an absent request id.
func TestHolderNameIsNoProof(t *testing.T) {
	l := newLog(t, 0)
	l.ok(0, acquire("a", 60_000))
	l.refused(1, acquire("a", 60_000), lease.CodeLeaseHeld)
	other := acquire("a", 60_000)
	other.Request = request
	l.refused(1, other, lease.CodeLeaseHeld)
	if got := l.ok(60_001, other).Lease.Token; got != 2 {
		t.Errorf("the successor's token is %d, want 2", got)
	}
}

func TestHeldBy(t *testing.T) {
	for _, c := range []struct{ now, retry int64 }{
		{0, 5}, {55_000, 5}, {55_001, 5}, {56_000, 4}, {57_999, 3}, {58_000, 2}, {59_000, 1}, {59_001, 1}, {59_999, 1},
	} {
		l := newLog(t, 0)
		l.ok(0, Acquire{Resource: "a", Holder: "w", TTL: 60_000, Request: request})
		got := *l.refused(c.now, acquire("a", 60_000), lease.CodeLeaseHeld)
		got.Detail = ""
		want := lease.Error{
			Code: lease.CodeLeaseHeld, Reason: lease.ReasonHeld, Holder: "w", CurrentToken: 1,
			Remaining: millis(60_000 - c.now), RetryAfter: time.Duration(c.retry) * time.Second,
		}
		if got != want {
			t.Errorf("at %d: got %+v, want %+v", c.now, got, want)
		}
	}
}

// C05, C13: renewing twice is no harm; renewing too late creates nothing.
func TestRenew(t *testing.T) {
	l := newLog(t, 0)
	l.ok(0, acquire("a", 10_000))
	for range 2 {
		got := l.ok(4000, Renew{Resource: "a", Token: 1}).Lease
		if got.Token != 1 || got.Remaining != 10*time.Second || got.TTL != 10*time.Second {
			t.Errorf("renewal gave %+v", got)
		}
	}
	l.ok(13_999, Renew{Resource: "a", Token: 1, TTL: 2000})
	err := l.refused(16_000, Renew{Resource: "a", Token: 1}, lease.CodeLeaseLost)
	if err.Reason != lease.ReasonForgotten || err.CurrentToken != 0 {
		t.Errorf("got %+v", err)
	}
	if n := l.Info().Leases; n != 0 {
		t.Errorf("%d leases after a late renewal", n)
	}
	l.ok(16_000, acquire("a", 10_000))
	err = l.refused(16_000, Renew{Resource: "a", Token: 1}, lease.CodeLeaseLost)
	if err.Reason != lease.ReasonForgotten || err.CurrentToken != 2 {
		t.Errorf("got %+v", err)
	}
}

// C63: a renewal that was overtaken by a longer one changes neither the
// deadline nor the TTL that later renewals go by.
func TestRenewOvertaken(t *testing.T) {
	l := newLog(t, 0)
	l.ok(0, acquire("a", 10_000))
	l.ok(1000, Renew{Resource: "a", Token: 1, TTL: 60_000})
	got := l.ok(1000, Renew{Resource: "a", Token: 1, TTL: 5000}).Lease
	if got.Remaining != time.Minute || got.TTL != time.Minute {
		t.Errorf("got %+v", got)
	}
	got = l.ok(31_000, Renew{Resource: "a", Token: 1}).Lease
	if got.Remaining != time.Minute || got.TTL != time.Minute {
		t.Errorf("got %+v", got)
	}
	// The deadline moves by one millisecond: the TTL is the new one.
	got = l.ok(90_000, Renew{Resource: "a", Token: 1, TTL: 1001}).Lease
	if got.Remaining != 1001*time.Millisecond || got.TTL != 1001*time.Millisecond {
		t.Errorf("got %+v", got)
	}
}

func TestRelease(t *testing.T) {
	l := newLog(t, 100)
	l.ok(0, acquire("a", 10_000)) // 101
	l.ok(0, acquire("b", 10_000)) // 102
	for _, c := range []struct {
		name string
		Release
		code    lease.Code
		current lease.Token
	}{
		{"above the counter", Release{"a", 103}, lease.CodeTokenUnknown, 0},
		{"live for another resource", Release{"a", 102}, lease.CodeTokenUnknown, 0},
		{"not above the floor", Release{"a", 100}, lease.CodeLeaseLost, 101},
		{"of a free resource", Release{"free", 7}, lease.CodeLeaseLost, 0},
		{"no token", Release{"a", 0}, lease.CodeBadRequest, 0},
		{"no name", Release{"", 101}, lease.CodeBadRequest, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := l.refused(0, c.Release, c.code); err.CurrentToken != c.current {
				t.Errorf("current token %d, want %d", err.CurrentToken, c.current)
			}
		})
	}
	l.ok(0, Release{"a", 101})
	l.refused(0, Release{"a", 101}, lease.CodeLeaseLost)
	if a := l.Query(GetLease{"a"}); a.Err == nil || a.Err.Code != lease.CodeNotHeld {
		t.Errorf("a released lease: %+v", a)
	}
	want := Answer{Token: lease.TokenInfo{Token: 101, State: lease.StateForgotten}}
	if a := l.Query(GetToken{101}); !reflect.DeepEqual(a, want) {
		t.Errorf("a released token: %+v", a)
	}
	for _, token := range []lease.Token{-1, 0, 103, lease.MaxToken + 1} {
		if a := l.Query(GetToken{token}); a.Err == nil || a.Err.Code != lease.CodeTokenUnknown {
			t.Errorf("token %d: %+v", token, a)
		}
	}
	if got := l.ok(0, acquire("a", 10_000)).Lease.Token; got != 103 {
		t.Errorf("the next token is %d, want 103", got)
	}
}

// C19, C20, C27: a lease ends in the first entry after its deadline, not before
// (times are rounded down: at the deadline a part of a millisecond may be left),
// and is in no answer after it; entries without commands suffice.
func TestExpiry(t *testing.T) {
	l := newLog(t, 0)
	l.ok(0, acquire("a", 1000))
	l.ok(0, acquire("b", 3000))
	all := ListLeases{lease.Page{Limit: 10}}
	if i := l.Info(); !i.Live || i.Deadline != 1001 || i.Leases != 2 {
		t.Errorf("info %+v", i)
	}
	for _, now := range []int64{999, 1000} {
		l.at(now)
		if a := l.Query(all); len(a.Leases) != 2 || a.Leases[0].Remaining != millis(1000-now) {
			t.Errorf("at %d: %+v", now, a)
		}
	}
	l.at(1001)
	if a := l.Query(all); len(a.Leases) != 1 || a.Leases[0].Resource != "b" || a.Leases[0].Remaining != 1999*time.Millisecond {
		t.Errorf("at 1001: %+v", a)
	}
	// A freed resource can be had in the same entry.
	if r := l.at(3001, acquire("b", 1000))[0]; r.Err != nil || r.Lease.Token != 3 {
		t.Errorf("at 3001: %+v", r)
	}
	l.at(4002)
	if i := l.Info(); i.Live || i.Leases != 0 {
		t.Errorf("info %+v", i)
	}
}

// Leases that end in one entry end by deadline, and by token within one.
func TestExpiryOrder(t *testing.T) {
	l := newLog(t, 0)
	for i, ttl := range []int64{3000, 1000, 2000, 1000} {
		l.ok(0, acquire(fmt.Sprint(i), ttl))
	}
	var got []end
	l.byDeadline.Scan(func(e end) bool { got = append(got, e); return true })
	if want := []end{{1000, 2}, {1000, 4}, {2000, 3}, {3000, 1}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// An entry's time is the larger of its own and the state's.
func TestTimeNeverGoesBack(t *testing.T) {
	l := newLog(t, 0)
	l.ok(5000, acquire("a", 10_000))
	got := l.ok(10, Renew{Resource: "a", Token: 1, TTL: 20_000}).Lease
	if got.Remaining != 20*time.Second || l.Info().Now != 5000 {
		t.Errorf("got %+v at %d", got, l.Info().Now)
	}
}

// C61: an entry stamped for another term changes nothing, not even time.
func TestVoid(t *testing.T) {
	l := newLog(t, 0)
	l.term = 3
	l.ok(0, acquire("a", 1000))
	before := l.Info()
	for _, stamped := range []uint64{2, 4, 0} {
		out, err := l.Apply(l.index+1, 3, entryOf(stamped, 50_000, 0, Release{"a", 1}))
		if err != nil || !reflect.DeepEqual(out, Outcome{Void: true, Term: 3, Now: 0}) {
			t.Errorf("outcome %+v, %v", out, err)
		}
	}
	after := l.Info()
	if after.Digest == before.Digest || after.Index != before.Index+3 {
		t.Errorf("void entries leave no mark: %+v", after)
	}
	before.Index, before.Digest = after.Index, after.Digest
	if after != before {
		t.Errorf("%+v became %+v", before, after)
	}
}

func TestLead(t *testing.T) {
	l := newLog(t, 0)
	l.ok(500, acquire("a", 1000))
	out, err := l.Apply(l.index+5, 9, LeadEntry(1))
	if err != nil || !reflect.DeepEqual(out, Outcome{Term: 9, Now: 500}) {
		t.Errorf("outcome %+v, %v", out, err)
	}
	if i := l.Info(); i.Index != l.index || i.Leases != 1 || i.Now != 500 {
		t.Errorf("info %+v", i)
	}
}

// What cannot be executed stops the node, and leaves the state as it was.
func TestApplyStops(t *testing.T) {
	good := entryOf(1, 10, 0, acquire("a", 1000))
	badCommand := entryOf(1, 10, 0, acquire("a", 1000))
	badCommand = append(badCommand[:len(badCommand)-1], 9)
	for _, c := range []struct {
		name    string
		index   uint64
		data    []byte
		unknown bool
	}{
		{"index of before", 1, good, false},
		{"lower index", 0, good, false},
		{"empty", 2, nil, false},
		{"version", 2, []byte{2, 1, 0}, true},
		{"kind", 2, []byte{1, 3, 0}, true},
		{"cut", 2, good[:len(good)-1], false},
		{"trailing byte", 2, append(bytes.Clone(good), 0), false},
		{"second command cut", 2, badCommand, false},
		{"command kind after a good one", 2, AppendEntry(nil, 1, 10, 0, AppendCommand(nil, acquire("a", 1000)), []byte{99, 0, 0, 0}), true},
		{"the same, void", 2, AppendEntry(nil, 7, 10, 0, []byte{99, 0, 0, 0}), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLog(t, 0)
			before := bytesOf(t, l.State)
			_, err := l.Apply(c.index, 1, c.data)
			if err == nil || errors.Is(err, ErrUnknown) != c.unknown {
				t.Errorf("error %v, unknown %t", err, c.unknown)
			}
			if !bytes.Equal(bytesOf(t, l.State), before) {
				t.Error("the state has changed")
			}
		})
	}
}

func TestFloor(t *testing.T) {
	l := &testLog{State: New(), t: t, term: 1}
	if err := l.refused(10, acquire("a", 1000), lease.CodeTooBusy); err.RetryAfter != time.Second {
		t.Errorf("before a floor: %+v", err)
	}
	l.refused(10, Next{"s", 1}, lease.CodeTooBusy)
	if i := l.Info(); i.FloorSet || i.Live {
		t.Errorf("info %+v", i)
	}
	for _, c := range []SetFloor{{-1, 0}, {lease.MaxToken + 1, 0}, {1, -1}, {1, 86_400_001}} {
		l.refused(10, c, lease.CodeBadRequest)
	}
	l.ok(10, SetFloor{1000, 1000})
	l.ok(500, SetFloor{5000, 0}) // changes nothing
	if i := l.Info(); !i.FloorSet || i.Floor != 1000 || i.LastToken != 1000 || i.GrantsFrom != 1010 || i.Deadline != 1010 || !i.Live {
		t.Errorf("info %+v", i)
	}
	if err := l.refused(1009, acquire("a", 1000), lease.CodeTooBusy); err.RetryAfter != time.Millisecond {
		t.Errorf("before grants start: %+v", err)
	}
	l.refused(1009, Next{"s", 1}, lease.CodeTooBusy)
	if got := l.ok(1010, acquire("a", 5000)).Lease.Token; got != 1001 {
		t.Errorf("the first token is %d, want 1001", got)
	}
	if got := l.ok(1010, Next{"s", 2}).Range; got != (lease.Range{Name: "s", First: 1001, Last: 1002}) {
		t.Errorf("the first range is %+v", got)
	}
	if i := l.Info(); i.Deadline != 6011 {
		t.Errorf("info %+v", i)
	}
}

// C33: at the end of the tokens nothing wraps, and what is held can be renewed
// and released.
func TestTokensExhausted(t *testing.T) {
	l := newLog(t, lease.MaxToken-2)
	l.ok(0, acquire("a", 10_000))
	if got := l.ok(0, acquire("b", 10_000)).Lease.Token; got != lease.MaxToken {
		t.Errorf("got %d", got)
	}
	for range 2 {
		if err := l.refused(1, acquire("c", 10_000), lease.CodeTokensExhausted); err.Applied != lease.AppliedNo {
			t.Errorf("got %+v", err)
		}
	}
	l.ok(2, Renew{Resource: "b", Token: lease.MaxToken, TTL: 20_000})
	l.ok(2, Release{"b", lease.MaxToken})
	l.refused(3, acquire("b", 10_000), lease.CodeTokensExhausted)
	l.ok(1<<50, Next{"s", 1})
	l.refused(1<<50, Next{"s", 2}, lease.CodeSequenceExhausted)
	if got := l.ok(1<<50, Next{"s", 1}).Range; got.First != lease.MaxToken || got.Last != lease.MaxToken {
		t.Errorf("got %+v", got)
	}
	if err := l.refused(1<<50, Next{"s", 1}, lease.CodeSequenceExhausted); err.Applied != lease.AppliedNo {
		t.Errorf("got %+v", err)
	}
}

// The rate rule, for tokens: 2^18 in the first second, as many more in each
// that follows, unused ones added up.
func TestRateOfTokens(t *testing.T) {
	l := &testLog{State: New(), t: t, term: 1}
	l.ok(300, SetFloor{5000, 1000})
	l.at(1300)
	l.counter = 5000 + 1<<18 - 1 // as if so many had been granted
	l.ok(1300, acquire("a", 5000))
	err := l.refused(1300, acquire("b", 5000), lease.CodeTooBusy)
	if err.RetryAfter != time.Second || !strings.Contains(err.Detail, "262144") {
		t.Errorf("got %+v", err)
	}
	if err := l.refused(2299, acquire("b", 5000), lease.CodeTooBusy); err.RetryAfter != time.Millisecond {
		t.Errorf("got %+v", err)
	}
	l.ok(2300, acquire("b", 5000))
	l.counter = 5000 + 4<<18
	l.refused(4299, acquire("c", 5000), lease.CodeTooBusy)
	l.ok(5300, acquire("c", 5000))
	l.ok(maxTime, acquire("d", 5000)) // the ceiling ends at the last token, and does not wrap
	if got := l.ceiling(); got != lease.MaxToken {
		t.Errorf("the ceiling at the end of time is %d", got)
	}
}

// C66: a sequence asked for a million values a second is held to the rate rule,
// and starts above all it ever issued in a cluster that is built anew.
func TestRateOfSequences(t *testing.T) {
	const began = 1_750_000_000 // wall clock, s
	l := &testLog{State: New(), t: t, term: 1}
	l.ok(0, SetFloor{lease.AutoFloor(began), 1000})
	var last lease.Token
	for second := int64(1); second <= 20; second++ {
		taken := 0
		for range 10 {
			r := l.at(second*1000, Next{"orders", 100_000})[0]
			if r.Err == nil {
				taken++
				last = r.Range.Last
			} else if r.Err.Code != lease.CodeTooBusy || r.Err.RetryAfter != time.Second {
				t.Fatalf("second %d: %+v", second, r.Err)
			}
		}
		if taken < 2 || taken > 3 {
			t.Errorf("second %d: %d times 100,000", second, taken)
		}
		// What is left of the second can be had in smaller parts; all or nothing.
		if room := l.ceiling() - last; room > 0 {
			l.refused(second*1000, Next{"orders", int64(room) + 1}, lease.CodeTooBusy)
		}
		anew := New()
		data := entryOf(1, 0, 0, SetFloor{lease.AutoFloor(began + second), 1000})
		if _, err := anew.Apply(1, 1, data); err != nil {
			t.Fatal(err)
		}
		if anew.floor < last {
			t.Fatalf("after %d s a new floor of %d is below value %d", second, anew.floor, last)
		}
	}
}

// C67: two lives of a cluster within one second of the wall clock, both with
// the automatic floor, share no token, however many the first one granted.
func TestTwoLivesInOneSecond(t *testing.T) {
	const ms = 1_750_000_000_001 // just into a second: the worst place
	for _, lived := range []int64{1000, 1001, 1998, 1999, 2000, 61_999} {
		first := &testLog{State: New(), t: t, term: 1}
		first.ok(0, SetFloor{lease.AutoFloor(ms / 1000), 1000})
		first.at(lived)
		first.counter = first.ceiling() - 1
		last := first.ok(lived, acquire("a", 1000)).Lease.Token
		first.refused(lived, acquire("b", 1000), lease.CodeTooBusy)

		second := &testLog{State: New(), t: t, term: 1}
		second.ok(0, SetFloor{lease.AutoFloor((ms + lived) / 1000), 1000})
		if got := second.ok(1000, acquire("a", 1000)).Lease.Token; got <= last {
			t.Errorf("after %d ms: token %d of the second life is not above %d of the first", lived, got, last)
		}
	}
}

// C34: ranges are whole, never overlap, and rise; each sequence has its own.
func TestSequences(t *testing.T) {
	l := newLog(t, 10)
	for _, c := range []struct {
		name        string
		count       int64
		first, last lease.Token
	}{
		{"a", 1, 11, 11}, {"a", 5, 12, 16}, {"b", 100_000, 11, 100_010}, {"a", 1, 17, 17},
	} {
		want := lease.Range{Name: c.name, First: c.first, Last: c.last}
		if got := l.ok(0, Next{c.name, c.count}).Range; got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	for _, count := range []int64{0, -1, 100_001, 1_000_000_000, 1 << 32, 1<<32 + 1, 1<<63 - 1, -1 << 63} {
		if err := l.refused(0, Next{"a", count}, lease.CodeBadRequest); err.Field != "count" {
			t.Errorf("count %d: %+v", count, err)
		}
	}
	want := Answer{Sequences: []lease.Sequence{{Name: "a", Last: 17, Issued: true}}}
	if a := l.Query(GetSequence{"a"}); !reflect.DeepEqual(a, want) {
		t.Errorf("got %+v, want %+v", a, want)
	}
	want.More = true
	if a := l.Query(ListSequences{lease.Page{Limit: 1}}); !reflect.DeepEqual(a, want) {
		t.Errorf("got %+v, want %+v", a, want)
	}
	if a := l.Query(ListSequences{lease.Page{After: "a", Limit: 1}}); a.More || len(a.Sequences) != 1 || a.Sequences[0].Name != "b" {
		t.Errorf("got %+v", a)
	}
	if a := l.Query(GetSequence{"c"}); a.Err == nil || a.Err.Code != lease.CodeSequenceUnknown {
		t.Errorf("got %+v", a)
	}
	if l.Info().LastToken != 10 {
		t.Error("sequences moved the token counter")
	}
}

// C23: what is out of range is refused with the range, also where the taker of
// the request let it through, and also where milliseconds overflow a Duration.
func TestLimitsOfRequests(t *testing.T) {
	l := newLog(t, 0)
	l.ok(0, acquire("held", 60_000))
	const wraps = 1<<58 + 15_000 // in 64 bits of nanoseconds this is 15 s again
	for _, ttl := range []int64{0, -1, 999, 86_400_001, 1<<63 - 1, -1 << 63, wraps, -wraps} {
		err := l.refused(0, acquire("a", ttl), lease.CodeBadRequest)
		if err.Field != "ttl_ms" || !strings.Contains(err.Detail, "1000 to 86400000") {
			t.Errorf("ttl %d: %+v", ttl, err)
		}
		if ttl != 0 {
			l.refused(0, Renew{Resource: "held", Token: 1, TTL: ttl}, lease.CodeBadRequest)
		}
	}
	for _, c := range []struct {
		Acquire
		field string
	}{
		{Acquire{Resource: "", Holder: "w", TTL: 1000}, "resource"},
		{Acquire{Resource: "a//b", Holder: "w", TTL: 1000}, "resource"},
		{Acquire{Resource: "a\xff", Holder: "w", TTL: 1000}, "resource"},
		{Acquire{Resource: "a", Holder: "", TTL: 1000}, "holder"},
		{Acquire{Resource: "a", Holder: "\x00", TTL: 1000}, "holder"},
	} {
		if err := l.refused(0, c.Acquire, lease.CodeBadRequest); err.Field != c.field {
			t.Errorf("%+v: %+v", c.Acquire, err)
		}
	}
	l.ok(0, acquire("min", 1000))
	l.ok(0, acquire("max", 86_400_000))
}

// Limits of the state name themselves.
func TestLimitsOfState(t *testing.T) {
	l := newLog(t, 0)
	if l.limits.leases != 10_000_000 || l.limits.sequences != 100_000 {
		t.Fatalf("limits %+v", l.limits)
	}
	l.limits.leases, l.limits.sequences = 2, 2
	for i, name := range []string{"a", "b"} {
		l.ok(0, acquire(name, 10_000))
		l.ok(0, Next{name, int64(i) + 1})
	}
	if err := l.refused(0, acquire("c", 10_000), lease.CodeTooBusy); !strings.Contains(err.Detail, "2 live leases") || err.RetryAfter <= 0 {
		t.Errorf("got %+v", err)
	}
	if err := l.refused(0, Next{"c", 1}, lease.CodeTooBusy); !strings.Contains(err.Detail, "2 sequences") || err.RetryAfter <= 0 {
		t.Errorf("got %+v", err)
	}
	l.ok(0, Next{"a", 1})
	l.ok(0, Release{"a", 1})
	if got := l.ok(0, acquire("c", 10_000)).Lease.Token; got != 3 {
		t.Errorf("token %d: a refusal took one", got)
	}
}

func TestListing(t *testing.T) {
	l := newLog(t, 0)
	for _, name := range []string{"b/2", "a", "b", "b/10", "b/ü", "c", "b0"} {
		l.ok(0, acquire(name, 10_000))
	}
	for _, c := range []struct {
		prefix, after string
		limit         int
		want          string
		more          bool
	}{
		{"", "", 100, "a b b/10 b/2 b/ü b0 c", false},
		{"", "", 7, "a b b/10 b/2 b/ü b0 c", false},
		{"", "", 6, "a b b/10 b/2 b/ü b0", true},
		{"b/", "", 100, "b/10 b/2 b/ü", false},
		{"b/", "", 2, "b/10 b/2", true},
		{"b/", "b/2", 100, "b/ü", false},
		{"b/", "b/11", 1, "b/2", true},
		{"b/", "a", 1, "b/10", true},
		{"b/", "b", 100, "b/10 b/2 b/ü", false},
		{"b/", "c", 100, "", false},
		{"b", "b", 3, "b/10 b/2 b/ü", true},
		{"x", "", 100, "", false},
		{"", "c", 100, "", false},
	} {
		a := l.Query(ListLeases{lease.Page{Prefix: c.prefix, After: c.after, Limit: c.limit}})
		var names []string
		for _, l := range a.Leases {
			names = append(names, l.Resource)
		}
		if got := strings.Join(names, " "); a.Err != nil || got != c.want || a.More != c.more {
			t.Errorf("%+v gave %q, more %t, %v", c, got, a.More, a.Err)
		}
	}
	for _, limit := range []int{0, -1, 1001} {
		for _, q := range []Query{ListLeases{lease.Page{Limit: limit}}, ListSequences{lease.Page{Limit: limit}}} {
			if a := l.Query(q); a.Err == nil || a.Err.Code != lease.CodeBadRequest || a.Err.Field != "limit" {
				t.Errorf("%+v gave %+v", q, a)
			}
		}
	}
}

// C30, C31: what names leave behind when all of them are released is nothing:
// the next token is larger, and memory goes back.
func TestReleasedNamesLeaveNothing(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	l := newLog(t, 0)
	before := heap()
	const names, batch = 50_000, 5000
	for i := 0; i < names; i += batch {
		commands := make([]Command, batch)
		for j := range commands {
			commands[j] = acquire(fmt.Sprintf("name-%d", i+j), 86_400_000)
		}
		if out, err := l.Apply(l.index+1, 1, entryOf(1, 0, 0, commands...)); err != nil || out.Results[0].Err != nil {
			t.Fatal(out, err)
		}
	}
	full := heap()
	for i := 0; i < names; i += batch {
		commands := make([]Command, batch)
		for j := range commands {
			commands[j] = Release{fmt.Sprintf("name-%d", i+j), lease.Token(i + j + 1)}
		}
		if out, err := l.Apply(l.index+1, 1, entryOf(1, 0, 0, commands...)); err != nil || out.Results[0].Err != nil {
			t.Fatal(out, err)
		}
	}
	after := heap()
	checkViews(t, l.State)
	if l.Info().Leases != 0 || after > before+(full-before)/20 {
		t.Errorf("%d leases; %d bytes before, %d full, %d after", l.Info().Leases, before, full, after)
	}
	if got := l.ok(0, acquire("name-1", 1000)).Lease.Token; got != names+1 {
		t.Errorf("token %d, want %d", got, names+1)
	}
}

// The digest tells logs apart that end in equal states.
func TestDigest(t *testing.T) {
	digest := func(index, term uint64, data []byte) uint64 {
		s := New()
		if _, err := s.Apply(index, term, data); err != nil {
			t.Fatal(err)
		}
		return s.Info().Digest
	}
	base := digest(1, 1, LeadEntry(5))
	for name, other := range map[string]uint64{
		"index": digest(2, 1, LeadEntry(5)),
		"term":  digest(1, 2, LeadEntry(5)),
		"bytes": digest(1, 1, LeadEntry(6)),
	} {
		if other == base {
			t.Errorf("another %s gives the same digest", name)
		}
	}
	if digest(1, 1, LeadEntry(5)) != base {
		t.Error("the same entry gives another digest")
	}
}
