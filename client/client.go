package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

// Config says how to reach a cluster. Only Endpoints is required.
type Config struct {
	// Endpoints are the base URLs of the nodes' APIs, http://HOST:PORT or
	// https://HOST:PORT. The first is asked first.
	Endpoints []string
	// APIKey is sent as a bearer token, if not empty.
	APIKey string
	// HTTP sends the requests. Nil means a client of its own that keeps
	// connections open, follows no redirect and gives up dialling after 2 s.
	HTTP *http.Client
	// AttemptTimeout bounds one sending. Zero means 16 s, more than a node
	// takes to say that an outcome is unknown, or 6 s where another endpoint
	// can be asked without harm, more than a node waits for a leader.
	AttemptTimeout time.Duration
	// RetryFor is how long after the first sending a request may be sent
	// again. Zero means 10 s; the context ends it earlier.
	RetryFor time.Duration
	// OneAttempt sends every request once, to the first endpoint, so that the
	// caller sees what that node said.
	OneAttempt bool
}

// The defaults of Config.
const (
	defaultAttempt           = 16 * time.Second
	defaultRepeatableAttempt = 6 * time.Second
	defaultRetryFor          = 10 * time.Second
	dialTimeout              = 2 * time.Second
)

// Client asks a cluster. It is safe for use by many goroutines at once.
type Client struct {
	config    Config
	endpoints []string
	http      *http.Client
	// preferred counts endpoints moved away from; modulo the number of
	// endpoints it is the one to ask.
	preferred atomic.Uint64
}

// New returns a client. It does not connect yet; it fails only for endpoints
// that are no base URLs.
func New(config Config) (*Client, error) {
	if len(config.Endpoints) == 0 {
		return nil, lease.BadRequest("endpoints", "must name at least one URL like http://127.0.0.1:8400")
	}
	c := &Client{config: config, http: config.HTTP}
	for _, endpoint := range config.Endpoints {
		base, err := baseURL(endpoint)
		if err != nil {
			return nil, err
		}
		c.endpoints = append(c.endpoints, base)
	}
	if c.http == nil {
		c.http = newHTTPClient()
	}
	if c.config.RetryFor == 0 {
		c.config.RetryFor = defaultRetryFor
	}
	return c, nil
}

func baseURL(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return "", lease.BadRequest("endpoints", "must be URLs like http://127.0.0.1:8400, not %q", endpoint)
	}
	return u.Scheme + "://" + u.Host, nil
}

// newHTTPClient keeps as many connections as it has requests under way: the
// standard transport keeps two for a host and would dial anew for the rest.
func newHTTPClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout: dialTimeout,
			MaxIdleConns:        0,
			MaxIdleConnsPerHost: 4096,
			IdleConnTimeout:     60 * time.Second,
			DisableCompression:  true,
		},
		// A node never redirects; whoever does is not one.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Grant is a lease as its holder has it.
type Grant struct {
	lease.Lease
	// Deadline is until when the holder may act, on this process's monotonic
	// clock.
	Deadline time.Time
}

// Acquire asks for a lease on a free resource. A TTL of zero means
// lease.DefaultTTL. If another holds it, the error is lease.ErrLeaseHeld and
// its members say who and for how long. If the answer came after the lease's
// time was over, it is lease.ErrLeaseLost.
func (c *Client) Acquire(ctx context.Context, r lease.AcquireRequest) (Grant, error) {
	if r.TTL == 0 {
		r.TTL = lease.DefaultTTL
	}
	if err := r.Check(); err != nil {
		return Grant{}, err
	}
	body, err := encode("metadata", wire.Acquire{Holder: r.Holder, TTLMS: r.TTL.Milliseconds(), Metadata: r.Metadata})
	if err != nil {
		return Grant{}, err
	}
	sent := time.Now()
	held, err := exchange(ctx, c, sending{
		method: http.MethodPost,
		path:   leasePath(r.Resource),
		body:   body,
	}, decodeLease(r.Resource, 0))
	if err != nil {
		return Grant{}, err
	}
	return newGrant(held, sent, held.TTL)
}

// Renew keeps a lease: its deadline becomes the later of the present one and
// now + TTL, where a TTL of zero means the lease's own. If the lease is over,
// the error is lease.ErrLeaseLost.
func (c *Client) Renew(ctx context.Context, r lease.RenewRequest) (Grant, error) {
	if err := r.Check(); err != nil {
		return Grant{}, err
	}
	body, err := encode("token", wire.Renew{Token: r.Token, TTLMS: r.TTL.Milliseconds()})
	if err != nil {
		return Grant{}, err
	}
	sent := time.Now()
	held, err := exchange(ctx, c, sending{
		method:     http.MethodPut,
		path:       leasePath(r.Resource),
		body:       body,
		repeatable: true,
	}, decodeLease(r.Resource, r.Token))
	if err != nil {
		return Grant{}, err
	}
	// A renewal that asks for less than is left moves nothing, so the TTL may
	// be more than the time that remains.
	return newGrant(held, sent, min(held.TTL, held.Remaining))
}

func newGrant(held lease.Lease, sent time.Time, life time.Duration) (Grant, error) {
	deadline := sent.Add(life)
	if !time.Now().Before(deadline) {
		return Grant{}, &lease.Error{
			Code:   lease.CodeLeaseLost,
			Detail: fmt.Sprintf("the answer took longer than the %v that it granted", life),
		}
	}
	return Grant{Lease: held, Deadline: deadline}, nil
}

// Release ends a lease. If it is over already, the error is
// lease.ErrLeaseLost.
func (c *Client) Release(ctx context.Context, r lease.ReleaseRequest) error {
	if err := r.Check(); err != nil {
		return err
	}
	_, err := exchange(ctx, c, sending{
		method: http.MethodDelete,
		path:   leasePath(r.Resource) + "?token=" + r.Token.String(),
	}, decodeReleased)
	return err
}

// Get returns the lease on a resource, or lease.ErrNotHeld.
func (c *Client) Get(ctx context.Context, resource string) (lease.Lease, error) {
	if err := lease.CheckName("resource", resource); err != nil {
		return lease.Lease{}, err
	}
	return exchange(ctx, c, read(leasePath(resource)), decodeLease(resource, 0))
}

// List returns the live leases whose names begin with prefix, in byte order of
// their names. It asks page by page while the caller goes on, so it is no view
// of one moment. The error, if there is one, comes last.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[lease.Lease, error] {
	return pages(ctx, c, "/v1/leases", prefix, decodeLeases)
}

// Token returns what is known of a token, or lease.ErrTokenUnknown if it was
// not issued yet.
func (c *Client) Token(ctx context.Context, token lease.Token) (lease.TokenInfo, error) {
	if err := lease.CheckToken("token", token); err != nil {
		return lease.TokenInfo{}, err
	}
	return exchange(ctx, c, read("/v1/tokens/"+token.String()), decodeToken)
}

// Next takes the next values of a sequence, which begins to exist at its first
// use. A count of zero means 1.
func (c *Client) Next(ctx context.Context, r lease.NextRequest) (lease.Range, error) {
	if r.Count == 0 {
		r.Count = 1
	}
	if err := r.Check(); err != nil {
		return lease.Range{}, err
	}
	body, err := encode("count", wire.Next{Count: int64(r.Count)})
	if err != nil {
		return lease.Range{}, err
	}
	return exchange(ctx, c, sending{
		method:     http.MethodPost,
		path:       sequencePath(r.Name),
		body:       body,
		repeatable: true,
	}, decodeRange(r))
}

// Sequence returns how far a sequence has come, or lease.ErrSequenceUnknown.
func (c *Client) Sequence(ctx context.Context, name string) (lease.Sequence, error) {
	if err := lease.CheckName("sequence", name); err != nil {
		return lease.Sequence{}, err
	}
	return exchange(ctx, c, read(sequencePath(name)), decodeSequence)
}

// Sequences returns the sequences whose names begin with prefix, as List does.
func (c *Client) Sequences(ctx context.Context, prefix string) iter.Seq2[lease.Sequence, error] {
	return pages(ctx, c, "/v1/sequences", prefix, decodeSequences)
}

// Cluster returns one node's view of the cluster: of the first endpoint that
// answers. A node has a view also without a leader.
func (c *Client) Cluster(ctx context.Context) (wire.Cluster, error) {
	return exchange(ctx, c, read("/v1/cluster"), decode[wire.Cluster])
}

// Ready returns nil if a node knows a leader, is caught up and can write its
// disk; else the error says what is missing. It asks one node once.
func (c *Client) Ready(ctx context.Context) error {
	_, err := attempt(ctx, c, c.endpoint(0), read("/readyz"), func([]byte) (struct{}, error) { return struct{}{}, nil })
	return err
}

// read is a sending that changes nothing.
func read(path string) sending {
	return sending{method: http.MethodGet, path: path, repeatable: true, read: true}
}

// pages asks for page after page.
func pages[T any](ctx context.Context, c *Client, path, prefix string, decode func([]byte) (page[T], error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		if err := lease.CheckPrefix("prefix", prefix); err != nil {
			yield(none, err)
			return
		}
		after := ""
		for {
			query := url.Values{"limit": {fmt.Sprint(lease.MaxPage)}}
			if prefix != "" {
				query.Set("prefix", prefix)
			}
			if after != "" {
				query.Set("after", after)
			}
			got, err := exchange(ctx, c, read(path+"?"+query.Encode()), decode)
			if err == nil && got.next != "" && got.next <= after {
				// A node that sends us back would keep us for ever.
				err = malformed(errors.New("the next page begins before this one"))
			}
			if err != nil {
				yield(none, err)
				return
			}
			for _, item := range got.items {
				if !yield(item, nil) {
					return
				}
			}
			if got.next == "" {
				return
			}
			after = got.next
		}
	}
}

// leasePath escapes each segment of a name on its own, so that slashes stay.
func leasePath(name string) string    { return "/v1/leases/" + escapeName(name) }
func sequencePath(name string) string { return "/v1/sequences/" + escapeName(name) }

func escapeName(name string) string {
	segments := strings.Split(name, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return strings.Join(segments, "/")
}
