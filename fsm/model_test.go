package fsm

import (
	"bytes"
	"math/big"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/highwater/highwater/lease"
)

// model is the state machine once more, from the design's words and as naive
// as can be: lists that are searched from end to end, and big integers.
type model struct {
	now        int64
	floorSet   bool
	floor      int64
	grantsFrom int64
	counter    int64
	leases     []modelLease
	sequences  map[string]int64
	granted    []lease.Token // every token ever, in order
}

type modelLease struct {
	Acquire
	token    int64
	deadline int64
	wall     int64
}

func newModel() *model { return &model{sequences: map[string]int64{}} }

func (m *model) apply(now, wall int64, commands []Command) []Result {
	if now > m.now {
		m.now = now
	}
	m.leases = slices.DeleteFunc(m.leases, func(l modelLease) bool { return l.deadline < m.now })
	var results []Result
	for _, c := range commands {
		results = append(results, m.execute(c, wall))
	}
	return results
}

func (m *model) execute(c Command, wall int64) Result {
	bad := func(field string) Result {
		return Result{Err: &lease.Error{Code: lease.CodeBadRequest, Field: field}}
	}
	switch c := c.(type) {
	case SetFloor:
		if c.Floor < 0 || c.Floor > 999_999_999_999_999 {
			return bad("floor")
		}
		if c.Delay < 0 || c.Delay > 86_400_000 {
			return bad("delay")
		}
		if !m.floorSet {
			m.floorSet, m.floor, m.counter = true, int64(c.Floor), int64(c.Floor)
			m.grantsFrom = m.now + c.Delay
		}
		return Result{}

	case Acquire:
		switch {
		case !modelName(c.Resource):
			return bad("resource")
		case c.Holder == "":
			return bad("holder")
		case c.TTL < 1000 || c.TTL > 86_400_000:
			return bad("ttl_ms")
		}
		if err := m.notYet(); err != nil {
			return Result{Err: err}
		}
		for _, l := range m.leases {
			if l.Resource != c.Resource {
				continue
			}
			if l.Request == c.Request && c.Request != (lease.RequestID{}) {
				return Result{Lease: m.lease(l)}
			}
			rest := l.deadline - m.now
			retry := int64(5)
			for s := int64(5); s >= 1; s-- {
				if rest <= s*1000 {
					retry = s
				}
			}
			return Result{Err: &lease.Error{
				Code: lease.CodeLeaseHeld, Reason: "held", Holder: l.Holder, CurrentToken: lease.Token(l.token),
				Remaining: time.Duration(rest) * time.Millisecond, RetryAfter: time.Duration(retry) * time.Second,
			}}
		}
		if m.counter == 999_999_999_999_999 {
			return Result{Err: &lease.Error{Code: lease.CodeTokensExhausted, Applied: "no"}}
		}
		if m.above(m.counter + 1) {
			return Result{Err: m.rate()}
		}
		m.counter++
		m.granted = append(m.granted, lease.Token(m.counter))
		m.leases = append(m.leases, modelLease{c, m.counter, m.now + c.TTL, wall})
		return Result{Lease: m.lease(m.leases[len(m.leases)-1])}

	case Renew:
		if c.TTL != 0 && (c.TTL < 1000 || c.TTL > 86_400_000) && modelName(c.Resource) && c.Token.Valid() {
			return bad("ttl_ms")
		}
		i, err := m.find(c.Resource, int64(c.Token))
		if err != nil {
			return Result{Err: err}
		}
		l := &m.leases[i]
		ttl := c.TTL
		if ttl == 0 {
			ttl = l.TTL
		}
		if m.now+ttl > l.deadline {
			l.deadline, l.TTL = m.now+ttl, ttl
		}
		return Result{Lease: m.lease(*l)}

	case Release:
		i, err := m.find(c.Resource, int64(c.Token))
		if err != nil {
			return Result{Err: err}
		}
		m.leases = slices.Delete(m.leases, i, i+1)
		return Result{}

	case Next:
		if !modelName(c.Sequence) {
			return bad("sequence")
		}
		if c.Count < 1 || c.Count > 100_000 {
			return bad("count")
		}
		if err := m.notYet(); err != nil {
			return Result{Err: err}
		}
		last, ok := m.sequences[c.Sequence]
		if !ok {
			last = m.floor
		}
		if last+c.Count > 999_999_999_999_999 {
			return Result{Err: &lease.Error{Code: lease.CodeSequenceExhausted, Applied: "no"}}
		}
		if m.above(last + c.Count) {
			return Result{Err: m.rate()}
		}
		m.sequences[c.Sequence] = last + c.Count
		return Result{Range: lease.Range{Name: c.Sequence, First: lease.Token(last + 1), Last: lease.Token(last + c.Count)}}
	}
	panic("no command")
}

func (m *model) find(resource string, token int64) (int, *lease.Error) {
	switch {
	case !modelName(resource):
		return 0, &lease.Error{Code: lease.CodeBadRequest, Field: "resource"}
	case token < 1 || token > 999_999_999_999_999:
		return 0, &lease.Error{Code: lease.CodeBadRequest, Field: "token"}
	case token > m.counter:
		return 0, &lease.Error{Code: lease.CodeTokenUnknown}
	}
	lost := &lease.Error{Code: lease.CodeLeaseLost, Reason: "forgotten"}
	for i, l := range m.leases {
		switch {
		case l.token == token && l.Resource == resource:
			return i, nil
		case l.token == token:
			return 0, &lease.Error{Code: lease.CodeTokenUnknown}
		case l.Resource == resource:
			lost.CurrentToken = lease.Token(l.token)
		}
	}
	return 0, lost
}

func (m *model) notYet() *lease.Error {
	if !m.floorSet {
		return &lease.Error{Code: lease.CodeTooBusy, RetryAfter: time.Second}
	}
	if m.now < m.grantsFrom {
		return &lease.Error{Code: lease.CodeTooBusy, RetryAfter: time.Duration(m.grantsFrom-m.now) * time.Millisecond}
	}
	return nil
}

// above says whether n breaks the rate rule.
func (m *model) above(n int64) bool {
	allowed := big.NewInt((m.now-m.grantsFrom)/1000 + 1)
	allowed.Mul(allowed, big.NewInt(262_144))
	allowed.Add(allowed, big.NewInt(m.floor))
	return big.NewInt(n).Cmp(allowed) > 0
}

func (m *model) rate() *lease.Error {
	ms := (m.now - m.grantsFrom) % 1000
	return &lease.Error{Code: lease.CodeTooBusy, RetryAfter: time.Duration(1000-ms) * time.Millisecond}
}

func (m *model) lease(l modelLease) lease.Lease {
	return lease.Lease{
		Resource: l.Resource, Holder: l.Holder, Token: lease.Token(l.token), Metadata: l.Metadata,
		TTL:       time.Duration(l.TTL) * time.Millisecond,
		Remaining: time.Duration(l.deadline-m.now) * time.Millisecond,
		GrantedAt: time.UnixMilli(l.wall).UTC(),
	}
}

// list answers a listing of leases.
func (m *model) list(p lease.Page) Answer {
	sort.Slice(m.leases, func(i, j int) bool { return m.leases[i].Resource < m.leases[j].Resource })
	var a Answer
	for _, l := range m.leases {
		if strings.HasPrefix(l.Resource, p.Prefix) && l.Resource > p.After {
			a.Leases = append(a.Leases, m.lease(l))
		}
	}
	if len(a.Leases) > p.Limit {
		a.Leases, a.More = a.Leases[:p.Limit], true
	}
	return a
}

func modelName(s string) bool { return s != "" && !strings.Contains(s, "..") }

// withoutDetail drops the text for people, after making sure there is one.
func withoutDetail(t interface{ Fatalf(string, ...any) }, results []Result) []Result {
	out := slices.Clone(results)
	for i, r := range out {
		if r.Err == nil {
			continue
		}
		if r.Err.Detail == "" {
			t.Fatalf("an error without detail: %+v", r.Err)
		}
		e := *r.Err
		e.Detail = ""
		out[i].Err = &e
	}
	return out
}

// stream draws log entries.
type stream struct {
	now   int64
	floor int64
}

func (s *stream) command(t *rapid.T) Command {
	name := rapid.SampledFrom([]string{"a", "a/b", "a/c", "b", "ü/1", "", "x/../y"}).Draw(t, "name")
	token := func() lease.Token {
		return lease.Token(rapid.OneOf(
			rapid.Int64Range(s.floor-1, s.floor+25),
			rapid.SampledFrom([]int64{-1, 0, 1, int64(lease.MaxToken), int64(lease.MaxToken) + 1}),
		).Draw(t, "token"))
	}
	ttl := rapid.SampledFrom([]int64{
		1000, 1000, 1500, 5000, 15_000, 60_000, 86_400_000,
		0, -1, 999, 86_400_001, 1 << 62, -1 << 63, 1<<63 - 1, 1<<58 + 15_000,
	})
	switch rapid.SampledFrom([]string{"acquire", "acquire", "renew", "release", "next", "floor"}).Draw(t, "kind") {
	case "acquire":
		c := Acquire{
			Resource: name,
			Holder:   rapid.SampledFrom([]string{"w1", "w2", "w2", "w3", ""}).Draw(t, "holder"),
			TTL:      ttl.Draw(t, "ttl"),
			Request:  lease.RequestID{15: byte(rapid.IntRange(0, 8).Draw(t, "request"))},
		}
		if rapid.Bool().Draw(t, "metadata") {
			c.Metadata = []byte(`{"build":7}`)
		}
		return c
	case "renew":
		return Renew{Resource: name, Token: token(), TTL: ttl.Draw(t, "ttl")}
	case "release":
		return Release{Resource: name, Token: token()}
	case "next":
		return Next{Sequence: name, Count: rapid.SampledFrom([]int64{1, 1, 2, 100, 100_000, 100_000, 0, -1, 100_001, 1 << 32, 1<<32 + 1, 1<<63 - 1}).Draw(t, "count")}
	}
	return SetFloor{
		Floor: lease.Token(rapid.SampledFrom([]int64{0, s.floor, 1 << 50, -1}).Draw(t, "floor")),
		Delay: rapid.SampledFrom([]int64{0, 1000, -1}).Draw(t, "delay"),
	}
}

type drawnEntry struct {
	index, term, stamped uint64
	now, wall            int64
	lead                 bool
	commands             []Command
}

func (e drawnEntry) bytes() []byte {
	if e.lead {
		return LeadEntry(e.wall)
	}
	return entryOf(e.stamped, e.now, e.wall, e.commands...)
}

func (s *stream) entry(t *rapid.T, last drawnEntry) drawnEntry {
	e := drawnEntry{
		index: last.index + rapid.Uint64Range(1, 3).Draw(t, "gap"),
		term:  last.term + rapid.SampledFrom([]uint64{0, 0, 0, 1}).Draw(t, "new terms"),
		wall:  rapid.Int64Range(-1<<40, 1<<42).Draw(t, "wall"),
		lead:  rapid.IntRange(0, 9).Draw(t, "lead") == 0,
	}
	e.stamped = e.term
	if e.term > 0 && rapid.IntRange(0, 7).Draw(t, "void") == 0 {
		e.stamped--
	}
	s.now += rapid.SampledFrom([]int64{0, 0, 1, 10, 499, 500, 999, 1000, 1001, 5000, 90_000}).Draw(t, "elapsed")
	e.now = max(0, s.now-rapid.SampledFrom([]int64{0, 0, 0, 1, 1000, 1 << 40}).Draw(t, "back"))
	e.commands = rapid.SliceOfN(rapid.Custom(s.command), 0, 6).Draw(t, "commands")
	return e
}

// TestModel: replicas that execute a random log give the model's results; stay
// byte-equal, also one that starts from a snapshot; and keep the invariants I1
// to I4 and I8 of the design in every step.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &stream{floor: rapid.SampledFrom([]int64{0, 1 << 40, int64(lease.MaxToken) - 3}).Draw(t, "floor")}
		a, b, m := New(), New(), newModel()
		var c *State
		last := drawnEntry{index: 0, term: 1}
		values := map[string]lease.Token{}
		restoreAt := rapid.IntRange(0, 25).Draw(t, "restore at")

		for step := range rapid.IntRange(1, 40).Draw(t, "entries") {
			e := s.entry(t, last)
			if step == 0 {
				e.lead, e.stamped, e.commands = false, e.term, append([]Command{SetFloor{
					Floor: lease.Token(s.floor), Delay: rapid.SampledFrom([]int64{0, 0, 1000}).Draw(t, "first delay"),
				}}, e.commands...)
			}
			last = e
			before, beforeBytes := a.Info(), leasesOf(a)

			out, err := a.Apply(e.index, e.term, e.bytes())
			if err != nil {
				t.Fatalf("entry %d: %v", e.index, err)
			}
			want := Outcome{Term: e.term, Now: m.now}
			switch {
			case e.lead:
			case e.stamped != e.term:
				want.Void = true
			default:
				want.Results = m.apply(e.now, e.wall, e.commands)
				want.Now = m.now
			}
			got := out
			got.Results = withoutDetail(t, out.Results)
			if len(got.Results) != len(want.Results) {
				t.Fatalf("%d results, want %d", len(got.Results), len(want.Results))
			}
			for i := range got.Results {
				if !reflect.DeepEqual(got.Results[i], want.Results[i]) {
					t.Fatalf("%#v gave\n%+v %+v\nwant\n%+v %+v", e.commands[i], got.Results[i], got.Results[i].Err, want.Results[i], want.Results[i].Err)
				}
			}
			got.Results, want.Results = nil, nil
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("outcome %+v, want %+v", got, want)
			}

			after := a.Info()
			if after.Now < before.Now {
				t.Fatalf("time went back from %d to %d", before.Now, after.Now)
			}
			if after.LastToken < before.LastToken {
				t.Fatalf("the counter went back from %d to %d", before.LastToken, after.LastToken)
			}
			if e.lead || out.Void {
				unchanged := after
				unchanged.Index, unchanged.Digest = before.Index, before.Digest
				if unchanged != before || !reflect.DeepEqual(leasesOf(a), beforeBytes) {
					t.Fatalf("an entry that must change nothing made %+v of %+v", after, before)
				}
			}
			if after.Index != e.index || after.Digest == before.Digest {
				t.Fatalf("index %d and digest do not follow entry %d", after.Index, e.index)
			}
			checkViews(t, a)
			for _, r := range out.Results {
				if r.Range.Last == 0 {
					continue
				}
				if r.Range.First <= values[r.Range.Name] || r.Range.Last < r.Range.First {
					t.Fatalf("range %+v after value %d", r.Range, values[r.Range.Name])
				}
				values[r.Range.Name] = r.Range.Last
			}

			// The same log, and a log from a snapshot on, make the same state.
			if step == restoreAt {
				if c, err = ReadSnapshot(bytes.NewReader(bytesOf(t, b))); err != nil {
					t.Fatal(err)
				}
			}
			for _, replica := range []*State{b, c} {
				if replica == nil {
					continue
				}
				again, err := replica.Apply(e.index, e.term, e.bytes())
				if err != nil || !reflect.DeepEqual(again, out) {
					t.Fatalf("a replica's outcome is %+v, %v, want %+v", again, err, out)
				}
				if replica.Info() != after || !bytes.Equal(bytesOf(t, replica), bytesOf(t, a)) {
					t.Fatalf("replicas differ after entry %d", e.index)
				}
			}

			// What readers see is the model's as well.
			page := lease.Page{
				Prefix: rapid.SampledFrom([]string{"", "a", "a/", "b", "z"}).Draw(t, "prefix"),
				After:  rapid.SampledFrom([]string{"", "a", "a/b", "a/bb", "z"}).Draw(t, "after"),
				Limit:  rapid.IntRange(1, 4).Draw(t, "limit"),
			}
			if got, want := a.Query(ListLeases{page}), m.list(page); !reflect.DeepEqual(got, want) {
				t.Fatalf("list %+v gave %+v, want %+v", page, got, want)
			}
			for _, l := range a.Query(ListLeases{lease.Page{Limit: lease.MaxPage}}).Leases {
				if l.Remaining < 0 || l.Remaining > lease.MaxTTL {
					t.Fatalf("lease %+v has that remaining", l)
				}
			}
			for _, token := range m.granted {
				state := lease.StateForgotten
				for _, l := range m.leases {
					if l.token == int64(token) {
						state = lease.StateCurrent
					}
				}
				if got := a.Query(GetToken{token}); got.Err != nil || got.Token.State != state {
					t.Fatalf("token %d gave %+v, want %s", token, got, state)
				}
			}
		}
		if !slices.IsSorted(m.granted) || len(slices.Compact(slices.Clone(m.granted))) != len(m.granted) {
			t.Fatalf("tokens do not rise strictly: %v", m.granted)
		}
	})
}

func leasesOf(s *State) []held {
	var all []held
	s.leases.Scan(func(_ string, h *held) bool {
		all = append(all, *h)
		return true
	})
	return all
}

func bytesOf(t interface{ Fatalf(string, ...any) }, s *State) []byte {
	var b bytes.Buffer
	n, err := s.Snapshot().WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("WriteTo: %d of %d bytes, %v", n, b.Len(), err)
	}
	return b.Bytes()
}

// checkViews makes sure that the three views of the leases agree.
func checkViews(t interface{ Fatalf(string, ...any) }, s *State) {
	all := leasesOf(s)
	if len(all) != s.byToken.Len() || len(all) != s.byDeadline.Len() {
		t.Fatalf("%d leases, %d tokens, %d deadlines", len(all), s.byToken.Len(), s.byDeadline.Len())
	}
	for _, h := range all {
		if resource, _ := s.byToken.Get(h.token); resource != h.resource {
			t.Fatalf("token %d leads to %q, not to %q", h.token, resource, h.resource)
		}
		if _, ok := s.byDeadline.Get(h.end()); !ok {
			t.Fatalf("no end of %q at %d", h.resource, h.deadline)
		}
		if h.deadline < s.now {
			t.Fatalf("%q is live at %d, after its deadline %d", h.resource, s.now, h.deadline)
		}
	}
}
