package fsm

import "github.com/highwater/highwater/lease"

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
