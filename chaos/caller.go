package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/highwater/highwater/lease"
)

// AttemptTimeout is how long a Caller waits for an answer before it writes the
// outcome down as unknown: more than the 10 s after which a node itself says
// that an outcome is unknown, and the 5 s that it waits for a leader.
const AttemptTimeout = 16 * time.Second

// Caller is one client of one history. It sends every request exactly once, to
// the endpoint it is given, and writes down what came of it. It is not for use
// by several goroutines at once: a client in a history does one thing after
// another.
type Caller struct {
	Name    string
	Timeout time.Duration // AttemptTimeout if zero

	history *History
	http    *http.Client
	run     int64
	sent    int
}

var callers atomic.Int64

// NewCaller returns a client that writes to history. Its holders are unique
// among all callers of this process.
func NewCaller(name string, history *History) *Caller {
	return &Caller{
		Name:    name,
		history: history,
		run:     callers.Add(1),
		http: &http.Client{
			Transport: &http.Transport{
				DialContext:        (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
				DisableCompression: true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Close lets go of the caller's connections.
func (c *Caller) Close() { c.http.CloseIdleConnections() }

// Acquire asks for a lease under a holder name that no other acquire uses.
func (c *Caller) Acquire(ctx context.Context, endpoint, resource string, ttl time.Duration) Record {
	c.sent++
	r := Record{
		Op: OpAcquire, Name: resource, Endpoint: endpoint, TTLMs: ttl.Milliseconds(),
		Holder: fmt.Sprintf("%s.%d.%d", c.Name, c.run, c.sent),
	}
	return c.send(ctx, r, http.MethodPost, LeasePath(resource), map[string]any{"holder": r.Holder, "ttl_ms": r.TTLMs})
}

// Renew asks to keep a lease; a TTL of zero asks for the lease's own.
func (c *Caller) Renew(ctx context.Context, endpoint, resource string, token lease.Token, ttl time.Duration) Record {
	r := Record{Op: OpRenew, Name: resource, Endpoint: endpoint, Token: token, TTLMs: ttl.Milliseconds()}
	body := map[string]any{"token": token}
	if ttl > 0 {
		body["ttl_ms"] = r.TTLMs
	}
	return c.send(ctx, r, http.MethodPut, LeasePath(resource), body)
}

// Release ends a lease.
func (c *Caller) Release(ctx context.Context, endpoint, resource string, token lease.Token) Record {
	r := Record{Op: OpRelease, Name: resource, Endpoint: endpoint, Token: token}
	return c.send(ctx, r, http.MethodDelete, LeasePath(resource)+"?token="+token.String(), nil)
}

// Get reads a lease, linearizably.
func (c *Caller) Get(ctx context.Context, endpoint, resource string) Record {
	r := Record{Op: OpGet, Name: resource, Endpoint: endpoint}
	return c.send(ctx, r, http.MethodGet, LeasePath(resource), nil)
}

// Next takes values of a sequence.
func (c *Caller) Next(ctx context.Context, endpoint, sequence string, count int) Record {
	r := Record{Op: OpNext, Name: sequence, Endpoint: endpoint, Count: int64(count)}
	return c.send(ctx, r, http.MethodPost, "/v1/sequences/"+escapeName(sequence), map[string]any{"count": count})
}

// LeasePath is the path of a resource's lease.
func LeasePath(resource string) string { return "/v1/leases/" + escapeName(resource) }

func escapeName(name string) string {
	segments := strings.Split(name, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return strings.Join(segments, "/")
}

// answer has the members of every success and refusal that a history keeps.
type answer struct {
	Resource     string      `json:"resource"`
	Holder       string      `json:"holder"`
	Token        lease.Token `json:"token"`
	TTLMs        int64       `json:"ttl_ms"`
	RemainingMs  int64       `json:"remaining_ms"`
	CurrentToken lease.Token `json:"current_token"`
	Name         string      `json:"name"`
	First        lease.Token `json:"first"`
	Last         lease.Token `json:"last"`
	Released     bool        `json:"released"`
	Type         string      `json:"type"`
	Detail       string      `json:"detail"`
	Applied      string      `json:"applied"`
}

func (c *Caller) send(ctx context.Context, r Record, method, path string, body any) Record {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = AttemptTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r.Client = c.Name
	r.Invoke = c.history.Now()
	status, contentType, got, err := c.exchange(ctx, method, r.Endpoint+path, body)
	r.Return = c.history.Now()
	if err != nil {
		r.Outcome, r.Detail = fateOf(err), err.Error()
	} else {
		r.Status = status
		r.read(contentType, got)
	}
	c.history.Add(r)
	return r
}

func (c *Caller) exchange(ctx context.Context, method, target string, body any) (int, string, []byte, error) {
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, "", nil, err
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, payload)
	if err != nil {
		return 0, "", nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, resp.Header.Get("Content-Type"), got, err
}

// fateOf is the outcome of a sending without an answer. Only an error in
// dialling says that nothing was sent.
func fateOf(err error) Outcome {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return Refused
	}
	return Unknown
}

// read takes an answer into the record. What breaks the HTTP contract is said
// in the detail, where Check finds it.
func (r *Record) read(contentType string, body []byte) {
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		r.Outcome, r.Detail = Unknown, fmt.Sprintf("%sstatus %d with body %.200q: %v", malformed, r.Status, body, err)
		return
	}
	if r.Status < 200 || r.Status > 299 {
		r.readProblem(contentType, a, body)
		return
	}
	r.Outcome = OK
	switch r.Op {
	case OpAcquire:
		r.Token, r.RemainingMs = a.Token, a.RemainingMs
		r.expect(r.Status == http.StatusCreated && a.Token > 0 && a.Resource == r.Name && a.Holder == r.Holder && a.TTLMs == r.TTLMs, body)
	case OpRenew:
		r.Answered, r.RemainingMs = a.Token, a.RemainingMs
		r.expect(r.Status == http.StatusOK && a.Token > 0 && a.Resource == r.Name, body)
	case OpRelease:
		r.expect(r.Status == http.StatusOK && a.Released, body)
	case OpGet:
		r.Token, r.Holder, r.TTLMs, r.RemainingMs = a.Token, a.Holder, a.TTLMs, a.RemainingMs
		r.expect(r.Status == http.StatusOK && a.Token > 0 && a.Resource == r.Name, body)
	case OpNext:
		r.First, r.Last = a.First, a.Last
		r.expect(r.Status == http.StatusOK && a.First > 0 && a.Name == r.Name, body)
	}
}

func (r *Record) readProblem(contentType string, a answer, body []byte) {
	r.Code = lease.Code(strings.TrimPrefix(a.Type, "urn:highwater:problem:"))
	r.Detail = a.Detail
	switch {
	case r.Status < 500:
		r.Outcome = Refused
	case a.Applied == string(lease.AppliedNo):
		r.Outcome = Refused
	default:
		r.Outcome = Unknown
	}
	if r.Code == lease.CodeLeaseHeld {
		r.HeldHolder, r.HeldToken, r.RemainingMs = a.Holder, a.CurrentToken, a.RemainingMs
		r.expect(a.Holder != "" && a.CurrentToken > 0, body)
	}
	isProblem := strings.HasPrefix(a.Type, "urn:highwater:problem:") && strings.HasPrefix(contentType, "application/problem+json")
	saysApplied := r.Status < 500 || a.Applied == string(lease.AppliedNo) || a.Applied == string(lease.AppliedUnknown)
	r.expect(isProblem && a.Token == 0 && saysApplied, body)
}

// malformed begins the detail of an answer that breaks the HTTP contract.
const malformed = "malformed answer: "

func (r *Record) expect(holds bool, body []byte) {
	if !holds && !strings.HasPrefix(r.Detail, malformed) {
		r.Detail = fmt.Sprintf("%sstatus %d with body %.300q", malformed, r.Status, body)
	}
}
