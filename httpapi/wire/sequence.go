package wire

import (
	"strconv"

	"github.com/highwater/highwater/lease"
)

// Next is the body of POST /v1/sequences/{name}, which may also be empty.
type Next struct {
	// Count is 1 to lease.MaxCount; zero leaves the member out, which means 1.
	Count int64 `json:"count,omitzero"`
}

// Range is the answer to POST /v1/sequences/{name}: First to Last are issued,
// both included.
type Range struct {
	Name  string      `json:"name"`
	First lease.Token `json:"first"`
	Last  lease.Token `json:"last"`
}

// FromRange is how an answer shows r.
func FromRange(r lease.Range) Range { return Range(r) }

// ToRange is the range that an answer shows.
func (r Range) ToRange() lease.Range { return lease.Range(r) }

// Append writes the range to b.
func (r Range) Append(b []byte) []byte {
	b = appendString(append(b, `{"name":`...), r.Name)
	b = strconv.AppendInt(append(b, `,"first":`...), int64(r.First), 10)
	b = strconv.AppendInt(append(b, `,"last":`...), int64(r.Last), 10)
	return append(b, '}')
}

// Sequence is the answer to GET /v1/sequences/{name}, and an element of a list.
type Sequence struct {
	Name string `json:"name"`
	// Last is the largest value issued, null before the first.
	Last   *lease.Token `json:"last"`
	Frozen bool         `json:"frozen"`
}

// Sequences is the answer to GET /v1/sequences; Next as in [Leases].
type Sequences struct {
	Sequences []Sequence `json:"sequences"`
	Next      string     `json:"next,omitzero"`
}

// FromSequence is how an answer shows s.
func FromSequence(s lease.Sequence) Sequence {
	shown := Sequence{Name: s.Name, Frozen: s.Frozen}
	if s.Issued {
		shown.Last = &s.Last
	}
	return shown
}

// FromSequences is a page of a list; next is empty on the last page.
func FromSequences(sequences []lease.Sequence, next string) Sequences {
	page := Sequences{Sequences: make([]Sequence, len(sequences)), Next: next}
	for i, s := range sequences {
		page.Sequences[i] = FromSequence(s)
	}
	return page
}

// ToSequence is the sequence that an answer shows.
func (s Sequence) ToSequence() lease.Sequence {
	read := lease.Sequence{Name: s.Name, Frozen: s.Frozen}
	if s.Last != nil {
		read.Last, read.Issued = *s.Last, true
	}
	return read
}
