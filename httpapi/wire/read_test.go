package wire

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/highwater/highwater/lease"
)

// numbers are the values of an integer member with limits that no body may
// give (C23, C34): the answer to each names the member and has the range.
func numbers(least, most int64) []string {
	return []string{
		"0", "-1", "-0", "1.5", "1.0", "1e3", "1E3", `"5"`, `""`, "null", "true", "[]", "[5]", "{}",
		"9223372036854775807", "9223372036854775808", "18446744073709551617", "1e400", "-9223372036854775809",
		fmt.Sprint(least - 1), fmt.Sprint(most + 1), fmt.Sprint(most) + ".0", fmt.Sprint(least) + "e0",
	}
}

func TestIntegersAreIntegersInRange(t *testing.T) { // C23, C34
	acquire := func(b []byte) error { _, err := ReadAcquire(b); return err }
	renew := func(b []byte) error { _, err := ReadRenew(b); return err }
	next := func(b []byte) error { _, err := ReadNext(b); return err }
	for _, c := range []struct {
		read        func([]byte) error
		body, field string
		least, most int64
	}{
		{acquire, `{"holder":"h","ttl_ms":%s}`, "ttl_ms", 1000, 86_400_000},
		{renew, `{"token":7,"ttl_ms":%s}`, "ttl_ms", 1000, 86_400_000},
		{renew, `{"token":%s}`, "token", 1, 999_999_999_999_999},
		{next, `{"count":%s}`, "count", 1, 100_000},
	} {
		for _, n := range []int64{c.least, c.most} {
			if err := c.read(fmt.Appendf(nil, c.body, fmt.Sprint(n))); err != nil {
				t.Errorf("%s %d: %v", c.field, n, err)
			}
		}
		for _, n := range numbers(c.least, c.most) {
			body := fmt.Sprintf(c.body, n)
			e := badRequest(t, body, c.read([]byte(body)))
			if e == nil {
				continue
			}
			if e.Field != c.field || !strings.Contains(e.Detail, fmt.Sprintf("from %d to %d", c.least, c.most)) {
				t.Errorf("%s: %v must name %s and its range", body, e, c.field)
			}
		}
	}
}

func badRequest(t *testing.T, body string, err error) *lease.Error {
	t.Helper()
	var e *lease.Error
	if !errors.As(err, &e) || e.Code != lease.CodeBadRequest || e.Detail == "" {
		t.Errorf("%q: %v, want a bad-request that says why", body, err)
		return nil
	}
	return e
}

func TestStrictJSON(t *testing.T) { // C73
	for _, c := range []struct{ body, field string }{
		{`{"holder":"h","ttl":5000}`, "ttl"},
		{`{"holder":"h","TTL_MS":5000}`, "TTL_MS"},
		{`{"Holder":"h"}`, "Holder"},
		{`{"holder":"a","Holder":"b"}`, "Holder"},
		{`{"holder":"a","holder":"b"}`, "holder"},
		{`{"holder":"a","hol\u0064er":"b"}`, "holder"},
		{`{"holder":"h","token":1}`, "token"},
		{`{"holder":"h","":1}`, ""},
		{"{\"holder\":\"a\xff\"}", "holder"},
		{"{\"hold\xffer\":\"a\"}", ""},
		{`{"holder":"\ud800"}`, "holder"},
		{`{"holder":"\ud800\u0041"}`, "holder"},
		{`{"holder":"\udc00\ud800"}`, "holder"},
		{"{\"holder\":\"\xed\xa0\x80\"}", "holder"},
		{"{\"holder\":\"a\nb\"}", "holder"},
		{`{"holder":"a\nb"}`, "holder"},
		{`{"holder":"a\u0000"}`, "holder"},
		{`{"holder":""}`, "holder"},
		{`{"holder":"` + strings.Repeat("h", lease.MaxHolder+1) + `"}`, "holder"},
		{`{"holder":null}`, "holder"},
		{`{"holder":5}`, "holder"},
		{`{"holder":["h"]}`, "holder"},
		{`{"holder":"h"`, ""},
		{`{"holder":"h`, "holder"},
		{`{"holder":`, "holder"},
		{`{"holder"`, "holder"},
		{`{`, ""},
		{``, ""},
		{` `, ""},
		{`null`, ""},
		{`[]`, ""},
		{`"h"`, ""},
		{`5`, ""},
		{`holder=h&ttl_ms=5000`, ""},
		{`{}`, "holder"},
		{`{"holder":"h"}{}`, ""},
		{`{"holder":"h"}x`, ""},
		{`{"holder":"h"} null`, ""},
		{"{\"holder\":\"h\"}\x00", ""},
		{"\ufeff{\"holder\":\"h\"}", ""},
		{`{"holder":"h",}`, ""},
		{`{'holder':'h'}`, ""},
		{`{"holder":"h"/**/}`, ""},
		{`{"holder" "h"}`, "holder"},
		{`{"holder":"h","metadata":null}`, "metadata"},
		{`{"holder":"h","metadata":[]}`, "metadata"},
		{`{"holder":"h","metadata":"{}"}`, "metadata"},
		{`{"holder":"h","metadata":{"a":1,"a":2}}`, "metadata"},
		{`{"holder":"h","metadata":{"a":"\ud800"}}`, "metadata"},
		{`{"holder":"h","metadata":{"a":` + strings.Repeat("9", lease.MaxMetadata) + `}}`, "metadata"},
		{`{"holder":"h","metadata":` + strings.Repeat(`{"a":`, 200_000), "metadata"},
		{strings.Repeat(`[`, 1<<20), ""},
		{`{"holder":"h","wait_ms":1}`, "wait_ms"},
		{`{"holder":"h","wait_ms":null}`, "wait_ms"},
		{`{"holder":"h","lock_delay_ms":60000}`, "lock_delay_ms"},
		{`{"holder":"h","session":"s"}`, "session"},
	} {
		_, err := ReadAcquire([]byte(c.body))
		shown := c.body[:min(len(c.body), 80)]
		if e := badRequest(t, shown, err); e != nil && e.Field != c.field {
			t.Errorf("%q: field %q, want %q: %v", shown, e.Field, c.field, e)
		}
	}
	for _, body := range []string{``, ` `, `{}`, `{"token":null}`, `{"token":7,"session":"s"}`, `{"token":7,"token":7}`, `{"token":7} 8`, `7`} {
		_, err := ReadRenew([]byte(body))
		badRequest(t, body, err)
	}
	for _, body := range []string{` `, `null`, `[]`, `{"count":1,"count":2}`, `{"Count":1}`, `{"start":1}`, `{}{}`} {
		_, err := ReadNext([]byte(body))
		badRequest(t, body, err)
	}
}

func TestWhatIsRead(t *testing.T) {
	long := strings.Repeat("9", lease.MaxMetadata-6)
	for body, want := range map[string]Acquire{
		`{"holder":"h"}`: {Holder: "h", TTLMS: 15_000},
		" \n{ \"ttl_ms\" : 1000 ,\t\"holder\" : \"h\\u00e9 \\ud83d\\ude00\" }\r\n":          {Holder: "hé 😀", TTLMS: 1000},
		`{"holder":"h","wait_ms":0,"lock_delay_ms":0}`:                                      {Holder: "h", TTLMS: 15_000},
		`{"holder":"h","metadata": { "b" : 1.50, "a":"\u0041", "n": 1e400, "deep":[{}] } }`: {Holder: "h", TTLMS: 15_000, Metadata: jsontext.Value(`{ "b" : 1.50, "a":"\u0041", "n": 1e400, "deep":[{}] }`)},
		`{"holder":"h","metadata":{"a":` + long + `}}`:                                      {Holder: "h", TTLMS: 15_000, Metadata: jsontext.Value(`{"a":` + long + `}`)},
	} {
		given := []byte(body)
		got, err := ReadAcquire(given)
		clear(given) // nothing that was read may live in the body's buffer
		if err != nil || got.Holder != want.Holder || got.TTLMS != want.TTLMS || !bytes.Equal(got.Metadata, want.Metadata) {
			t.Errorf("%s: %+v, %v; want %+v", body, got, err, want)
		}
	}
	if got, err := ReadRenew([]byte(`{"token":999999999999999,"ttl_ms":86400000}`)); err != nil || got != (Renew{lease.MaxToken, 86_400_000}) {
		t.Errorf("renew: %+v, %v", got, err)
	}
	if got, err := ReadRenew([]byte(`{"token":7}`)); err != nil || got != (Renew{7, 0}) {
		t.Errorf("renew: %+v, %v", got, err)
	}
	for body, want := range map[string]int64{``: 1, `{}`: 1, ` {} `: 1, `{"count":100000}`: 100_000} {
		if got, err := ReadNext([]byte(body)); err != nil || got.Count != want {
			t.Errorf("%q: %+v, %v; want %d", body, got, err, want)
		}
	}
}

// What the client writes is what the server reads.
func TestRequestsRoundTrip(t *testing.T) {
	for _, want := range []Acquire{
		{Holder: `h "\ é 😀`, TTLMS: 1000},
		{Holder: "h", TTLMS: 86_400_000, Metadata: jsontext.Value(`{"a":[1,2.50]}`)},
	} {
		body, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadAcquire(body)
		if err != nil || got.Holder != want.Holder || got.TTLMS != want.TTLMS || !bytes.Equal(got.Metadata, want.Metadata) {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
	}
	for _, want := range []Renew{{7, 0}, {7, 1000}} {
		body, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ReadRenew(body); err != nil || got != want {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
	}
	if body, err := json.Marshal(Next{}); err != nil || string(body) != "{}" {
		t.Errorf("%s, %v", body, err)
	}
}

// Whatever passes is within the limits, and a plain decoder without our rules
// reads the same from it.
func FuzzAcquireBody(f *testing.F) {
	for _, s := range []string{
		`{"holder":"h"}`, `{"holder":"h","ttl_ms":5000,"metadata":{"a":[1]}}`, `{"holder":"h","ttl_ms":1e3}`,
		`{"holder":"\ud83d\ude00","wait_ms":0}`, `{"holder":"h","holder":"i"}`, `{"holder":"h"}x`, "{\"holder\":\"\xff\"}", ``, `[`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		got, err := ReadAcquire(body)
		if !bytes.Equal(body, before) {
			t.Fatalf("the body was written to")
		}
		if err != nil {
			if !errors.Is(err, lease.ErrBadRequest) {
				t.Fatalf("%v is not a bad-request", err)
			}
			return
		}
		request := lease.AcquireRequest{Resource: "r", Holder: got.Holder, TTL: milliseconds(got.TTLMS), Metadata: got.Metadata}
		if err := request.Check(); err != nil {
			t.Fatalf("%q passed, but %v", body, err)
		}
		var plain struct {
			Holder   string         `json:"holder"`
			TTL      *int64         `json:"ttl_ms"`
			Metadata jsontext.Value `json:"metadata"`
		}
		if err := json.Unmarshal(body, &plain); err != nil {
			t.Fatalf("%q passed, but %v", body, err)
		}
		if plain.Holder != got.Holder || !bytes.Equal(plain.Metadata, got.Metadata) || (plain.TTL != nil && *plain.TTL != got.TTLMS) {
			t.Fatalf("%q was read as %+v and as %+v", body, got, plain)
		}
	})
}

func BenchmarkReadAcquire(b *testing.B) {
	body := []byte(`{"holder":"worker-A","ttl_ms":15000}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadAcquire(body); err != nil {
			b.Fatal(err)
		}
	}
}

// One lease's metadata is part of everybody's listing (C59).
func TestMetadataIsNotDeep(t *testing.T) {
	nested := func(n int) string {
		return `{"holder":"h","metadata":` + strings.Repeat(`{"a":`, n-1) + `{}` + strings.Repeat(`}`, n-1) + `}`
	}
	if _, err := ReadAcquire([]byte(nested(lease.MaxMetadataDepth))); err != nil {
		t.Errorf("%d deep: %v", lease.MaxMetadataDepth, err)
	}
	body := nested(lease.MaxMetadataDepth + 1)
	_, err := ReadAcquire([]byte(body))
	if e := badRequest(t, body, err); e.Field != "metadata" || !strings.Contains(e.Detail, "32") {
		t.Errorf("%d deep: %v", lease.MaxMetadataDepth+1, err)
	}
}
