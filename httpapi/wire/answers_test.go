package wire

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/highwater/highwater/lease"
)

var granted = time.Date(2026, 12, 1, 3, 4, 5, 60_700_000, time.FixedZone("", 3600))

// An answer that is written by hand says what the tags say.
func TestAppendAgreesWithTheTags(t *testing.T) {
	zero, queue := int64(0), 0
	held := Lease{Resource: `a/"b"\ é<>&` + "\u2028", Holder: "h", Token: 42, TTLMS: 15_000, RemainingMS: 14_999, Metadata: jsontext.Value(`{"a":1}`), GrantedAt: Time(granted)}
	for _, answer := range []interface{ Append([]byte) []byte }{
		held,
		Lease{Resource: "r", Holder: "h", Token: lease.MaxToken, GrantedAt: Time(granted)},
		Leases{}, Leases{Leases: []Lease{held, held}, Next: "a"},
		Released{Released: true}, Released{},
		Range{Name: "s", First: 1, Last: 100},
		FromError(&lease.Error{Code: lease.CodeBadRequest, Field: "f\xff", Detail: "d"}),
		Problem{Type: "t", Title: "t", Status: 503, Detail: "d", Field: "f", Holder: "h", CurrentToken: 1, RemainingMS: &zero, Reason: "r",
			QueueLength: &queue, WaitedMS: &zero, SupersededBy: 2, Leader: "l", Procedure: "p", RetryAfterMS: 3, Applied: "no"},
	} {
		want, err := json.Marshal(answer, jsontext.AllowInvalidUTF8(true))
		if err != nil {
			t.Fatal(err)
		}
		if got := answer.Append([]byte("x")); string(got) != "x"+string(want) {
			t.Errorf("Append writes %s, the tags say %s", got, want)
		}
	}
}

func TestLeaseOnTheWire(t *testing.T) {
	l := lease.Lease{Resource: "a/b", Holder: "h", Token: 42, TTL: 15 * time.Second, Remaining: 14_999_900 * time.Microsecond,
		Metadata: []byte(`{ "a" : 1.0 }`), GrantedAt: granted}
	const want = `{"resource":"a/b","holder":"h","token":42,"ttl_ms":15000,"remaining_ms":14999,"metadata":{ "a" : 1.0 },"granted_at":"2026-12-01T02:04:05.060Z"}`
	body := FromLease(l).Append(nil)
	if string(body) != want {
		t.Fatalf("%s\nwant\n%s", body, want)
	}
	var read Lease
	// An answer may gain members.
	if err := json.Unmarshal(bytes.Replace(body, []byte("{"), []byte(`{"new":[],`), 1), &read); err != nil {
		t.Fatal(err)
	}
	got := read.ToLease()
	if !got.GrantedAt.Equal(granted.Truncate(time.Millisecond)) {
		t.Errorf("granted at %v, want %v", got.GrantedAt, granted)
	}
	l.GrantedAt, got.GrantedAt, l.Remaining = time.Time{}, time.Time{}, l.Remaining.Truncate(time.Millisecond)
	if !reflect.DeepEqual(got, l) {
		t.Errorf("read as %+v, want %+v", got, l)
	}
}

func TestOtherAnswers(t *testing.T) {
	for _, c := range []struct {
		answer any
		want   string
	}{
		{FromLeases(nil, ""), `{"leases":[]}`},
		{FromSequences(nil, ""), `{"sequences":[]}`},
		{FromSequences([]lease.Sequence{{Name: "s", Last: 7, Issued: true}, {Name: "u", Last: 9, Frozen: true}}, "u"),
			`{"sequences":[{"name":"s","last":7,"frozen":false},{"name":"u","last":null,"frozen":true}],"next":"u"}`},
		{FromRange(lease.Range{Name: "s", First: 3, Last: 4}), `{"name":"s","first":3,"last":4}`},
		{FromToken(lease.TokenInfo{Token: 5, State: lease.StateForgotten}), `{"token":5,"state":"forgotten"}`},
		{FromToken(lease.TokenInfo{Token: 5, State: lease.StateCurrent, Resources: []string{"r"}, Holder: "h", GrantedAt: granted}),
			`{"token":5,"state":"current","resources":["r"],"holder":"h","granted_at":"2026-12-01T02:04:05.060Z"}`},
		{Cluster{ClusterID: "c", Node: "n1", Term: 3, CommitIndex: 4, LastToken: 5, FeatureLevel: 1,
			Nodes: []Node{{ID: "n1", HTTPAddr: "h:1", ClusterAddr: "h:2", Role: RoleFollower, Version: "v"}}},
			`{"cluster_id":"c","node":"n1","term":3,"commit_index":4,"last_token":5,"floor":0,"feature_level":1,"nodes":[` +
				`{"id":"n1","http_addr":"h:1","cluster_addr":"h:2","role":"follower","healthy":false,"last_contact_ms":null,"lag":0,"version":"v"}]}`},
	} {
		got, err := json.Marshal(c.answer)
		if err != nil || string(got) != c.want {
			t.Errorf("%s, %v\nwant %s", got, err, c.want)
		}
	}
	for _, s := range []lease.Sequence{{Name: "s", Last: 7, Issued: true}, {Name: "s", Frozen: true}} {
		if got := FromSequence(s).ToSequence(); got != s {
			t.Errorf("%+v became %+v", s, got)
		}
	}
	var never Time
	if err := json.Unmarshal([]byte(`"yesterday"`), &never); err == nil {
		t.Errorf("yesterday is a time")
	}
	if d := milliseconds(math.MaxInt64); d < 0 {
		t.Errorf("a long time became %v", d)
	}
}

// codes are the codes of package lease with their statuses, as the API's table
// has them.
var codes = map[lease.Code]int{
	lease.CodeBadRequest: 400, lease.CodeUnauthenticated: 401, lease.CodeForbidden: 403,
	lease.CodeNotFound: 404, lease.CodeNotHeld: 404, lease.CodeTokenUnknown: 404, lease.CodeSequenceUnknown: 404,
	lease.CodeMethodNotAllowed: 405, lease.CodeLeaseHeld: 409, lease.CodeRefused: 409, lease.CodeLeaseLost: 410,
	lease.CodeTooLarge: 413, lease.CodeUnsupportedMediaType: 415, lease.CodeTooBusy: 429, lease.CodeInternal: 500,
	lease.CodeNoLeader: 503, lease.CodeOutcomeUnknown: 503, lease.CodeTokensExhausted: 507, lease.CodeSequenceExhausted: 507,
}

func TestEveryCodeThereAndBack(t *testing.T) {
	if len(kinds) != len(codes) {
		t.Errorf("the table has %d codes, the API %d", len(kinds), len(codes))
	}
	for code, status := range codes {
		e := &lease.Error{Code: code, Detail: "d", Field: "f", Holder: "h", CurrentToken: 41, Remaining: 3 * time.Second, QueueLength: 2,
			Reason: lease.ReasonHeld, SupersededBy: 43, Leader: "n2", Procedure: "p", RetryAfter: 2 * time.Second}
		p := FromError(e)
		if p.Status != status || p.Type != "urn:highwater:problem:"+string(code) || p.Title == "" {
			t.Errorf("%s: %+v", code, p)
		}
		if (p.Applied != "") != (status >= 500) {
			t.Errorf("%s: applied %q", code, p.Applied)
		}
		body := p.Append(nil)
		var members map[string]any
		if err := json.Unmarshal(body, &members); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if _, there := members["token"]; there { // C74
			t.Errorf("%s has a member token", body)
		}
		var read Problem
		if err := json.Unmarshal(body, &read); err != nil {
			t.Fatal(err)
		}
		got := read.ToError()
		want := *e
		want.Applied = p.Applied
		if code != lease.CodeLeaseHeld {
			want.Remaining, want.QueueLength = 0, 0
		}
		if status == 503 {
			want.RetryAfter = time.Second // API.md: Retry-After: 1
		}
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s came back as %+v, want %+v", code, *got, want)
		}
		if !errors.Is(got, &lease.Error{Code: code}) {
			t.Errorf("%s came back as %s", code, got.Code)
		}
	}
}

func TestProblemRules(t *testing.T) {
	held := FromError(&lease.Error{Code: lease.CodeLeaseHeld, Holder: "A", CurrentToken: 41, Remaining: 90 * time.Second, Reason: lease.ReasonHeld})
	const want = `{"type":"urn:highwater:problem:lease-held","title":"The resource is held","status":409,"holder":"A","current_token":41,` +
		`"remaining_ms":90000,"reason":"held","queue_length":0,"waited_ms":0,"retry_after_ms":5000}`
	if got := string(held.Append(nil)); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	for _, c := range []struct {
		e     lease.Error
		retry int64
	}{
		{lease.Error{Code: lease.CodeLeaseHeld}, 1},
		{lease.Error{Code: lease.CodeLeaseHeld, Remaining: 1200 * time.Millisecond}, 1200},
		{lease.Error{Code: lease.CodeLeaseHeld, RetryAfter: time.Hour}, 5000},
		{lease.Error{Code: lease.CodeTooBusy}, 1000},
		{lease.Error{Code: lease.CodeTooBusy, RetryAfter: 3 * time.Second}, 3000},
		{lease.Error{Code: lease.CodeNoLeader, RetryAfter: time.Hour}, 1000},
		{lease.Error{Code: lease.CodeOutcomeUnknown}, 1000},
		{lease.Error{Code: lease.CodeBadRequest}, 0},
	} {
		if got := FromError(&c.e).RetryAfterMS; got != c.retry {
			t.Errorf("%+v: retry after %d ms, want %d", c.e, got, c.retry)
		}
	}
	// What may be concluded is never more than is known.
	for _, c := range []struct {
		e    lease.Error
		want lease.Applied
	}{
		{lease.Error{Code: lease.CodeInternal}, lease.AppliedUnknown},
		{lease.Error{Code: lease.CodeInternal, Applied: lease.AppliedNo}, lease.AppliedNo},
		{lease.Error{Code: lease.CodeOutcomeUnknown, Applied: lease.AppliedNo}, lease.AppliedUnknown},
		{lease.Error{Code: lease.CodeNoLeader}, lease.AppliedNo},
		{lease.Error{Code: lease.CodeTokensExhausted}, lease.AppliedNo},
		{lease.Error{Code: lease.CodeNotHeld, Applied: lease.AppliedUnknown}, ""},
		{lease.Error{Code: "no-such-code"}, lease.AppliedUnknown},
	} {
		if got := FromError(&c.e).Applied; got != c.want {
			t.Errorf("%+v: applied %q, want %q", c.e, got, c.want)
		}
	}
	if p := FromError(&lease.Error{Code: "no-such-code", Detail: "inner"}); p.Status != 500 || strings.Contains(string(p.Append(nil)), "inner") {
		t.Errorf("an unknown code shows %+v", p)
	}
	if e := (Problem{Type: "about:blank", Status: 502}).ToError(); e.Applied != lease.AppliedUnknown {
		t.Errorf("a failure of somebody else counts as %q", e.Applied)
	}
	if e := (Problem{Type: "urn:highwater:problem:new-one", Status: 418}).ToError(); e.Code != "new-one" {
		t.Errorf("a code of a later version came back as %q", e.Code)
	}
}

func BenchmarkAppendLease(b *testing.B) {
	l := lease.Lease{Resource: "invoices/B-1042", Holder: "worker-A", Token: 42, TTL: 15 * time.Second, Remaining: 15 * time.Second, GrantedAt: granted}
	var body []byte
	b.ReportAllocs()
	for b.Loop() {
		body = FromLease(l).Append(body[:0])
	}
}
