package lease

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("a", MaxName)
	for name, ok := range map[string]bool{
		"invoices/B-1042": true, "a": true, "a/b/c": true, long: true, "a b?#%2F": true, "zażółć/☃/😀": true,
		"a/...": true, "..a": true, "a/.b": true, "A": true, "a ": true, "{\"}'\\": true,
		"": false, long + "a": false, "/": false, "/a": false, "a/": false, "a//b": false,
		".": false, "..": false, "a/./b": false, "a/../b": false, "../a": false, "a/..": false,
		"a\nb": false, "a\x00": false, "a\x7f": false, "a\u0085b": false, "a\xff": false, "\xed\xa0\x80": false,
	} {
		err := CheckName("resource", name)
		if (err == nil) != ok {
			t.Errorf("CheckName(%q) = %v, want ok %t", name, err, ok)
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeBadRequest || e.Field != "resource" || e.Detail == "" {
				t.Errorf("CheckName(%q): %#v does not name the field and the rule", name, err)
			}
		}
	}
}

func TestHolders(t *testing.T) {
	for holder, ok := range map[string]bool{
		"w": true, strings.Repeat("w", MaxHolder): true, "host/1234 ☃": true,
		"": false, strings.Repeat("w", MaxHolder+1): false, "w\r": false, "w\xc3": false,
	} {
		if err := CheckHolder("holder", holder); (err == nil) != ok {
			t.Errorf("CheckHolder(%q) = %v, want ok %t", holder, err, ok)
		}
	}
}

func TestParseToken(t *testing.T) {
	for s, want := range map[string]Token{
		"1": 1, "41": 41, "999999999999999": MaxToken,
		"": 0, "0": 0, "042": 0, "-1": 0, "+1": 0, "4e1": 0, "42.0": 0, " 42": 0, "42 ": 0, "1000000000000000": 0,
		"9223372036854775807": 0, "9223372036854775808": 0, "٤٢": 0, "0x2a": 0, "4_2": 0,
	} {
		got, err := ParseToken("token", s)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("ParseToken(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
}

func TestTTL(t *testing.T) { // C23
	for ttl, ok := range map[time.Duration]bool{
		MinTTL: true, DefaultTTL: true, MaxTTL: true, MinTTL + time.Millisecond: true,
		0: false, -time.Second: false, MinTTL - 1: false, MinTTL - time.Millisecond: false,
		MaxTTL + time.Millisecond: false, MinTTL + time.Microsecond: false, math.MaxInt64: false,
	} {
		if err := CheckTTL("ttl_ms", ttl); (err == nil) != ok {
			t.Errorf("CheckTTL(%v) = %v, want ok %t", ttl, err, ok)
		}
	}
}

func TestRequestsAreChecked(t *testing.T) {
	field := func(err error) string {
		var e *Error
		if errors.As(err, &e) {
			return e.Field
		}
		return ""
	}
	for _, c := range []struct {
		err   error
		field string
	}{
		{AcquireRequest{Resource: "r", Holder: "h", TTL: MinTTL}.Check(), ""},
		{AcquireRequest{Resource: "r/", Holder: "h", TTL: MinTTL}.Check(), "resource"},
		{AcquireRequest{Resource: "r", TTL: MinTTL}.Check(), "holder"},
		{AcquireRequest{Resource: "r", Holder: "h"}.Check(), "ttl_ms"},
		{AcquireRequest{Resource: "r", Holder: "h", TTL: MinTTL, Metadata: make([]byte, MaxMetadata+1)}.Check(), "metadata"},
		{RenewRequest{Resource: "r", Token: 1}.Check(), ""},
		{RenewRequest{Resource: "r", Token: 1, TTL: 1}.Check(), "ttl_ms"},
		{RenewRequest{Resource: "r"}.Check(), "token"},
		{RenewRequest{Token: 1}.Check(), "resource"},
		{ReleaseRequest{Resource: "r", Token: MaxToken}.Check(), ""},
		{ReleaseRequest{Resource: "r", Token: MaxToken + 1}.Check(), "token"},
		{NextRequest{Name: "s", Count: 1}.Check(), ""},
		{NextRequest{Name: "s", Count: MaxCount}.Check(), ""},
		{NextRequest{Name: "s", Count: 0}.Check(), "count"},
		{NextRequest{Name: "s", Count: MaxCount + 1}.Check(), "count"},
		{NextRequest{Name: "", Count: 1}.Check(), "sequence"},
		{Page{Limit: 1}.Check(), ""},
		{Page{Limit: 0}.Check(), "limit"},
		{Page{Limit: MaxPage + 1}.Check(), "limit"},
		{Page{Limit: 1, Prefix: "a/"}.Check(), ""},
		{Page{Limit: 1, Prefix: "\n"}.Check(), "prefix"},
		{Page{Limit: 1, After: "\xff"}.Check(), "after"},
	} {
		if got := field(c.err); got != c.field {
			t.Errorf("field %q at fault, want %q: %v", got, c.field, c.err)
		}
	}
}

func TestErrorsAreAskedForByCode(t *testing.T) {
	err := error(&Error{Code: CodeLeaseHeld, Holder: "worker-A", Detail: "held"})
	if !errors.Is(err, ErrLeaseHeld) || errors.Is(err, ErrLeaseLost) {
		t.Errorf("errors.Is must compare codes and nothing else")
	}
}

// Two lives of a cluster that begin within one second must not share a token
// (C67): the floor of the later one is never below what the rate rule lets the
// earlier one reach.
func TestAutoFloorIsAboveEveryEarlierLife(t *testing.T) {
	const begun = 1_800_000_000
	for lived := range int64(5) { // whole seconds since grants began, one second after the floor was read
		reach := AutoFloor(begun) + Token((1+lived)*TokensPerSecond)
		if next := AutoFloor(begun + 1 + lived); next < reach {
			t.Errorf("floor %d of a life begun %d s later is below %d", next, 1+lived, reach)
		}
	}
	if AutoFloor(1<<31) > MaxToken {
		t.Errorf("the automatic floor leaves the range in 2038")
	}
}

func FuzzCheckName(f *testing.F) {
	for _, s := range []string{"a/b", "a//b", "..", "%2e", "\x00", "😀"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if CheckName("resource", s) != nil {
			return
		}
		if len(s) == 0 || len(s) > MaxName || strings.Contains("/"+s+"/", "//") ||
			strings.Contains("/"+s+"/", "/./") || strings.Contains("/"+s+"/", "/../") || !strings.EqualFold(s, strings.ToValidUTF8(s, "")) {
			t.Errorf("%q passed", s)
		}
	})
}
