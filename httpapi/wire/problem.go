package wire

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/highwater/highwater/lease"
)

// ProblemType is the media type of every refusal and failure (RFC 9457).
const ProblemType = "application/problem+json"

// problemURN begins the type of every problem; the code follows.
const problemURN = "urn:highwater:problem:"

// kinds is the one table from a code to its status and title. The statuses
// are in API.md's table; the client reads the code back from the type, so a
// status shared by several codes loses nothing.
var kinds = map[lease.Code]struct {
	status int
	title  string
}{
	lease.CodeBadRequest:           {http.StatusBadRequest, "The request is not well formed"},
	lease.CodeUnauthenticated:      {http.StatusUnauthorized, "An API key is needed"},
	lease.CodeForbidden:            {http.StatusForbidden, "This is not allowed"},
	lease.CodeNotFound:             {http.StatusNotFound, "There is no such path"},
	lease.CodeNotHeld:              {http.StatusNotFound, "Nobody holds the resource"},
	lease.CodeTokenUnknown:         {http.StatusNotFound, "The token was not issued for this"},
	lease.CodeSequenceUnknown:      {http.StatusNotFound, "There is no such sequence"},
	lease.CodeMethodNotAllowed:     {http.StatusMethodNotAllowed, "The path does not take this method"},
	lease.CodeLeaseHeld:            {http.StatusConflict, "The resource is held"},
	lease.CodeRefused:              {http.StatusConflict, "The cluster refuses this as it stands"},
	lease.CodeLeaseLost:            {http.StatusGone, "The lease has ended"},
	lease.CodeTooLarge:             {http.StatusRequestEntityTooLarge, "The body is too large"},
	lease.CodeUnsupportedMediaType: {http.StatusUnsupportedMediaType, "The body must be JSON"},
	lease.CodeTooBusy:              {http.StatusTooManyRequests, "A limit is reached"},
	lease.CodeInternal:             {http.StatusInternalServerError, "Something went wrong inside"},
	lease.CodeNoLeader:             {http.StatusServiceUnavailable, "The cluster has no leader"},
	lease.CodeOutcomeUnknown:       {http.StatusServiceUnavailable, "The outcome is not known"},
	lease.CodeTokensExhausted:      {http.StatusInsufficientStorage, "The last token is issued"},
	lease.CodeSequenceExhausted:    {http.StatusInsufficientStorage, "The last value of the sequence is issued"},
}

// Problem is the body of every answer that is not a success. It has no member
// "token", and must not get one: a script that reads .token from whatever came
// back must find nothing in a refusal. Members without a value are absent;
// those that are pointers also have a meaningful zero.
type Problem struct {
	Type         string        `json:"type"`
	Title        string        `json:"title"`
	Status       int           `json:"status"`
	Detail       string        `json:"detail,omitzero"`
	Field        string        `json:"field,omitzero"`
	Holder       string        `json:"holder,omitzero"`
	CurrentToken lease.Token   `json:"current_token,omitzero"`
	RemainingMS  *int64        `json:"remaining_ms,omitzero"`
	Reason       lease.Reason  `json:"reason,omitzero"`
	QueueLength  *int          `json:"queue_length,omitzero"`
	WaitedMS     *int64        `json:"waited_ms,omitzero"`
	SupersededBy lease.Token   `json:"superseded_by,omitzero"`
	Leader       string        `json:"leader,omitzero"`
	Procedure    string        `json:"procedure,omitzero"`
	RetryAfterMS int64         `json:"retry_after_ms,omitzero"`
	Applied      lease.Applied `json:"applied,omitzero"`
}

const (
	// maxHeldRetry bounds how long a refused acquire is told to stay away: the
	// holder may release long before its deadline.
	maxHeldRetry = 5 * time.Second
	// defaultRetry is when to send again where nothing better is known.
	defaultRetry = time.Second
)

// FromError is the problem that says e. A code that is not in the table is a
// mistake of ours and becomes internal.
func FromError(e *lease.Error) Problem {
	kind, known := kinds[e.Code]
	if !known {
		return FromError(&lease.Error{Code: lease.CodeInternal, Applied: e.Applied})
	}
	p := Problem{
		Type: problemURN + string(e.Code), Title: kind.title, Status: kind.status,
		Detail: e.Detail, Field: e.Field, Holder: e.Holder, CurrentToken: e.CurrentToken,
		Reason: e.Reason, SupersededBy: e.SupersededBy, Leader: e.Leader, Procedure: e.Procedure,
	}
	retry := e.RetryAfter
	switch {
	case e.Code == lease.CodeLeaseHeld:
		remaining, waited := e.Remaining.Milliseconds(), int64(0)
		p.RemainingMS, p.QueueLength, p.WaitedMS = &remaining, &e.QueueLength, &waited
		if retry == 0 {
			retry = max(e.Remaining, time.Millisecond)
		}
		retry = min(retry, maxHeldRetry)
	case e.Code == lease.CodeTooBusy && retry == 0:
		retry = defaultRetry
	case kind.status == http.StatusServiceUnavailable:
		retry = defaultRetry
	}
	p.RetryAfterMS = int64((retry + time.Millisecond - 1) / time.Millisecond)
	if kind.status >= http.StatusInternalServerError {
		p.Applied = applied(e)
	}
	return p
}

// applied is what the caller of a 5xx may conclude. Where e does not say, the
// careful answer is given; a counter at its end is a refusal.
func applied(e *lease.Error) lease.Applied {
	switch {
	case e.Code == lease.CodeOutcomeUnknown:
		return lease.AppliedUnknown
	case e.Code == lease.CodeNoLeader, e.Code == lease.CodeTokensExhausted, e.Code == lease.CodeSequenceExhausted:
		return lease.AppliedNo
	case e.Applied == lease.AppliedNo:
		return lease.AppliedNo
	}
	return lease.AppliedUnknown
}

// ToError is the inverse of FromError: the error that p says. A code that this
// version does not know is kept as it is. A failure (5xx) that does not say
// whether it was applied counts as unknown.
func (p Problem) ToError() *lease.Error {
	e := &lease.Error{
		Code:   lease.Code(strings.TrimPrefix(p.Type, problemURN)),
		Detail: p.Detail, Field: p.Field, Holder: p.Holder, CurrentToken: p.CurrentToken,
		Reason: p.Reason, SupersededBy: p.SupersededBy, Leader: p.Leader, Procedure: p.Procedure,
		RetryAfter: milliseconds(p.RetryAfterMS), Applied: p.Applied,
	}
	if p.RemainingMS != nil {
		e.Remaining = milliseconds(*p.RemainingMS)
	}
	if p.QueueLength != nil {
		e.QueueLength = *p.QueueLength
	}
	if p.Status >= http.StatusInternalServerError && e.Applied != lease.AppliedNo {
		e.Applied = lease.AppliedUnknown
	}
	return e
}

// Append writes the problem to b.
func (p Problem) Append(b []byte) []byte {
	b = appendString(append(b, `{"type":`...), p.Type)
	b = appendString(append(b, `,"title":`...), p.Title)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(p.Status), 10)
	text := func(name, value string) {
		if value != "" {
			b = appendString(append(append(append(b, `,"`...), name...), `":`...), value)
		}
	}
	number := func(name string, value int64) {
		b = strconv.AppendInt(append(append(append(b, `,"`...), name...), `":`...), value, 10)
	}
	text("detail", p.Detail)
	text("field", p.Field)
	text("holder", p.Holder)
	if p.CurrentToken != 0 {
		number("current_token", int64(p.CurrentToken))
	}
	if p.RemainingMS != nil {
		number("remaining_ms", *p.RemainingMS)
	}
	text("reason", string(p.Reason))
	if p.QueueLength != nil {
		number("queue_length", int64(*p.QueueLength))
	}
	if p.WaitedMS != nil {
		number("waited_ms", *p.WaitedMS)
	}
	if p.SupersededBy != 0 {
		number("superseded_by", int64(p.SupersededBy))
	}
	text("leader", p.Leader)
	text("procedure", p.Procedure)
	if p.RetryAfterMS != 0 {
		number("retry_after_ms", p.RetryAfterMS)
	}
	text("applied", string(p.Applied))
	return append(b, '}')
}
