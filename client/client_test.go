package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/highwater/highwater/client"
	"github.com/highwater/highwater/lease"
)

// script is an http.RoundTripper that answers each sending by the next step,
// and the last step again and again.
type script struct {
	mu    sync.Mutex
	steps []func(*http.Request) (*http.Response, error)
	sent  []string    // host and method of each sending
	at    []time.Time // when
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	step := s.steps[min(len(s.sent), len(s.steps)-1)]
	s.sent = append(s.sent, r.Method+" "+r.URL.Host)
	s.at = append(s.at, time.Now())
	s.mu.Unlock()
	return step(r)
}

func (s *script) then(steps ...func(*http.Request) (*http.Response, error)) *script {
	s.steps = append(s.steps, steps...)
	return s
}

func say(status int, body string, header ...string) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) {
		h := http.Header{"Content-Type": {"application/json"}}
		if status >= 400 {
			h.Set("Content-Type", "application/problem+json")
		}
		for i := 0; i+1 < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}, nil
	}
}

func problem(name string, status int, members string) string {
	return fmt.Sprintf(`{"type":"urn:highwater:problem:%s","title":"t","status":%d,"detail":"d"%s}`, name, status, members)
}

var (
	notDialled = func(*http.Request) (*http.Response, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	cut      = func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }
	hang     = func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() }
	noLeader = say(503, problem("no-leader", 503, `,"applied":"no"`), "Retry-After", "1")
	doubt    = say(503, problem("outcome-unknown", 503, `,"applied":"unknown"`), "Retry-After", "1")
	held     = say(409, problem("lease-held", 409, `,"holder":"B","current_token":7,"remaining_ms":1500,"reason":"held","queue_length":0,"waited_ms":0`), "Retry-After", "2")
	granted  = say(201, `{"resource":"a/b","holder":"A","token":8,"ttl_ms":15000,"remaining_ms":15000,"granted_at":"2026-12-01T00:00:00.000Z","later":{"member":1}}`)
	renewed  = say(200, `{"resource":"a/b","holder":"A","token":8,"ttl_ms":15000,"remaining_ms":15000,"granted_at":"2026-12-01T00:00:00.000Z"}`)
	taken    = say(200, `{"name":"s","first":5,"last":6}`)
	released = say(200, `{"released":true}`)
)

func newClient(t *testing.T, s *script, config client.Config) *client.Client {
	t.Helper()
	if config.Endpoints == nil {
		config.Endpoints = []string{"http://n1", "http://n2", "http://n3"}
	}
	if s != nil {
		config.HTTP = &http.Client{Transport: s}
	}
	c, err := client.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The calls under test, each with what became of it.
var calls = map[string]func(context.Context, *client.Client) error{
	"acquire": func(ctx context.Context, c *client.Client) error {
		_, err := c.Acquire(ctx, lease.AcquireRequest{Resource: "a/b", Holder: "A"})
		return err
	},
	"renew": func(ctx context.Context, c *client.Client) error {
		_, err := c.Renew(ctx, lease.RenewRequest{Resource: "a/b", Token: 8})
		return err
	},
	"release": func(ctx context.Context, c *client.Client) error {
		return c.Release(ctx, lease.ReleaseRequest{Resource: "a/b", Token: 8})
	},
	"next": func(ctx context.Context, c *client.Client) error {
		_, err := c.Next(ctx, lease.NextRequest{Name: "s", Count: 2})
		return err
	},
	"get": func(ctx context.Context, c *client.Client) error {
		_, err := c.Get(ctx, "a/b")
		return err
	},
}

// TestFates: what is sent again, and what the caller is told, by what the
// sendings came to.
func TestFates(t *testing.T) {
	type steps = []func(*http.Request) (*http.Response, error)
	tests := []struct {
		name  string
		call  string
		steps steps
		want  *lease.Error // nil: success
		sent  int
	}{
		{"granted", "acquire", steps{granted}, nil, 1},
		{"not sent, then granted", "acquire", steps{notDialled, notDialled, granted}, nil, 3},
		{"not applied, then granted", "acquire", steps{noLeader, granted}, nil, 2},
		{"not applied by anyone, then granted", "acquire", steps{noLeader, noLeader, noLeader, granted}, nil, 4},
		{"refused", "acquire", steps{held}, lease.ErrLeaseHeld, 1},
		{"cut off", "acquire", steps{cut}, lease.ErrOutcomeUnknown, 1},
		{"hangs", "acquire", steps{hang}, lease.ErrOutcomeUnknown, 1},
		{"in doubt", "acquire", steps{doubt}, lease.ErrOutcomeUnknown, 1},
		{"not sent, then cut off", "acquire", steps{notDialled, cut}, lease.ErrOutcomeUnknown, 2},
		{"cannot be read", "acquire", steps{say(201, `{"resource":"a/b"`)}, lease.ErrOutcomeUnknown, 1},
		{"without a token", "acquire", steps{say(201, `{"resource":"a/b","holder":"A","ttl_ms":15000,"remaining_ms":15000}`)}, lease.ErrOutcomeUnknown, 1},
		{"of another resource", "acquire", steps{say(201, `{"resource":"a","holder":"A","token":8,"ttl_ms":15000,"remaining_ms":15000}`)}, lease.ErrOutcomeUnknown, 1},
		{"a proxy's error", "acquire", steps{say(502, `<html>`)}, lease.ErrOutcomeUnknown, 1},

		{"released", "release", steps{released}, nil, 1},
		{"not sent, then released", "release", steps{notDialled, released}, nil, 2},
		{"cut off", "release", steps{cut}, lease.ErrOutcomeUnknown, 1},

		{"cut off, then renewed", "renew", steps{cut, renewed}, nil, 2},
		{"hangs, then renewed", "renew", steps{hang, renewed}, nil, 2},
		{"in doubt, then renewed", "renew", steps{doubt, renewed}, nil, 2},
		{"in doubt, then lost", "renew", steps{doubt, say(410, problem("lease-lost", 410, `,"reason":"forgotten"`))}, lease.ErrLeaseLost, 2},
		{"another error", "renew", steps{say(429, problem("too-busy", 429, ``), "Retry-After", "1")}, lease.ErrTooBusy, 1},

		{"cut off, then taken", "next", steps{cut, taken}, nil, 2},
		{"cut off, then read", "get", steps{cut, renewed}, nil, 2},
	}
	for _, test := range tests {
		t.Run(test.call+"/"+test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := new(script).then(test.steps...)
				err := calls[test.call](t.Context(), newClient(t, s, client.Config{}))
				if (test.want == nil) != (err == nil) || (test.want != nil && !errors.Is(err, test.want)) {
					t.Errorf("err = %v, want %v", err, test.want)
				}
				if len(s.sent) != test.sent {
					t.Errorf("sent %v, want %d sendings", s.sent, test.sent)
				}
			})
		})
	}
}

// TestEndpoints: another endpoint is asked before the same one again, and the
// one that answered is asked first the next time.
func TestEndpoints(t *testing.T) {
	s := new(script).then(noLeader, notDialled, granted, granted)
	c := newClient(t, s, client.Config{})
	for range 2 {
		if err := calls["acquire"](t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := strings.Join(s.sent, ", "), "POST n1, POST n2, POST n3, POST n3"; got != want {
		t.Errorf("sent %s, want %s", got, want)
	}
}

// TestRetryAfter: when all endpoints have said to come back in a second, the
// next round begins no earlier, and there is none after RetryFor.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(script).then(noLeader)
		err := calls["acquire"](t.Context(), newClient(t, s, client.Config{RetryFor: 2500 * time.Millisecond}))
		if !errors.Is(err, lease.ErrNoLeader) {
			t.Errorf("err = %v, want no-leader", err)
		}
		if len(s.sent) != 9 {
			t.Fatalf("%d sendings, want three rounds of three", len(s.sent))
		}
		for round := 1; round < 3; round++ {
			if waited := s.at[3*round].Sub(s.at[3*round-1]); waited < time.Second || waited > 2*time.Second {
				t.Errorf("waited %v before round %d, want 1 s or a little more", waited, round)
			}
		}
	})
}

// TestDoubtStays: a request that may have been applied once is never reported
// as not applied because of a later sending (I6).
func TestDoubtStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, call := range []string{"renew", "next"} {
			s := new(script).then(cut, noLeader)
			err := calls[call](t.Context(), newClient(t, s, client.Config{}))
			var known *lease.Error
			if !errors.As(err, &known) || known.Code != lease.CodeOutcomeUnknown || known.Applied != lease.AppliedUnknown {
				t.Errorf("%s: err = %v, want outcome-unknown", call, err)
			}
		}
		// A read has no outcome to be in doubt of.
		s := new(script).then(cut, noLeader)
		if err := calls["get"](t.Context(), newClient(t, s, client.Config{})); !errors.Is(err, lease.ErrNoLeader) {
			t.Errorf("get: err = %v, want no-leader", err)
		}
	})
}

// TestToldMore: that a node has no leader says more than that another one does
// not answer, whichever comes last.
func TestToldMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, step := range []int{0, 1} {
			s := new(script)
			for i := range 200 {
				if i%2 == step {
					s.then(noLeader)
				} else {
					s.then(notDialled)
				}
			}
			err := calls["renew"](t.Context(), newClient(t, s, client.Config{}))
			if !errors.Is(err, lease.ErrNoLeader) || strings.Contains(err.Error(), "no node answered") {
				t.Errorf("err = %v, want what the node said", err)
			}
		}
	})
}

// TestContext: a context that ends is found in the error, next to what is known
// of the request.
func TestContext(t *testing.T) {
	for name, test := range map[string]struct {
		step func(*http.Request) (*http.Response, error)
		want *lease.Error
	}{
		"under way": {hang, lease.ErrOutcomeUnknown},
		"waiting":   {noLeader, lease.ErrNoLeader},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				began := time.Now()
				err := calls["acquire"](ctx, newClient(t, new(script).then(test.step), client.Config{}))
				if !errors.Is(err, test.want) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("err = %v, want %v and context.DeadlineExceeded", err, test.want)
				}
				if took := time.Since(began); took != 500*time.Millisecond {
					t.Errorf("took %v after a context of 500ms", took)
				}
			})
		})
	}
}

func TestOneAttempt(t *testing.T) {
	for _, step := range []func(*http.Request) (*http.Response, error){notDialled, noLeader, doubt, cut} {
		for name, call := range calls {
			s := new(script).then(step)
			c := newClient(t, s, client.Config{OneAttempt: true})
			if err := call(t.Context(), c); err == nil {
				t.Errorf("%s: no error", name)
			}
			if len(s.sent) != 1 {
				t.Errorf("%s: sent %v, want one sending", name, s.sent)
			}
		}
	}
}

// TestDeadline: counted from before the first sending, whatever the answers
// took (C01).
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c := newClient(t, new(script).then(noLeader, noLeader, noLeader, granted), client.Config{})
		grant, err := c.Acquire(t.Context(), lease.AcquireRequest{Resource: "a/b", Holder: "A"})
		if err != nil {
			t.Fatal(err)
		}
		if time.Since(began) < time.Second {
			t.Fatal("the answer took no time, so this shows nothing")
		}
		if want := began.Add(15 * time.Second); !grant.Deadline.Equal(want) {
			t.Errorf("deadline is %v after the first sending, want the TTL", grant.Deadline.Sub(began))
		}
	})
}

// TestDeadlineOfShortRenewal: a renewal that moved nothing leaves the TTL and
// says what remains (C63).
func TestDeadlineOfShortRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, new(script).then(say(200, `{"resource":"a/b","holder":"A","token":8,"ttl_ms":60000,"remaining_ms":20000}`)), client.Config{})
		grant, err := c.Renew(t.Context(), lease.RenewRequest{Resource: "a/b", Token: 8, TTL: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(grant.Deadline); left != 20*time.Second {
			t.Errorf("%v left, want the 20s that remain", left)
		}
	})
}

// TestAnswerTooLate: a grant whose time was over when its answer came is lost.
func TestAnswerTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := func(r *http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second) // the bubble's clock
			return say(201, `{"resource":"a/b","holder":"A","token":8,"ttl_ms":2000,"remaining_ms":2000}`)(r)
		}
		c := newClient(t, new(script).then(late), client.Config{})
		_, err := c.Acquire(t.Context(), lease.AcquireRequest{Resource: "a/b", Holder: "A", TTL: 2 * time.Second})
		if !errors.Is(err, lease.ErrLeaseLost) {
			t.Errorf("err = %v, want lease-lost", err)
		}
	})
}

// TestMembers: a refusal keeps what it said.
func TestMembers(t *testing.T) {
	_, err := newClient(t, new(script).then(held), client.Config{}).
		Acquire(t.Context(), lease.AcquireRequest{Resource: "a/b", Holder: "A"})
	var known *lease.Error
	if !errors.As(err, &known) {
		t.Fatalf("err = %v", err)
	}
	if known.Holder != "B" || known.CurrentToken != 7 || known.Remaining != 1500*time.Millisecond || known.Reason != lease.ReasonHeld {
		t.Errorf("got %+v", known)
	}
}

// TestNothingSent: what breaks a limit is refused before it is sent.
func TestNothingSent(t *testing.T) {
	s := new(script).then(granted)
	c := newClient(t, s, client.Config{})
	ctx := t.Context()
	_, acquired := c.Acquire(ctx, lease.AcquireRequest{Resource: "a/../b", Holder: "A"})
	_, renewed := c.Renew(ctx, lease.RenewRequest{Resource: "a", Token: 0})
	_, got := c.Get(ctx, "")
	_, looked := c.Token(ctx, lease.MaxToken+1)
	_, taken := c.Next(ctx, lease.NextRequest{Name: "s", Count: -1})
	for i, err := range []error{acquired, renewed, got, looked, taken} {
		if !errors.Is(err, lease.ErrBadRequest) {
			t.Errorf("%d: err = %v, want bad-request", i, err)
		}
	}
	if len(s.sent) != 0 {
		t.Errorf("sent %v", s.sent)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, endpoint := range []string{"", "127.0.0.1:8400", "ftp://a", "http://", "http://a/v1", "http://u@a", "http://a?b", ":"} {
		if _, err := client.New(client.Config{Endpoints: []string{endpoint}}); !errors.Is(err, lease.ErrBadRequest) {
			t.Errorf("%q: err = %v, want bad-request", endpoint, err)
		}
	}
	if _, err := client.New(client.Config{}); !errors.Is(err, lease.ErrBadRequest) {
		t.Errorf("no endpoint: err = %v, want bad-request", err)
	}
}

// TestNames: a name arrives as it was given (C40).
func TestNames(t *testing.T) {
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = strings.TrimPrefix(r.URL.Path, "/v1/leases/")
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(404)
		io.WriteString(w, problem("not-held", 404, ""))
	}))
	defer server.Close()
	c := newClient(t, nil, client.Config{Endpoints: []string{server.URL}})
	for _, name := range []string{"a", "a/b", "a b", "a?b", "a#b", "a%2Fb", "a%", "a&b=c", "a;b", "a+b", "é/🔒", "a.b/..c", strings.Repeat("ü", 256)} {
		if _, err := c.Get(t.Context(), name); !errors.Is(err, lease.ErrNotHeld) {
			t.Errorf("%q: err = %v, want not-held", name, err)
		}
		if got != name {
			t.Errorf("%q arrived as %q", name, got)
		}
	}
}

// TestPages: all pages, each from where the one before ended.
func TestPages(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one := func(name string) string {
			return fmt.Sprintf(`{"resource":%q,"holder":"A","token":1,"ttl_ms":1000,"remaining_ms":1000}`, name)
		}
		switch q := r.URL.Query(); q.Get("prefix") + "|" + q.Get("after") {
		case "a&|":
			fmt.Fprintf(w, `{"leases":[%s,%s],"next":"a&2"}`, one("a&1"), one("a&2"))
		case "a&|a&2":
			fmt.Fprintf(w, `{"leases":[%s]}`, one("a&3"))
		case "loop|", "loop|x":
			fmt.Fprintf(w, `{"leases":[%s],"next":"x"}`, one("loop"))
		default:
			t.Errorf("asked for %s", r.URL)
			w.WriteHeader(404)
		}
	}))
	defer server.Close()
	c := newClient(t, nil, client.Config{Endpoints: []string{server.URL}})
	var names []string
	for l, err := range c.List(t.Context(), "a&") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, l.Resource)
	}
	if got := strings.Join(names, " "); got != "a&1 a&2 a&3" {
		t.Errorf("listed %s", got)
	}
	var last error
	for _, err := range c.List(t.Context(), "loop") {
		last = err
	}
	if last == nil {
		t.Error("a listing that goes in circles ended without an error")
	}
}

// TestAnswerIsBounded: an endless answer is not read to its end.
func TestAnswerIsBounded(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chunk := []byte(strings.Repeat(" ", 1<<20))
		for {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	c := newClient(t, nil, client.Config{Endpoints: []string{server.URL}, OneAttempt: true})
	if _, err := c.Get(t.Context(), "a"); err == nil {
		t.Error("no error")
	}
}

// TestConnectionsAreKept: as many connections as requests at once, not more.
func TestConnectionsAreKept(t *testing.T) {
	const atOnce = 8
	var opened atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"released":true}`)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	c := newClient(t, nil, client.Config{Endpoints: []string{server.URL}})
	var running sync.WaitGroup
	for range atOnce {
		running.Go(func() {
			for range 50 {
				if err := calls["release"](t.Context(), c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	// net/http may dial for a request that a freed connection then serves.
	if n := opened.Load(); n > 4*atOnce {
		t.Errorf("opened %d connections for %d requests at once", n, atOnce)
	}
}
