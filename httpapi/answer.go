package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

// Header values that every answer shares; nobody appends to them.
var (
	jsonType    = []string{"application/json"}
	problemType = []string{wire.ProblemType}
	noStore     = []string{"no-store"}
	noSniff     = []string{"nosniff"}
)

// send writes an answer, whole and at once. It is the only place that does, so
// that the head is on every one.
func (a *api) send(w http.ResponseWriter, status int, contentType []string, body []byte) {
	h := w.Header()
	node, leader := a.authority.Names()
	values := []string{node, strconv.Itoa(len(body)), leader} // one allocation for three headers
	h["Highwater-Node"] = values[0:1:1]
	h["Content-Length"] = values[1:2:2]
	if leader != "" {
		h["Highwater-Leader"] = values[2:3:3]
	}
	h["Content-Type"] = contentType
	// Answers are true for a moment only, and 404 and 410 may be cached by
	// default (RFC 9110, section 15.1).
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
	w.WriteHeader(status)
	// An error means that the client went; there is nobody left to tell.
	_, _ = w.Write(body)
}

// appender is an answer that is written by hand.
type appender interface{ Append(b []byte) []byte }

// answer sends a success of the busy paths.
func (a *api) answer(w http.ResponseWriter, status int, body appender) error {
	b := newBuffer()
	defer b.free()
	b.b = body.Append(b.b)
	a.send(w, status, jsonType, b.b)
	return nil
}

// answerJSON sends any other success.
func (a *api) answerJSON(w http.ResponseWriter, status int, body any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	a.send(w, status, jsonType, encoded)
	return nil
}

// setAge says how old a local answer may be, rounded up.
func setAge(w http.ResponseWriter, stale bool, age time.Duration) {
	if stale {
		ms := max(age, 0).Milliseconds()
		if age > time.Duration(ms)*time.Millisecond {
			ms++ // rounded up here, since a sum could overflow before the division
		}
		w.Header().Set("Highwater-Age-Ms", strconv.FormatInt(ms, 10))
	}
}

// fail sends the problem that says why the request was not answered.
func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	var e *lease.Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		// The client went, or the node stops. Who still listens must not take
		// it for a refusal.
		e = &lease.Error{Code: lease.CodeOutcomeUnknown, Detail: "the request was given up before its answer came"}
	default:
		e = &lease.Error{Code: lease.CodeInternal, Detail: err.Error()}
	}
	if e.Code == lease.CodeInternal {
		if e.Detail != "" {
			a.logger.Error("a request failed inside", "method", r.Method, "path", r.URL.Path, "error", e.Detail)
		}
		e = &lease.Error{Code: lease.CodeInternal, Applied: e.Applied, Detail: "the node's log says more"}
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			e.Applied = lease.AppliedNo
		}
	}
	p := wire.FromError(e)
	if p.RetryAfterMS > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt((p.RetryAfterMS+999)/1000, 10))
	}
	b := newBuffer()
	defer b.free()
	b.b = p.Append(b.b)
	a.send(w, p.Status, problemType, b.b)
}
