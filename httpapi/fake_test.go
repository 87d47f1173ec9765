package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

var granted = time.Date(2026, 12, 1, 2, 4, 5, 60_000_000, time.UTC)

// fake is an authority that grants everything, notes what it was asked, and
// fails with err where that is set.
type fake struct {
	mu     sync.Mutex
	asked  []any
	err    error
	leader string
	notYet error
	more   bool
	panics any
	empty  bool
}

func (f *fake) ask(request any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, request)
	if f.panics != nil {
		panic(f.panics)
	}
	return f.err
}

// calls returns what was asked since the last call.
func (f *fake) calls() []any {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

func (f *fake) set(change func(f *fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

type read struct {
	what  any
	stale bool
}

const age = 1500 * time.Microsecond

func (f *fake) Acquire(ctx context.Context, r lease.AcquireRequest) (lease.Lease, error) {
	err := f.ask(r)
	return lease.Lease{Resource: r.Resource, Holder: r.Holder, Token: 42, TTL: r.TTL, Remaining: r.TTL, Metadata: r.Metadata, GrantedAt: granted}, err
}

func (f *fake) Renew(ctx context.Context, r lease.RenewRequest) (lease.Lease, error) {
	err := f.ask(r)
	return lease.Lease{Resource: r.Resource, Holder: "h", Token: r.Token, TTL: r.TTL, Remaining: r.TTL, GrantedAt: granted}, err
}

func (f *fake) Release(ctx context.Context, r lease.ReleaseRequest) error { return f.ask(r) }

func (f *fake) Next(ctx context.Context, r lease.NextRequest) (lease.Range, error) {
	return lease.Range{Name: r.Name, First: 1, Last: lease.Token(r.Count)}, f.ask(r)
}

func (f *fake) GetLease(ctx context.Context, resource string, stale bool) (lease.Lease, time.Duration, error) {
	err := f.ask(read{resource, stale})
	return lease.Lease{Resource: resource, Holder: "h", Token: 42, TTL: time.Minute, Remaining: time.Second, GrantedAt: granted}, age, err
}

func (f *fake) ListLeases(ctx context.Context, p lease.Page, stale bool) ([]lease.Lease, bool, time.Duration, error) {
	if err := f.ask(read{p, stale}); err != nil || f.empty {
		return nil, false, age, err
	}
	return []lease.Lease{{Resource: "a", Holder: "h", Token: 42, GrantedAt: granted}, {Resource: "b", Holder: "h", Token: 43, GrantedAt: granted}}, f.more, age, nil
}

func (f *fake) GetToken(ctx context.Context, t lease.Token, stale bool) (lease.TokenInfo, time.Duration, error) {
	return lease.TokenInfo{Token: t, State: lease.StateForgotten}, age, f.ask(read{t, stale})
}

func (f *fake) GetSequence(ctx context.Context, name string, stale bool) (lease.Sequence, time.Duration, error) {
	return lease.Sequence{Name: name, Last: 7, Issued: true}, age, f.ask(read{name, stale})
}

func (f *fake) ListSequences(ctx context.Context, p lease.Page, stale bool) ([]lease.Sequence, bool, time.Duration, error) {
	if err := f.ask(read{p, stale}); err != nil || f.empty {
		return nil, false, age, err
	}
	return []lease.Sequence{{Name: "s"}}, f.more, age, nil
}

func (f *fake) Names() (node, leader string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return "n1", f.leader
}

func (f *fake) Ready() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.notYet
}

func cluster() wire.Cluster { return wire.Cluster{ClusterID: "c", Node: "n1", FeatureLevel: 1} }

// serve starts a server on a socket.
func serve(t testing.TB, change ...func(*Config)) (*fake, string) {
	t.Helper()
	f := &fake{leader: "n2"}
	c := Config{Authority: f, Cluster: cluster}
	for _, ch := range change {
		ch(&c)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(c)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-done; err != http.ErrServerClosed {
			t.Errorf("serve: %v", err)
		}
	})
	return f, l.Addr().String()
}

// answer is what came back.
type answer struct {
	*http.Response
	body []byte
}

// send writes a request byte for byte as told, so that no client library can
// clean what is under test, and checks what holds for every answer.
func send(t testing.TB, addr, method, target, body string, headers ...string) answer {
	t.Helper()
	raw := method + " " + target + " HTTP/1.1\r\n"
	if !strings.HasPrefix(strings.Join(headers, "\n"), "Host:") {
		raw += "Host: " + addr + "\r\n"
	}
	for _, h := range headers {
		raw += h + "\r\n"
	}
	if body != "" {
		raw += "Content-Length: " + strconv.Itoa(len(body)) + "\r\n"
	}
	return exchange(t, addr, method, raw+"Connection: close\r\n\r\n"+body)
}

func exchange(t testing.TB, addr, method, raw string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	go io.WriteString(conn, raw) // the answer may come before all is sent
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%.60q: %v", raw, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%.60q: %v", raw, err)
	}
	a := answer{resp, got}
	if err := a.check(method); err != nil {
		t.Errorf("%.80q: %v\n%d %v\n%s", raw, err, resp.StatusCode, resp.Header, got)
	}
	return a
}

// check is what the API says of every answer.
func (a answer) check(method string) error {
	if a.Header.Get("Highwater-Node") != "n1" {
		return fmt.Errorf("Highwater-Node is missing")
	}
	length, err := strconv.Atoi(a.Header.Get("Content-Length"))
	if err != nil || length == 0 || (method != "HEAD" && length != len(a.body)) || (method == "HEAD" && len(a.body) != 0) {
		return fmt.Errorf("Content-Length is %q with a body of %d bytes", a.Header.Get("Content-Length"), len(a.body))
	}
	if a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("Location") != "" {
		return fmt.Errorf("it may be cached, or sends on")
	}
	contentType := a.Header.Get("Content-Type")
	if a.StatusCode < 300 {
		if contentType != "application/json" {
			return fmt.Errorf("Content-Type is %q", contentType)
		}
		return nil
	}
	if contentType != "application/problem+json" {
		return fmt.Errorf("Content-Type is %q", contentType)
	}
	if (a.StatusCode == 409 || a.StatusCode == 429 || a.StatusCode == 503) != (a.Header.Get("Retry-After") != "") {
		return fmt.Errorf("Retry-After is %q", a.Header.Get("Retry-After"))
	}
	if method == "HEAD" {
		return nil
	}
	var members map[string]any
	if err := json.Unmarshal(a.body, &members); err != nil {
		return err
	}
	if _, there := members["token"]; there { // C74
		return fmt.Errorf("a refusal has a member token")
	}
	if members["status"] != float64(a.StatusCode) || members["title"] == "" || !strings.HasPrefix(members["type"].(string), "urn:highwater:problem:") {
		return fmt.Errorf("type, title and status are not those of a problem")
	}
	if applied := members["applied"]; (a.StatusCode >= 500) != (applied == "no" || applied == "unknown") {
		return fmt.Errorf("applied is %v", applied)
	}
	return nil
}

// problem is the problem that came back, with its type shortened to the code.
func (a answer) problem(t testing.TB) wire.Problem {
	t.Helper()
	var p wire.Problem
	if err := json.Unmarshal(a.body, &p); err != nil {
		t.Fatalf("%s: %v", a.body, err)
	}
	p.Type = strings.TrimPrefix(p.Type, "urn:highwater:problem:")
	return p
}
