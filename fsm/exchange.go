package fsm

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/highwater/highwater/lease"
)

// What nodes of one cluster say to each other about commands and queries. It is
// never stored. Numbers are never reused.
const (
	resultDone  = 1 // applied, nothing to tell
	resultError = 2
	resultLease = 3
	resultRange = 4

	queryGetLease      = 1 // resource
	queryListLeases    = 2 // page
	queryGetToken      = 3 // token
	queryGetSequence   = 4 // name
	queryListSequences = 5 // page

	answerError = 1
	answerData  = 2 // leases, sequences, token, more

	// The least bytes that an element of a list takes.
	minLease    = 7
	minSequence = 4
)

// AppendResult encodes r, of which one member at most is set.
func AppendResult(dst []byte, r Result) []byte {
	switch {
	case r.Err != nil:
		return appendError(append(dst, resultError), r.Err)
	case r.Lease.Token != 0:
		return appendLease(append(dst, resultLease), r.Lease)
	case r.Range.Last != 0:
		dst = appendText(append(dst, resultRange), r.Range.Name)
		dst = binary.AppendVarint(dst, int64(r.Range.First))
		return binary.AppendVarint(dst, int64(r.Range.Last))
	}
	return append(dst, resultDone)
}

// DecodeResult decodes exactly one result.
func DecodeResult(b []byte) (Result, error) {
	r := reader{b: b}
	var v Result
	switch kind := r.byte(); kind {
	case resultDone:
	case resultError:
		v.Err = r.error()
	case resultLease:
		v.Lease = r.lease()
		r.check(v.Lease.Token != 0, "a lease without a token")
	case resultRange:
		v.Range = lease.Range{Name: r.string(lease.MaxName), First: r.token(), Last: r.token()}
		r.check(v.Range.Last != 0, "a range without values")
	default:
		r.check(false, "result kind %d: %w", kind, ErrUnknown)
	}
	if err := r.finish(); err != nil {
		return Result{}, fmt.Errorf("malformed result: %w", err)
	}
	return v, nil
}

// AppendQuery encodes q.
func AppendQuery(dst []byte, q Query) []byte {
	switch q := q.(type) {
	case GetLease:
		return appendText(append(dst, queryGetLease), q.Resource)
	case ListLeases:
		return appendPage(append(dst, queryListLeases), q.Page)
	case GetToken:
		return binary.AppendVarint(append(dst, queryGetToken), int64(q.Token))
	case GetSequence:
		return appendText(append(dst, queryGetSequence), q.Name)
	case ListSequences:
		return appendPage(append(dst, queryListSequences), q.Page)
	}
	panic(fmt.Sprintf("fsm: no query: %T", q))
}

// DecodeQuery decodes exactly one query.
func DecodeQuery(b []byte) (Query, error) {
	r := reader{b: b}
	var q Query
	switch kind := r.byte(); kind {
	case queryGetLease:
		q = GetLease{Resource: r.string(lease.MaxName)}
	case queryListLeases:
		q = ListLeases{r.page()}
	case queryGetToken:
		q = GetToken{Token: r.token()}
	case queryGetSequence:
		q = GetSequence{Name: r.string(lease.MaxName)}
	case queryListSequences:
		q = ListSequences{r.page()}
	default:
		r.check(false, "query kind %d: %w", kind, ErrUnknown)
	}
	if err := r.finish(); err != nil {
		return nil, fmt.Errorf("malformed query: %w", err)
	}
	return q, nil
}

// AppendAnswer encodes a.
func AppendAnswer(dst []byte, a Answer) []byte {
	if a.Err != nil {
		return appendError(append(dst, answerError), a.Err)
	}
	dst = binary.AppendUvarint(append(dst, answerData), uint64(len(a.Leases)))
	for _, l := range a.Leases {
		dst = appendLease(dst, l)
	}
	dst = binary.AppendUvarint(dst, uint64(len(a.Sequences)))
	for _, s := range a.Sequences {
		dst = appendText(dst, s.Name)
		dst = binary.AppendVarint(dst, int64(s.Last))
		dst = appendBool(dst, s.Issued)
		dst = appendBool(dst, s.Frozen)
	}
	dst = binary.AppendVarint(dst, int64(a.Token.Token))
	dst = appendText(dst, a.Token.State)
	dst = binary.AppendUvarint(dst, uint64(len(a.Token.Resources)))
	for _, name := range a.Token.Resources {
		dst = appendText(dst, name)
	}
	dst = appendText(dst, a.Token.Holder)
	dst = binary.AppendVarint(dst, a.Token.GrantedAt.UnixMilli())
	return appendBool(dst, a.More)
}

// DecodeAnswer decodes exactly one answer.
func DecodeAnswer(b []byte) (Answer, error) {
	r := reader{b: b}
	var a Answer
	switch kind := r.byte(); kind {
	case answerError:
		a.Err = r.error()
	case answerData:
		a.Leases = makeList[lease.Lease](r.elements(minLease))
		for i := range a.Leases {
			a.Leases[i] = r.lease()
		}
		a.Sequences = makeList[lease.Sequence](r.elements(minSequence))
		for i := range a.Sequences {
			a.Sequences[i] = lease.Sequence{Name: r.string(lease.MaxName), Last: r.token(), Issued: r.bool(), Frozen: r.bool()}
		}
		a.Token.Token = r.token()
		a.Token.State = lease.TokenState(r.string(unlimited))
		a.Token.Resources = makeList[string](r.elements(1))
		for i := range a.Token.Resources {
			a.Token.Resources[i] = r.string(lease.MaxName)
		}
		a.Token.Holder = r.string(lease.MaxHolder)
		a.Token.GrantedAt = r.time()
		a.More = r.bool()
	default:
		r.check(false, "answer kind %d: %w", kind, ErrUnknown)
	}
	if err := r.finish(); err != nil {
		return Answer{}, fmt.Errorf("malformed answer: %w", err)
	}
	return a, nil
}

func appendLease(dst []byte, l lease.Lease) []byte {
	dst = appendText(dst, l.Resource)
	dst = appendText(dst, l.Holder)
	dst = binary.AppendVarint(dst, int64(l.Token))
	dst = binary.AppendVarint(dst, int64(l.TTL))
	dst = binary.AppendVarint(dst, int64(l.Remaining))
	dst = appendText(dst, l.Metadata)
	return binary.AppendVarint(dst, l.GrantedAt.UnixMilli())
}

func (r *reader) lease() lease.Lease {
	return lease.Lease{
		Resource:  r.string(lease.MaxName),
		Holder:    r.string(lease.MaxHolder),
		Token:     r.token(),
		TTL:       time.Duration(r.varint()),
		Remaining: time.Duration(r.varint()),
		Metadata:  r.bytes(lease.MaxMetadata),
		GrantedAt: r.time(),
	}
}

func appendPage(dst []byte, p lease.Page) []byte {
	dst = appendText(dst, p.Prefix)
	dst = appendText(dst, p.After)
	return binary.AppendVarint(dst, int64(p.Limit))
}

func (r *reader) page() lease.Page {
	return lease.Page{Prefix: r.string(lease.MaxName), After: r.string(lease.MaxName), Limit: r.int()}
}

// appendError carries every member of an error, so that a forwarded refusal
// says what a local one says.
func appendError(dst []byte, e *lease.Error) []byte {
	dst = appendText(dst, e.Code)
	dst = appendText(dst, e.Detail)
	dst = appendText(dst, e.Field)
	dst = appendText(dst, e.Holder)
	dst = binary.AppendVarint(dst, int64(e.CurrentToken))
	dst = binary.AppendVarint(dst, int64(e.Remaining))
	dst = binary.AppendVarint(dst, int64(e.QueueLength))
	dst = appendText(dst, e.Reason)
	dst = binary.AppendVarint(dst, int64(e.SupersededBy))
	dst = appendText(dst, e.Leader)
	dst = appendText(dst, e.Procedure)
	dst = binary.AppendVarint(dst, int64(e.RetryAfter))
	return appendText(dst, e.Applied)
}

func (r *reader) error() *lease.Error {
	return &lease.Error{
		Code:         lease.Code(r.string(unlimited)),
		Detail:       r.string(unlimited),
		Field:        r.string(unlimited),
		Holder:       r.string(unlimited),
		CurrentToken: r.token(),
		Remaining:    time.Duration(r.varint()),
		QueueLength:  r.int(),
		Reason:       lease.Reason(r.string(unlimited)),
		SupersededBy: r.token(),
		Leader:       r.string(unlimited),
		Procedure:    r.string(unlimited),
		RetryAfter:   time.Duration(r.varint()),
		Applied:      lease.Applied(r.string(unlimited)),
	}
}

func (r *reader) token() lease.Token { return lease.Token(r.varint()) }

func (r *reader) int() int { return int(r.between(math.MinInt, math.MaxInt)) }

// time reads Unix milliseconds; the zero time comes back as the zero time.
func (r *reader) time() time.Time { return time.UnixMilli(r.varint()).UTC() }

func (r *reader) check(ok bool, format string, args ...any) {
	if !ok {
		r.fail(format, args...)
	}
}
