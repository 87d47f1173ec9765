package wire

import (
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/highwater/highwater/lease"
)

// Acquire is the body of POST /v1/leases/{resource}.
type Acquire struct {
	Holder string `json:"holder"`
	// TTLMS is the lease's life in milliseconds; zero leaves the member out,
	// which means the default.
	TTLMS int64 `json:"ttl_ms,omitzero"`
	// Metadata is a JSON object of at most lease.MaxMetadata bytes, kept byte
	// for byte, or nil.
	Metadata jsontext.Value `json:"metadata,omitzero"`
}

// Renew is the body of PUT /v1/leases/{resource}.
type Renew struct {
	Token lease.Token `json:"token"`
	// TTLMS is the time to keep the lease for, in milliseconds; zero leaves the
	// member out, which means the lease's own.
	TTLMS int64 `json:"ttl_ms,omitzero"`
}

// Released is the answer to DELETE /v1/leases/{resource}?token=N.
type Released struct {
	Released bool `json:"released"`
}

// Append writes the answer to b.
func (r Released) Append(b []byte) []byte {
	return append(strconv.AppendBool(append(b, `{"released":`...), r.Released), '}')
}

// Lease is the answer to acquire, renew and get, and an element of a list.
type Lease struct {
	Resource    string         `json:"resource"`
	Holder      string         `json:"holder"`
	Token       lease.Token    `json:"token"`
	TTLMS       int64          `json:"ttl_ms"`
	RemainingMS int64          `json:"remaining_ms"`
	Metadata    jsontext.Value `json:"metadata,omitzero"`
	GrantedAt   Time           `json:"granted_at"`
}

// Leases is the answer to GET /v1/leases. Next is the last name of the page
// when there are more: what the next request gives as after.
type Leases struct {
	Leases []Lease `json:"leases"`
	Next   string  `json:"next,omitzero"`
}

// FromLease is how an answer shows l.
func FromLease(l lease.Lease) Lease {
	return Lease{
		Resource: l.Resource, Holder: l.Holder, Token: l.Token,
		TTLMS: l.TTL.Milliseconds(), RemainingMS: l.Remaining.Milliseconds(),
		Metadata: l.Metadata, GrantedAt: Time(l.GrantedAt),
	}
}

// FromLeases is a page of a list; next is empty on the last page.
func FromLeases(leases []lease.Lease, next string) Leases {
	page := Leases{Leases: make([]Lease, len(leases)), Next: next}
	for i, l := range leases {
		page.Leases[i] = FromLease(l)
	}
	return page
}

// ToLease is the lease that an answer shows.
func (l Lease) ToLease() lease.Lease {
	return lease.Lease{
		Resource: l.Resource, Holder: l.Holder, Token: l.Token,
		TTL: milliseconds(l.TTLMS), Remaining: milliseconds(l.RemainingMS),
		Metadata: l.Metadata, GrantedAt: time.Time(l.GrantedAt),
	}
}

// Append writes the lease to b. The metadata goes in as it is: it was checked
// to be a JSON object when it came in.
func (l Lease) Append(b []byte) []byte {
	b = appendString(append(b, `{"resource":`...), l.Resource)
	b = appendString(append(b, `,"holder":`...), l.Holder)
	b = strconv.AppendInt(append(b, `,"token":`...), int64(l.Token), 10)
	b = strconv.AppendInt(append(b, `,"ttl_ms":`...), l.TTLMS, 10)
	b = strconv.AppendInt(append(b, `,"remaining_ms":`...), l.RemainingMS, 10)
	if len(l.Metadata) > 0 {
		b = append(append(b, `,"metadata":`...), l.Metadata...)
	}
	b = l.GrantedAt.append(append(b, `,"granted_at":"`...))
	return append(b, `"}`...)
}

// Append writes the list to b.
func (l Leases) Append(b []byte) []byte {
	b = append(b, `{"leases":[`...)
	for i := range l.Leases {
		if i > 0 {
			b = append(b, ',')
		}
		b = l.Leases[i].Append(b)
	}
	b = append(b, ']')
	if l.Next != "" {
		b = appendString(append(b, `,"next":`...), l.Next)
	}
	return append(b, '}')
}

// appendString writes s as a JSON string. Names and holders are valid UTF-8 by
// their rules; in any other text an invalid byte becomes U+FFFD.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// milliseconds saturates, so that a strange answer cannot turn a long time
// into a negative one.
func milliseconds(ms int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}
