package httpapi

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/highwater/highwater/lease"
)

func TestAnswers(t *testing.T) {
	f, addr := serve(t)
	firstPage := lease.Page{Limit: 100}
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string
		asked                any
	}{
		{"POST", "/v1/leases/invoices/B-1042", `{"holder":"w","ttl_ms":5000,"metadata":{ "a":1.0 }}`, 201,
			`{"resource":"invoices/B-1042","holder":"w","token":42,"ttl_ms":5000,"remaining_ms":5000,"metadata":{ "a":1.0 },"granted_at":"2026-12-01T02:04:05.060Z"}`,
			lease.AcquireRequest{Resource: "invoices/B-1042", Holder: "w", TTL: 5 * time.Second, Metadata: []byte(`{ "a":1.0 }`)}},
		{"POST", "/v1/leases/a", `{"holder":"w","wait_ms":0,"lock_delay_ms":0}`, 201,
			`{"resource":"a","holder":"w","token":42,"ttl_ms":15000,"remaining_ms":15000,"granted_at":"2026-12-01T02:04:05.060Z"}`,
			lease.AcquireRequest{Resource: "a", Holder: "w", TTL: 15 * time.Second}},
		{"PUT", "/v1/leases/a/b", `{"token":42,"ttl_ms":1000}`, 200,
			`{"resource":"a/b","holder":"h","token":42,"ttl_ms":1000,"remaining_ms":1000,"granted_at":"2026-12-01T02:04:05.060Z"}`,
			lease.RenewRequest{Resource: "a/b", Token: 42, TTL: time.Second}},
		{"PUT", "/v1/leases/a", `{"token":42}`, 200, "", lease.RenewRequest{Resource: "a", Token: 42}},
		{"DELETE", "/v1/leases/a?token=42", "", 200, `{"released":true}`, lease.ReleaseRequest{Resource: "a", Token: 42}},
		{"GET", "/v1/leases/a", "", 200,
			`{"resource":"a","holder":"h","token":42,"ttl_ms":60000,"remaining_ms":1000,"granted_at":"2026-12-01T02:04:05.060Z"}`, read{"a", false}},
		{"GET", "/v1/leases/a?", "", 200, "", read{"a", false}},
		{"GET", "/v1/leases/a?consistency=linearizable", "", 200, "", read{"a", false}},
		{"GET", "/v1/leases/a?consistency=stale", "", 200, "", read{"a", true}},
		{"GET", "/v1/leases", "", 200, "", read{firstPage, false}},
		{"GET", "/v1/leases?prefix=a%2Fb/&after=a/b/c&limit=1000&consistency=stale", "", 200, "", read{lease.Page{Prefix: "a/b/", After: "a/b/c", Limit: 1000}, true}},
		{"GET", "/v1/leases?prefix=&after=&limit=1", "", 200, "", read{lease.Page{Limit: 1}, false}},
		{"POST", "/v1/sequences/ids/orders", "", 200, `{"name":"ids/orders","first":1,"last":1}`, lease.NextRequest{Name: "ids/orders", Count: 1}},
		{"POST", "/v1/sequences/s", "{}", 200, `{"name":"s","first":1,"last":1}`, lease.NextRequest{Name: "s", Count: 1}},
		{"POST", "/v1/sequences/s", `{"count":100000}`, 200, `{"name":"s","first":1,"last":100000}`, lease.NextRequest{Name: "s", Count: 100_000}},
		{"GET", "/v1/sequences/s", "", 200, `{"name":"s","last":7,"frozen":false}`, read{"s", false}},
		{"GET", "/v1/sequences/s?consistency=stale", "", 200, "", read{"s", true}},
		{"GET", "/v1/sequences", "", 200, `{"sequences":[{"name":"s","last":null,"frozen":false}]}`, read{firstPage, false}},
		{"GET", "/v1/sequences?consistency=stale&limit=7", "", 200, "", read{lease.Page{Limit: 7}, true}},
		{"GET", "/v1/tokens/41", "", 200, `{"token":41,"state":"forgotten"}`, read{lease.Token(41), false}},
		{"GET", "/v1/tokens/999999999999999?consistency=stale", "", 200, "", read{lease.MaxToken, true}},
		{"GET", "/v1/cluster", "", 200,
			`{"cluster_id":"c","node":"n1","term":0,"commit_index":0,"last_token":0,"floor":0,"feature_level":1,"nodes":[]}`, nil},
		{"GET", "/livez", "", 200, `{"live":true}`, nil},
		{"GET", "/readyz", "", 200, `{"ready":true}`, nil},
	} {
		a := send(t, addr, c.method, c.target, c.body)
		asked := f.calls()
		if a.StatusCode != c.status || (c.want != "" && string(a.body) != c.want) {
			t.Errorf("%s %s: %d %s\nwant %d %s", c.method, c.target, a.StatusCode, a.body, c.status, c.want)
		}
		if (c.asked == nil && len(asked) != 0) || (c.asked != nil && (len(asked) != 1 || !reflect.DeepEqual(asked[0], c.asked))) {
			t.Errorf("%s %s: asked %#v, want %#v", c.method, c.target, asked, c.asked)
		}
		age := ""
		if strings.Contains(c.target, "stale") {
			age = "2" // of 1.5 ms, rounded up
		}
		if got := a.Header.Get("Highwater-Age-Ms"); got != age {
			t.Errorf("%s %s: Highwater-Age-Ms is %q, want %q", c.method, c.target, got, age)
		}
		if c.method == "GET" {
			head := send(t, addr, "HEAD", c.target, "")
			f.calls()
			if head.StatusCode != c.status || head.Header.Get("Content-Length") != fmt.Sprint(len(a.body)) {
				t.Errorf("HEAD %s: %d with %v", c.target, head.StatusCode, head.Header)
			}
		}
	}
}

func TestLists(t *testing.T) {
	f, addr := serve(t)
	if a := send(t, addr, "GET", "/v1/leases", ""); strings.Contains(string(a.body), "next") || !strings.Contains(string(a.body), `{"resource":"b"`) {
		t.Errorf("the last page is %s", a.body)
	}
	f.set(func(f *fake) { f.more = true })
	if a := send(t, addr, "GET", "/v1/leases", ""); !strings.HasSuffix(string(a.body), `],"next":"b"}`) {
		t.Errorf("a page before others is %s", a.body)
	}
	if a := send(t, addr, "GET", "/v1/sequences", ""); !strings.HasSuffix(string(a.body), `],"next":"s"}`) {
		t.Errorf("a page before others is %s", a.body)
	}
	f.set(func(f *fake) { f.empty = true })
	for target, want := range map[string]string{"/v1/leases": `{"leases":[]}`, "/v1/sequences": `{"sequences":[]}`} {
		if a := send(t, addr, "GET", target, ""); string(a.body) != want {
			t.Errorf("%s without any is %s", target, a.body)
		}
	}
}

// Whatever is refused names the place and reaches no authority: "state
// unchanged" (C23, C34).
func TestRefusals(t *testing.T) {
	f, addr := serve(t)
	const acquire = `{"holder":"h"}`
	for _, c := range []struct {
		method, target, body string
		headers              []string
		status               int
		code, field          string
	}{
		// Bodies; the table of package wire has more.
		{"POST", "/v1/leases/a", `{"holder":"h","ttl_ms":0}`, nil, 400, "bad-request", "ttl_ms"},
		{"POST", "/v1/leases/a", `{"holder":"h","ttl_ms":1.5}`, nil, 400, "bad-request", "ttl_ms"},
		{"POST", "/v1/leases/a", `{"holder":"h","ttl_ms":9223372036854775808}`, nil, 400, "bad-request", "ttl_ms"},
		{"POST", "/v1/leases/a", `{"holder":"h","ttl_ms":"5000"}`, nil, 400, "bad-request", "ttl_ms"},
		{"POST", "/v1/leases/a", `{"Holder":"h"}`, nil, 400, "bad-request", "Holder"},
		{"POST", "/v1/leases/a", `{"holder":"h"} {}`, nil, 400, "bad-request", ""},
		{"POST", "/v1/leases/a", ``, nil, 400, "bad-request", ""},
		{"POST", "/v1/leases/a", `{"holder":"h","wait_ms":1000}`, nil, 400, "bad-request", "wait_ms"},
		{"POST", "/v1/leases/a", `{"holder":"h","lock_delay_ms":1000}`, nil, 400, "bad-request", "lock_delay_ms"},
		{"POST", "/v1/leases/a", `{"holder":"h","session":"x"}`, nil, 400, "bad-request", "session"},
		{"PUT", "/v1/leases/a", `{"token":0}`, nil, 400, "bad-request", "token"},
		{"PUT", "/v1/leases/a", `{"token":42,"ttl_ms":999}`, nil, 400, "bad-request", "ttl_ms"},
		{"PUT", "/v1/leases/a", `{"ttl_ms":1000}`, nil, 400, "bad-request", "token"},
		{"POST", "/v1/sequences/s", `{"count":0}`, nil, 400, "bad-request", "count"},
		{"POST", "/v1/sequences/s", `{"count":-1}`, nil, 400, "bad-request", "count"},
		{"POST", "/v1/sequences/s", `{"count":1.5}`, nil, 400, "bad-request", "count"},
		{"POST", "/v1/sequences/s", `{"count":1000000000}`, nil, 400, "bad-request", "count"},
		{"GET", "/v1/leases/a", "{}", nil, 400, "bad-request", ""},
		{"GET", "/v1/leases", "{}", nil, 400, "bad-request", ""},
		{"GET", "/v1/tokens/4", "{}", nil, 400, "bad-request", ""},
		{"GET", "/v1/cluster", "x", nil, 400, "bad-request", ""},
		{"GET", "/livez", "x", nil, 400, "bad-request", ""},
		{"DELETE", "/v1/leases/a?token=42", `{"token":42}`, nil, 400, "bad-request", ""},
		// Queries.
		{"DELETE", "/v1/leases/a", "", nil, 400, "bad-request", "token"},
		{"DELETE", "/v1/leases/a?token=", "", nil, 400, "bad-request", "token"},
		{"DELETE", "/v1/leases/a?token=0", "", nil, 400, "bad-request", "token"},
		{"DELETE", "/v1/leases/a?token=042", "", nil, 400, "bad-request", "token"},
		{"DELETE", "/v1/leases/a?token=4.2", "", nil, 400, "bad-request", "token"},
		{"DELETE", "/v1/leases/a?token=+42", "", nil, 400, "bad-request", "token"},
		{"DELETE", "/v1/leases/a?token=1000000000000000", "", nil, 400, "bad-request", "token"},
		{"DELETE", "/v1/leases/a?token=42&token=42", "", nil, 400, "bad-request", "token"},
		{"DELETE", "/v1/leases/a?token=42&tok%65n=43", "", nil, 400, "bad-request", "token"},
		{"DELETE", "/v1/leases/a?Token=42", "", nil, 400, "bad-request", "Token"},
		{"DELETE", "/v1/leases/a?token=42&x=1", "", nil, 400, "bad-request", "x"},
		{"DELETE", "/v1/leases/a?token=42&x", "", nil, 400, "bad-request", "x"},
		{"DELETE", "/v1/leases/a?token=42;x=1", "", nil, 400, "bad-request", ""},
		{"DELETE", "/v1/leases/a?token=%zz", "", nil, 400, "bad-request", ""},
		{"DELETE", "/v1/leases/a?force=true", "", nil, 400, "bad-request", "force"},
		{"DELETE", "/v1/leases/a?force=true&token=42", "", nil, 400, "bad-request", "force"},
		{"DELETE", "/v1/leases/a?token=42&reason=x", "", nil, 400, "bad-request", "reason"},
		{"POST", "/v1/leases/a?wait_ms=5", acquire, nil, 400, "bad-request", "wait_ms"},
		{"PUT", "/v1/leases/a?token=42", `{"token":42}`, nil, 400, "bad-request", "token"},
		{"POST", "/v1/sequences/s?count=5", "", nil, 400, "bad-request", "count"},
		{"GET", "/v1/leases/a?token=42", "", nil, 400, "bad-request", "token"},
		{"GET", "/v1/leases/a?consistency=eventual", "", nil, 400, "bad-request", "consistency"},
		{"GET", "/v1/leases/a?consistency=", "", nil, 400, "bad-request", "consistency"},
		{"GET", "/v1/leases/a?consistency=stale&consistency=stale", "", nil, 400, "bad-request", "consistency"},
		{"GET", "/v1/leases?limit=0", "", nil, 400, "bad-request", "limit"},
		{"GET", "/v1/leases?limit=1001", "", nil, 400, "bad-request", "limit"},
		{"GET", "/v1/leases?limit=-1", "", nil, 400, "bad-request", "limit"},
		{"GET", "/v1/leases?limit=01", "", nil, 400, "bad-request", "limit"},
		{"GET", "/v1/leases?limit=%2B1", "", nil, 400, "bad-request", "limit"},
		{"GET", "/v1/leases?limit=", "", nil, 400, "bad-request", "limit"},
		{"GET", "/v1/leases?limit=ten", "", nil, 400, "bad-request", "limit"},
		{"GET", "/v1/leases?limit=9223372036854775808", "", nil, 400, "bad-request", "limit"},
		{"GET", "/v1/leases?prefix=%ff", "", nil, 400, "bad-request", "prefix"},
		{"GET", "/v1/leases?after=%0A", "", nil, 400, "bad-request", "after"},
		{"GET", "/v1/leases?prefix=" + strings.Repeat("a", 513), "", nil, 400, "bad-request", "prefix"},
		{"GET", "/v1/sequences?limit=0", "", nil, 400, "bad-request", "limit"},
		{"GET", "/v1/sequences?x=%ff", "", nil, 400, "bad-request", "x"},
		{"GET", "/v1/sequences?%ff=1", "", nil, 400, "bad-request", "\ufffd"},
		{"GET", "/v1/cluster?consistency=stale", "", nil, 400, "bad-request", "consistency"},
		{"GET", "/readyz?x", "", nil, 400, "bad-request", "x"},
		{"GET", "/livez?x", "", nil, 400, "bad-request", "x"},
		{"GET", "/v1/tokens/42?x=1", "", nil, 400, "bad-request", "x"},
		// Tokens in paths.
		{"GET", "/v1/tokens/0", "", nil, 400, "bad-request", "token"},
		{"GET", "/v1/tokens/x", "", nil, 400, "bad-request", "token"},
		{"GET", "/v1/tokens/-1", "", nil, 400, "bad-request", "token"},
		{"GET", "/v1/tokens/1000000000000000", "", nil, 400, "bad-request", "token"},
		{"GET", "/v1/tokens/4%2F2", "", nil, 400, "bad-request", "token"},
		// Content types and encodings.
		{"POST", "/v1/leases/a", acquire, []string{"Content-Type: text/plain"}, 415, "unsupported-media-type", "Content-Type"},
		{"POST", "/v1/leases/a", acquire, []string{"Content-Type: multipart/form-data; boundary=x"}, 415, "unsupported-media-type", "Content-Type"},
		{"POST", "/v1/leases/a", acquire, []string{"Content-Type: application/json; charset=latin1"}, 415, "unsupported-media-type", "Content-Type"},
		{"PUT", "/v1/leases/a", `{"token":42}`, []string{"Content-Type: application/xml"}, 415, "unsupported-media-type", "Content-Type"},
		{"POST", "/v1/sequences/s", `{}`, []string{"Content-Type: ;"}, 415, "unsupported-media-type", "Content-Type"},
		{"POST", "/v1/leases/a", acquire, []string{"Content-Encoding: gzip"}, 415, "unsupported-media-type", "Content-Encoding"},
		// Keys.
		{"POST", "/v1/leases/a", acquire, []string{"Idempotency-Key: k"}, 400, "bad-request", "Idempotency-Key"},
		{"POST", "/v1/leases/a", acquire, []string{"Idempotency-Key: "}, 400, "bad-request", "Idempotency-Key"},
		{"POST", "/v1/sequences/s", "", []string{"Idempotency-Key: k"}, 400, "bad-request", "Idempotency-Key"},
		{"PUT", "/v1/leases/a", `{"token":42}`, []string{"Idempotency-Key:"}, 400, "bad-request", "Idempotency-Key"},
		{"PUT", "/v1/leases/a", `{"token":42}`, []string{"Idempotency-Key: a", "Idempotency-Key: b"}, 400, "bad-request", "Idempotency-Key"},
		{"DELETE", "/v1/leases/a?token=42", "", []string{"Idempotency-Key: " + strings.Repeat("k", 129)}, 400, "bad-request", "Idempotency-Key"},
		// Paths that are not there.
		{"GET", "/", "", nil, 404, "not-found", ""},
		{"GET", "/v1", "", nil, 404, "not-found", ""},
		{"GET", "/v2/leases/a", "", nil, 404, "not-found", ""},
		{"GET", "/v1/Leases/a", "", nil, 404, "not-found", ""},
		{"GET", "/v1%2Fleases/a", "", nil, 404, "not-found", ""},
		{"GET", "/livez%00", "", nil, 404, "not-found", ""},
		{"GET", "/v1/tokens", "", nil, 404, "not-found", ""},
		{"GET", "/v1/tokens/4/2", "", nil, 404, "not-found", ""},
		{"OPTIONS", "*", "", nil, 404, "not-found", ""},
		{"POST", "/v1/leases", `{"resources":["a"],"holder":"h"}`, nil, 404, "not-found", ""},
		{"POST", "/v1/batch", `{"operations":[]}`, nil, 404, "not-found", ""},
		{"POST", "/v1/sessions", `{}`, nil, 404, "not-found", ""},
		{"GET", "/v1/queues/a", "", nil, 404, "not-found", ""},
		{"GET", "/v1/events", "", nil, 404, "not-found", ""},
		{"GET", "/v1/cluster/floor", "", nil, 404, "not-found", ""},
		{"POST", "/v1/cluster/restore", strings.Repeat("x", 1000), nil, 404, "not-found", ""},
		{"GET", "/metrics", "", nil, 404, "not-found", ""},
		// Paths that other servers would clean.
		{"GET", "//", "", nil, 400, "bad-request", ""},
		{"GET", "//v1/leases/a", "", nil, 400, "bad-request", ""},
		{"GET", "/v1//leases/a", "", nil, 400, "bad-request", ""},
		{"GET", "/v1/./leases/a", "", nil, 400, "bad-request", ""},
		{"GET", "/x/../v1/leases/a", "", nil, 400, "bad-request", ""},
		{"GET", "/x/%2e%2e/v1/leases/a", "", nil, 400, "bad-request", ""},
		{"GET", "/livez/", "", nil, 400, "bad-request", ""},
		{"GET", "/v1/cluster/", "", nil, 400, "bad-request", ""},
		{"GET", "/v1/tokens/42/", "", nil, 400, "bad-request", ""},
		{"GET", "/v1/tokens/", "", nil, 400, "bad-request", ""},
		{"GET", "/v1/leases/", "", nil, 400, "bad-request", "resource"},
		{"GET", "/v1/sequences/", "", nil, 400, "bad-request", "sequence"},
		{"POST", "/v1/leases/", acquire, nil, 400, "bad-request", "resource"},
		// Methods.
		{"PATCH", "/v1/leases/a", "", nil, 405, "method-not-allowed", ""},
		{"OPTIONS", "/v1/leases/a", "", nil, 405, "method-not-allowed", ""},
		{"get", "/v1/leases/a", "", nil, 405, "method-not-allowed", ""},
		{"PUT", "/v1/leases", "", nil, 405, "method-not-allowed", ""},
		{"PUT", "/v1/sequences/s", `{"start":1}`, nil, 405, "method-not-allowed", ""},
		{"DELETE", "/v1/sequences/s", "", nil, 405, "method-not-allowed", ""},
		{"POST", "/v1/sequences", "", nil, 405, "method-not-allowed", ""},
		{"DELETE", "/v1/tokens/42", "", nil, 405, "method-not-allowed", ""},
		{"POST", "/v1/cluster", "", nil, 405, "method-not-allowed", ""},
		{"POST", "/livez", "", nil, 405, "method-not-allowed", ""},
		{"POST", "/readyz", "", nil, 405, "method-not-allowed", ""},
	} {
		a := send(t, addr, c.method, c.target, c.body, c.headers...)
		shown := fmt.Sprintf("%s %.80s %.80s %.80q", c.method, c.target, c.body, c.headers)
		p := a.problem(t)
		if a.StatusCode != c.status || p.Type != c.code || p.Field != c.field || p.Detail == "" {
			t.Errorf("%s: %d %s\nwant %d %s, field %q", shown, a.StatusCode, a.body, c.status, c.code, c.field)
		}
		if asked := f.calls(); len(asked) != 0 {
			t.Errorf("%s: refused, but the authority was asked %v", shown, asked)
		}
		if (a.Header.Get("Allow") != "") != (c.status == 405) {
			t.Errorf("%s: Allow is %q", shown, a.Header.Get("Allow"))
		}
		if a.Header.Get("Highwater-Leader") != "n2" {
			t.Errorf("%s: the leader is not named", shown)
		}
	}
}

func TestAllow(t *testing.T) {
	_, addr := serve(t)
	for target, want := range map[string]string{
		"/v1/leases/a": "DELETE, GET, HEAD, POST, PUT", "/v1/leases": "GET, HEAD",
		"/v1/sequences/s": "GET, HEAD, POST", "/v1/sequences": "GET, HEAD",
		"/v1/tokens/1": "GET, HEAD", "/v1/cluster": "GET, HEAD", "/livez": "GET, HEAD", "/readyz": "GET, HEAD",
	} {
		if got := send(t, addr, "PATCH", target, "").Header.Get("Allow"); got != want {
			t.Errorf("%s allows %q, want %q", target, got, want)
		}
	}
}

func TestContentTypesThatAreRead(t *testing.T) {
	_, addr := serve(t)
	for _, contentType := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8",
		"application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=utf-8", ""} {
		if a := send(t, addr, "POST", "/v1/leases/a", `{"holder":"h"}`, "Content-Type: "+contentType, "Content-Encoding: identity"); a.StatusCode != 201 {
			t.Errorf("%q: %d %s", contentType, a.StatusCode, a.body)
		}
	}
}

// Renew and release repeat by nature: a key is no harm.
func TestKeysThatAreNotNeeded(t *testing.T) {
	_, addr := serve(t)
	key := "Idempotency-Key: " + strings.Repeat("k", 128)
	for _, a := range []answer{
		send(t, addr, "PUT", "/v1/leases/a", `{"token":42}`, key),
		send(t, addr, "DELETE", "/v1/leases/a?token=42", "", key),
		send(t, addr, "GET", "/v1/leases/a", "", key),
	} {
		if a.StatusCode != 200 {
			t.Errorf("%d %s", a.StatusCode, a.body)
		}
	}
}
