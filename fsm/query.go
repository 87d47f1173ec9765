package fsm

import (
	"fmt"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"github.com/highwater/highwater/lease"
)

// Query is a question to the state. It changes nothing, not even time.
type Query interface{ query() }

// GetLease asks for the live lease of a resource; CodeNotHeld without one.
type GetLease struct{ Resource string }

// ListLeases asks for live leases in byte order of their resources.
type ListLeases struct{ lease.Page }

// GetToken asks what became of a token; CodeTokenUnknown above the counter.
type GetToken struct{ Token lease.Token }

// GetSequence asks for one sequence; CodeSequenceUnknown if it was never used.
type GetSequence struct{ Name string }

// ListSequences asks for sequences in byte order of their names.
type ListSequences struct{ lease.Page }

func (GetLease) query()      {}
func (ListLeases) query()    {}
func (GetToken) query()      {}
func (GetSequence) query()   {}
func (ListSequences) query() {}

// Answer is the answer to one query. Err is nil or a refusal; the member that
// the query's kind fills is set otherwise.
type Answer struct {
	Err       *lease.Error
	Leases    []lease.Lease // GetLease: one; ListLeases
	Token     lease.TokenInfo
	Sequences []lease.Sequence // GetSequence: one; ListSequences
	// More says that a listing goes on after its last name.
	More bool
}

// Query answers a question from the state as it is.
func (s *State) Query(q Query) Answer {
	switch q := q.(type) {
	case GetLease:
		h, ok := s.leases.Get(q.Resource)
		if !ok {
			return Answer{Err: refuse(lease.CodeNotHeld, "nobody holds the resource")}
		}
		return Answer{Leases: []lease.Lease{h.lease(s.now)}}
	case ListLeases:
		if err := q.Check(); err != nil {
			return Answer{Err: refusal(err)}
		}
		var a Answer
		a.More = scan(&s.leases, q.Page, func(_ string, h *held) { a.Leases = append(a.Leases, h.lease(s.now)) })
		return a
	case GetToken:
		return s.token(q.Token)
	case GetSequence:
		last, ok := s.sequences.Get(q.Name)
		if !ok {
			return Answer{Err: refuse(lease.CodeSequenceUnknown, "the sequence has never been used")}
		}
		return Answer{Sequences: []lease.Sequence{{Name: q.Name, Last: last, Issued: true}}}
	case ListSequences:
		if err := q.Check(); err != nil {
			return Answer{Err: refusal(err)}
		}
		var a Answer
		a.More = scan(&s.sequences, q.Page, func(name string, last lease.Token) {
			a.Sequences = append(a.Sequences, lease.Sequence{Name: name, Last: last, Issued: true})
		})
		return a
	}
	panic(fmt.Sprintf("fsm: no query: %T", q)) // DecodeQuery makes no other
}

// token tells what became of a token. Without history, an issued one that is
// not live is forgotten, and so is one below the floor, which an earlier life
// of the cluster may have issued.
func (s *State) token(t lease.Token) Answer {
	if err := s.issued(t); err != nil {
		return Answer{Err: err}
	}
	info := lease.TokenInfo{Token: t, State: lease.StateForgotten}
	if resource, live := s.byToken.Get(t); live {
		h, _ := s.leases.Get(resource)
		info.State = lease.StateCurrent
		info.Resources = []string{h.resource}
		info.Holder = h.holder
		info.GrantedAt = time.UnixMilli(h.granted).UTC()
	}
	return Answer{Token: info}
}

// scan calls yield for the page's names in byte order, and says whether names
// with the prefix are left beyond its limit.
func scan[V any](m *btree.Map[string, V], p lease.Page, yield func(string, V)) (more bool) {
	n := 0
	m.Ascend(max(p.Prefix, p.After), func(name string, v V) bool {
		switch {
		case !strings.HasPrefix(name, p.Prefix):
			return false
		case name == p.After: // exclusive
			return true
		case n == p.Limit:
			more = true
			return false
		}
		n++
		yield(name, v)
		return true
	})
	return more
}
