package client

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

// encode writes a request. What JSON cannot hold, like metadata that is not
// JSON itself, is the caller's mistake.
func encode(field string, value any) ([]byte, error) {
	body, err := json.Marshal(value)
	if err != nil {
		return nil, lease.BadRequest(field, "cannot be sent as JSON: %v", err)
	}
	return body, nil
}

// Answers are read leniently, since they may gain members, but what a caller
// relies on is checked: a success without a token is none.

func decode[T any](body []byte) (T, error) {
	var value T
	err := json.Unmarshal(body, &value)
	return value, err
}

// decodeLease reads the lease on a resource; with a token of zero, any one.
func decodeLease(resource string, token lease.Token) func([]byte) (lease.Lease, error) {
	return func(body []byte) (lease.Lease, error) {
		answer, err := decode[wire.Lease](body)
		if err != nil {
			return lease.Lease{}, err
		}
		l := answer.ToLease()
		switch {
		case l.Resource != resource:
			return lease.Lease{}, fmt.Errorf("it is of the resource %q", l.Resource)
		case !l.Token.Valid() || (token != 0 && l.Token != token):
			return lease.Lease{}, fmt.Errorf("it has the token %d", l.Token)
		case l.TTL <= 0 || l.Remaining < 0:
			return lease.Lease{}, fmt.Errorf("it has %v of %v left", l.Remaining, l.TTL)
		}
		return l, nil
	}
}

func decodeReleased(body []byte) (struct{}, error) {
	answer, err := decode[wire.Released](body)
	if err == nil && !answer.Released {
		err = errors.New("it does not say released")
	}
	return struct{}{}, err
}

func decodeToken(body []byte) (lease.TokenInfo, error) {
	answer, err := decode[wire.Token](body)
	return answer.ToToken(), err
}

// decodeRange reads what was asked for with r.
func decodeRange(r lease.NextRequest) func([]byte) (lease.Range, error) {
	return func(body []byte) (lease.Range, error) {
		answer, err := decode[wire.Range](body)
		if err != nil {
			return lease.Range{}, err
		}
		got := answer.ToRange()
		if got.Name != r.Name || !got.First.Valid() || !got.Last.Valid() || int64(got.Last-got.First)+1 != int64(r.Count) {
			return lease.Range{}, fmt.Errorf("it is %d to %d of %q", got.First, got.Last, got.Name)
		}
		return got, nil
	}
}

func decodeSequence(body []byte) (lease.Sequence, error) {
	answer, err := decode[wire.Sequence](body)
	return answer.ToSequence(), err
}

// page is one page of a listing; next is empty on the last.
type page[T any] struct {
	items []T
	next  string
}

func decodeLeases(body []byte) (page[lease.Lease], error) {
	answer, err := decode[wire.Leases](body)
	p := page[lease.Lease]{next: answer.Next}
	for _, l := range answer.Leases {
		p.items = append(p.items, l.ToLease())
	}
	return p, err
}

func decodeSequences(body []byte) (page[lease.Sequence], error) {
	answer, err := decode[wire.Sequences](body)
	p := page[lease.Sequence]{next: answer.Next}
	for _, s := range answer.Sequences {
		p.items = append(p.items, s.ToSequence())
	}
	return p, err
}

// decodeProblem reads a refusal or failure; false if no node wrote it.
func decodeProblem(resp *http.Response, body []byte) (*lease.Error, bool) {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	problem, err := decode[wire.Problem](body)
	if err != nil || problem.Type == "" || kind != wire.ProblemType {
		return nil, false
	}
	// The status that was sent decides, should the body say another.
	problem.Status = resp.StatusCode
	e := problem.ToError()
	if e.RetryAfter == 0 {
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		e.RetryAfter = time.Duration(max(seconds, 0)) * time.Second
	}
	return e, true
}
