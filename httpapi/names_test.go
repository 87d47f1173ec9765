package httpapi

import (
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/highwater/highwater/lease"
)

// A name is what one percent-decoding gives: round trip, or 400 (C40, C73).
func TestNames(t *testing.T) {
	f, addr := serve(t)
	for target, want := range map[string]string{
		"a": "a", "a/b": "a/b", "a%2Fb": "a/b", "a%2fb/c": "a/b/c", "%61": "a",
		"a%20b": "a b", "a+b": "a+b", "a%2Bb": "a+b", "a%3Fb": "a?b", "a%23b": "a#b", "a%25b": "a%b",
		"a%252Fb": "a%2Fb", "%252e%252e": "%2e%2e", "a;b,c=d&e": "a;b,c=d&e", "a:b@c": "a:b@c", "A": "A",
		"%F0%9F%98%80": "😀", "😀": "😀", "%C3%A9": "é", "e%CC%81": "e\u0301", "...": "...", "a/.b": "a/.b", "%22%5C": `"\`, "{x}": "{x}",
		"queue": "queue", "v1/leases/a": "v1/leases/a", "a%E2%80%A8b": "a\u2028b",
		strings.Repeat("a", 512): strings.Repeat("a", 512), strings.Repeat("%61", 512): strings.Repeat("a", 512),
		"a//b": "", "a%2F%2Fb": "", "a/%2Fb": "", "%2Fa": "", "/a": "", "a/": "", "a%2F": "", "a/../b": "", "..": "", "%2e%2e": "", "%2E.": "", "a/%2e%2e/b": "",
		"a%2F..%2Fb": "", ".": "", "a/.": "", "a/./b": "", "%2e": "", "": "",
		"a%0Ab": "", "a%00": "", "a%7F": "", "a%C2%85": "", "%FF": "", "a%C3": "", "%ED%A0%80": "", "%C0%AF": "", "\xff": "",
		strings.Repeat("a", 513): "", strings.Repeat("%C3%A9", 257): "",
	} {
		for _, path := range []string{"/v1/leases/", "/v1/sequences/"} {
			a := send(t, addr, "GET", path+target, "")
			asked := f.calls()
			switch {
			case want == "" && (a.StatusCode != 400 || a.problem(t).Type != "bad-request" || a.problem(t).Field == "" || len(asked) != 0):
				t.Errorf("%s%.60q: %d %s, asked %v; want 400 and the field", path, target, a.StatusCode, a.body, asked)
			case want != "" && (a.StatusCode != 200 || len(asked) != 1 || asked[0] != read{want, false}):
				t.Errorf("%s%.60q: %d %s, asked %v; want %q", path, target, a.StatusCode, a.body, asked, want)
			}
		}
	}
}

// Every name goes through the path unchanged, however it is encoded, and what
// is no name goes nowhere.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"a", "a/b", "a%2Fb", "a//b", "..", "a/../b", "%2e%2e", "😀", "\xff", "a\nb", "a b?#+;%", "a/", "/", ""} {
		f.Add(s)
	}
	authority := &fake{}
	handler := New(Config{Authority: authority, Cluster: cluster})
	f.Fuzz(func(t *testing.T, name string) {
		encodings := []string{url.PathEscape(name), strings.ReplaceAll(url.PathEscape(name), "%2F", "/"), (&url.URL{Path: name}).EscapedPath()}
		for _, encoded := range encodings {
			// An unescaped "*" alone is what EscapedPath makes of "*".
			target, err := url.ParseRequestURI("/v1/leases/" + encoded)
			if err != nil {
				continue
			}
			r := httptest.NewRequest("GET", "/", nil)
			r.URL, r.RequestURI = target, target.RequestURI()
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			asked := authority.calls()
			if lease.CheckName("resource", name) != nil {
				if w.Code != 400 || len(asked) != 0 {
					t.Fatalf("%q as %q: %d, asked %v", name, encoded, w.Code, asked)
				}
			} else if w.Code != 200 || len(asked) != 1 || asked[0] != (read{name, false}) {
				t.Fatalf("%q as %q: %d, asked %v", name, encoded, w.Code, asked)
			}
		}
		// Taken as the path itself, it is one name at most: its own decoding.
		target, err := url.ParseRequestURI("/v1/leases/" + name)
		if err != nil {
			return
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.URL, r.RequestURI = target, target.RequestURI()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		raw, _, _ := strings.Cut(name, "?")
		decoded, _ := url.PathUnescape(raw)
		for _, asked := range authority.calls() {
			if asked.(read).what != decoded {
				t.Fatalf("the path %q asked for %v", name, asked)
			}
		}
	})
}
