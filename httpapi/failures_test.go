package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/highwater/highwater/lease"
)

// every is one good request of each endpoint that asks the authority.
var every = []struct{ method, target, body string }{
	{"POST", "/v1/leases/a", `{"holder":"h"}`},
	{"PUT", "/v1/leases/a", `{"token":42}`},
	{"DELETE", "/v1/leases/a?token=42", ""},
	{"GET", "/v1/leases/a", ""},
	{"GET", "/v1/leases", ""},
	{"POST", "/v1/sequences/s", ""},
	{"GET", "/v1/sequences/s", ""},
	{"GET", "/v1/sequences", ""},
	{"GET", "/v1/tokens/42", ""},
}

func TestRefusalsOfTheAuthority(t *testing.T) {
	f, addr := serve(t)
	for _, c := range []struct {
		err     error
		status  int
		code    string
		retry   string
		applied lease.Applied
	}{
		{&lease.Error{Code: lease.CodeNotHeld}, 404, "not-held", "", ""},
		{&lease.Error{Code: lease.CodeTokenUnknown}, 404, "token-unknown", "", ""},
		{&lease.Error{Code: lease.CodeSequenceUnknown}, 404, "sequence-unknown", "", ""},
		{&lease.Error{Code: lease.CodeLeaseHeld, Remaining: 2500 * time.Millisecond}, 409, "lease-held", "3", ""},
		{&lease.Error{Code: lease.CodeLeaseHeld, Remaining: time.Millisecond}, 409, "lease-held", "1", ""},
		{&lease.Error{Code: lease.CodeLeaseHeld, Remaining: time.Hour}, 409, "lease-held", "5", ""},
		{&lease.Error{Code: lease.CodeLeaseLost, Reason: lease.ReasonForgotten}, 410, "lease-lost", "", ""},
		{&lease.Error{Code: lease.CodeTooBusy, RetryAfter: 1100 * time.Millisecond}, 429, "too-busy", "2", ""},
		{&lease.Error{Code: lease.CodeNoLeader, Applied: lease.AppliedNo}, 503, "no-leader", "1", lease.AppliedNo},
		{&lease.Error{Code: lease.CodeOutcomeUnknown, Applied: lease.AppliedUnknown}, 503, "outcome-unknown", "1", lease.AppliedUnknown},
		{&lease.Error{Code: lease.CodeTokensExhausted}, 507, "tokens-exhausted", "", lease.AppliedNo},
		{&lease.Error{Code: lease.CodeSequenceExhausted}, 507, "sequence-exhausted", "", lease.AppliedNo},
		{fmt.Errorf("wrapped: %w", &lease.Error{Code: lease.CodeNotHeld}), 404, "not-held", "", ""},
		{context.Canceled, 503, "outcome-unknown", "1", lease.AppliedUnknown},
		{context.DeadlineExceeded, 503, "outcome-unknown", "1", lease.AppliedUnknown},
	} {
		f.set(func(f *fake) { f.err = c.err })
		for _, r := range every {
			a := send(t, addr, r.method, r.target, r.body)
			p := a.problem(t)
			if a.StatusCode != c.status || p.Type != c.code || a.Header.Get("Retry-After") != c.retry || p.Applied != c.applied {
				t.Errorf("%s %s, %v: %d %v %s", r.method, r.target, c.err, a.StatusCode, a.Header, a.body)
			}
		}
	}
}

func TestLeaseHeldSaysWhoAndHowLong(t *testing.T) {
	f, addr := serve(t)
	f.set(func(f *fake) {
		f.err = &lease.Error{Code: lease.CodeLeaseHeld, Holder: "worker-A", CurrentToken: 41, Remaining: 12 * time.Second, Reason: lease.ReasonHeld}
	})
	a := send(t, addr, "POST", "/v1/leases/a", `{"holder":"worker-B"}`)
	const want = `{"type":"urn:highwater:problem:lease-held","title":"The resource is held","status":409,"holder":"worker-A","current_token":41,` +
		`"remaining_ms":12000,"reason":"held","queue_length":0,"waited_ms":0,"retry_after_ms":5000}`
	if string(a.body) != want {
		t.Errorf("%s\nwant\n%s", a.body, want)
	}
}

// log collects what a node logs.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// What goes wrong inside is logged, nothing of it is shown, and a write may
// have been applied.
func TestFailuresInside(t *testing.T) {
	logged := &log{}
	f, addr := serve(t, func(c *Config) { c.Logger = hclog.New(&hclog.LoggerOptions{Output: logged}) })
	for _, change := range []func(f *fake){
		func(f *fake) { f.err = errors.New("secret-1") },
		func(f *fake) { f.err = &lease.Error{Code: lease.CodeInternal, Detail: "secret-2"} },
		func(f *fake) { f.panics = "secret-3" },
		func(f *fake) { f.panics = errors.New("secret-4") },
	} {
		f.set(change)
		for _, r := range every {
			a := send(t, addr, r.method, r.target, r.body)
			want := lease.AppliedUnknown
			if r.method == "GET" {
				want = lease.AppliedNo
			}
			if p := a.problem(t); a.StatusCode != 500 || p.Type != "internal" || p.Applied != want || strings.Contains(string(a.body), "secret") {
				t.Errorf("%s %s: %d %s", r.method, r.target, a.StatusCode, a.body)
			}
		}
	}
	for n := 1; n <= 4; n++ {
		if got := strings.Count(logged.String(), fmt.Sprintf("secret-%d", n)); got < len(every) {
			t.Errorf("secret-%d is logged %d times for %d failures", n, got, len(every))
		}
	}
}

func TestWithoutALeader(t *testing.T) {
	f, addr := serve(t)
	f.set(func(f *fake) { f.leader, f.notYet = "", errors.New("the disk is slow") })
	for _, target := range []string{"/livez", "/v1/cluster", "/v1/leases/a?consistency=stale"} {
		a := send(t, addr, "GET", target, "")
		if _, there := a.Header["Highwater-Leader"]; there || a.StatusCode != 200 {
			t.Errorf("%s: %d %v", target, a.StatusCode, a.Header)
		}
	}
	if a := send(t, addr, "GET", "/readyz", ""); a.StatusCode != 503 || a.problem(t).Detail != "not ready: the disk is slow" || a.problem(t).Applied != lease.AppliedNo {
		t.Errorf("/readyz: %d %s", a.StatusCode, a.body)
	}
	f.set(func(f *fake) {
		f.notYet = &lease.Error{Code: lease.CodeOutcomeUnknown, Detail: "no leader is known", Leader: "n3"}
	})
	if a := send(t, addr, "HEAD", "/readyz", ""); a.StatusCode != 503 {
		t.Errorf("/readyz: %d", a.StatusCode)
	}
	if a := send(t, addr, "GET", "/readyz", ""); a.problem(t).Detail != "not ready: no leader is known" || a.problem(t).Type != "no-leader" {
		t.Errorf("/readyz: %s", a.body)
	}
}
