package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/highwater/highwater/lease"
)

// maxAnswer bounds what is read of one answer, in bytes: a page of
// lease.MaxPage leases, each with the largest metadata, and room to spare.
const maxAnswer = 16 << 20

// sending is one request, as often as it is sent.
type sending struct {
	method string
	path   string // escaped, with its query
	body   []byte
	// repeatable: after a lost answer it may be sent again without harm.
	repeatable bool
	// read: it changes nothing, so its outcome is never unknown.
	read bool
}

// fate is what one sending came to.
type fate int

const (
	answered   fate = iota // the answer stands: a success or a refusal
	notApplied             // it certainly changed nothing, and another sending may do better
	unknown                // it may have been applied, or may yet be
)

// failure is the error of one sending with its fate. Fates are decided in
// attempt and nowhere else.
type failure struct {
	fate   fate
	err    *lease.Error
	silent bool // no node said so: there was no answer
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// exchange sends until an answer stands, another sending could do harm, or the
// time for it is over.
func exchange[T any](ctx context.Context, c *Client, s sending, decode func([]byte) (T, error)) (T, error) {
	var (
		none     T
		told     *failure
		doubtful bool // a sending of unknown outcome was made
		sendings int
		wait     time.Duration
		pause    = 25 * time.Millisecond
		first    = time.Now()
	)
	for {
		at := c.preferred.Load()
		got, err := attempt(ctx, c, c.endpoint(at), s, decode)
		sendings++
		if err == nil {
			return got, nil
		}
		var failed *failure
		if !errors.As(err, &failed) || failed.fate == answered {
			return none, verdict(err, false, nil)
		}
		doubtful = doubtful || (failed.fate == unknown && !s.read)
		// What a node said tells more than that another one said nothing.
		if told == nil || !failed.silent {
			told = failed
		}
		if c.config.OneAttempt || (doubtful && !s.repeatable) || ctx.Err() != nil {
			return none, verdict(told, doubtful, ctx.Err())
		}
		// Others that failed here have moved on already if this does not swap.
		c.preferred.CompareAndSwap(at, at+1)

		wait = max(wait, failed.err.RetryAfter)
		if sendings%len(c.endpoints) != 0 {
			continue // another endpoint first
		}
		wait = max(wait, pause/2+rand.N(pause))
		if time.Since(first)+wait > c.config.RetryFor {
			return none, verdict(told, doubtful, nil)
		}
		if err := sleep(ctx, wait); err != nil {
			return none, verdict(told, doubtful, err)
		}
		wait, pause = 0, min(2*pause, time.Second)
	}
}

// verdict is what the caller is told after the last sending.
func verdict(err error, doubtful bool, ended error) error {
	var known *lease.Error
	if !errors.As(err, &known) {
		return err
	}
	if doubtful && known.Code != lease.CodeOutcomeUnknown {
		known = &lease.Error{
			Code:       lease.CodeOutcomeUnknown,
			Applied:    lease.AppliedUnknown,
			Detail:     "an earlier sending was not answered; the last one: " + known.Error(),
			Leader:     known.Leader,
			RetryAfter: known.RetryAfter,
		}
	}
	if ended != nil {
		return fmt.Errorf("%w (%w)", known, ended)
	}
	return known
}

// attempt sends once and decides the fate. Its error is a *failure.
func attempt[T any](ctx context.Context, c *Client, base string, s sending, decode func([]byte) (T, error)) (T, error) {
	var none T
	bounded, cancel := context.WithTimeout(ctx, c.attemptTimeout(s))
	defer cancel()
	req, err := http.NewRequestWithContext(bounded, s.method, base+s.path, bytes.NewReader(s.body))
	if err != nil {
		return none, &failure{fate: answered, err: lease.BadRequest("endpoints", "%v", err)}
	}
	if len(s.body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.config.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.config.APIKey)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return none, broken(err, s)
	}
	body, err := readAnswer(resp)
	if err != nil {
		return none, broken(err, s)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return none, refused(resp, body)
	}
	got, err := decode(body)
	if err != nil {
		return none, &failure{fate: unknown, err: malformed(err)}
	}
	return got, nil
}

// readAnswer reads to the end, which also gives the connection back for reuse.
func readAnswer(resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	if resp.ContentLength > maxAnswer {
		return nil, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	return body, err
}

// broken is the fate of a sending that got no answer. An error in dialling
// means that nothing was sent: net/http sends a request again by itself only
// if none of it was written, or if it is a read.
func broken(err error, s sending) *failure {
	var op *net.OpError
	if s.read || (errors.As(err, &op) && op.Op == "dial") {
		return &failure{fate: notApplied, silent: true, err: &lease.Error{
			Code:    lease.CodeNoLeader,
			Applied: lease.AppliedNo,
			Detail:  "no node answered: " + err.Error(),
		}}
	}
	return &failure{fate: unknown, silent: true, err: &lease.Error{
		Code:    lease.CodeOutcomeUnknown,
		Applied: lease.AppliedUnknown,
		Detail:  "no answer: " + err.Error(),
	}}
}

// refused is the fate of a sending that was answered with an error.
func refused(resp *http.Response, body []byte) *failure {
	problem, ok := decodeProblem(resp, body)
	switch {
	case !ok && resp.StatusCode < http.StatusInternalServerError:
		return &failure{fate: answered, err: notANode(resp)}
	case !ok:
		return &failure{fate: unknown, err: notANode(resp)}
	case resp.StatusCode != http.StatusServiceUnavailable && problem.Applied != lease.AppliedUnknown:
		return &failure{fate: answered, err: problem}
	case problem.Applied == lease.AppliedNo:
		return &failure{fate: notApplied, err: problem}
	default:
		return &failure{fate: unknown, err: problem}
	}
}

// malformed is a success that cannot be read: whatever was asked has happened.
func malformed(err error) *lease.Error {
	return &lease.Error{
		Code:    lease.CodeOutcomeUnknown,
		Applied: lease.AppliedUnknown,
		Detail:  "the answer cannot be read: " + err.Error(),
	}
}

// notANode is an error that no node wrote: a proxy's, or a wrong endpoint's.
func notANode(resp *http.Response) *lease.Error {
	return malformed(fmt.Errorf("status %s without problem details; is it a Highwater node?", resp.Status))
}

func (c *Client) endpoint(n uint64) string { return c.endpoints[n%uint64(len(c.endpoints))] }

func (c *Client) attemptTimeout(s sending) time.Duration {
	switch {
	case c.config.AttemptTimeout > 0:
		return c.config.AttemptTimeout
	case s.repeatable:
		return defaultRepeatableAttempt
	default:
		return defaultAttempt
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
