package lease

import (
	"fmt"
	"time"
)

// Code names a kind of refusal or failure. Its text is the NAME in the problem
// type urn:highwater:problem:NAME; numbers of HTTP statuses are in httpapi/wire.
type Code string

// The codes, as the HTTP API documents them.
const (
	CodeBadRequest           Code = "bad-request"
	CodeUnauthenticated      Code = "unauthenticated"
	CodeForbidden            Code = "forbidden"
	CodeNotFound             Code = "not-found"
	CodeNotHeld              Code = "not-held"
	CodeTokenUnknown         Code = "token-unknown"
	CodeSequenceUnknown      Code = "sequence-unknown"
	CodeMethodNotAllowed     Code = "method-not-allowed"
	CodeLeaseHeld            Code = "lease-held"
	CodeRefused              Code = "refused"
	CodeLeaseLost            Code = "lease-lost"
	CodeTooLarge             Code = "too-large"
	CodeUnsupportedMediaType Code = "unsupported-media-type"
	CodeTooBusy              Code = "too-busy"
	CodeInternal             Code = "internal"
	CodeNoLeader             Code = "no-leader"
	CodeOutcomeUnknown       Code = "outcome-unknown"
	CodeTokensExhausted      Code = "tokens-exhausted"
	CodeSequenceExhausted    Code = "sequence-exhausted"
)

// Reason refines CodeLeaseHeld and CodeLeaseLost.
type Reason string

// The reasons in use.
const (
	ReasonHeld      Reason = "held"
	ReasonForgotten Reason = "forgotten"
)

// Applied says what a caller may conclude from a failure.
type Applied string

const (
	// AppliedNo: the request changed nothing and will change nothing.
	AppliedNo Applied = "no"
	// AppliedUnknown: the request may have been applied, or may yet be.
	AppliedUnknown Applied = "unknown"
)

// Error is every refusal and failure that a caller can meet. Which members are
// set depends on Code; zero members are absent from an answer.
type Error struct {
	Code   Code
	Detail string

	Field        string        // CodeBadRequest: the parameter at fault
	Holder       string        // CodeLeaseHeld: who holds it
	CurrentToken Token         // CodeLeaseHeld: the holder's token; CodeLeaseLost: the token that holds the resource now
	Remaining    time.Duration // CodeLeaseHeld: time to the holder's deadline
	QueueLength  int           // CodeLeaseHeld: waiters in the resource's queue
	Reason       Reason        // CodeLeaseHeld, CodeLeaseLost
	SupersededBy Token         // CodeLeaseLost: the next grant of the resource, where known
	Leader       string        // CodeNoLeader, CodeOutcomeUnknown: the leader as last known
	Procedure    string        // CodeRefused: what to do instead
	RetryAfter   time.Duration // when sending again makes sense
	Applied      Applied       // set for every code that is a 5xx
}

func (e *Error) Error() string {
	s := string(e.Code)
	if e.Field != "" {
		s += ": " + e.Field
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Is matches errors of the same code, so that errors.Is(err, ErrLeaseHeld)
// asks for the kind and not for the members.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// One sentinel for each code that callers ask for with errors.Is. They are
// never returned themselves.
var (
	ErrBadRequest        = &Error{Code: CodeBadRequest}
	ErrNotHeld           = &Error{Code: CodeNotHeld}
	ErrTokenUnknown      = &Error{Code: CodeTokenUnknown}
	ErrSequenceUnknown   = &Error{Code: CodeSequenceUnknown}
	ErrLeaseHeld         = &Error{Code: CodeLeaseHeld}
	ErrLeaseLost         = &Error{Code: CodeLeaseLost}
	ErrTooBusy           = &Error{Code: CodeTooBusy}
	ErrNoLeader          = &Error{Code: CodeNoLeader}
	ErrOutcomeUnknown    = &Error{Code: CodeOutcomeUnknown}
	ErrTokensExhausted   = &Error{Code: CodeTokensExhausted}
	ErrSequenceExhausted = &Error{Code: CodeSequenceExhausted}
)

// BadRequest says which field broke which rule.
func BadRequest(field, format string, args ...any) *Error {
	return &Error{Code: CodeBadRequest, Field: field, Detail: fmt.Sprintf(format, args...)}
}
