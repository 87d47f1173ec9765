package fsm

import (
	"errors"
	"io"

	"github.com/highwater/highwater/lease"
)

// ErrUnknown is wrapped by the errors of Apply and ReadSnapshot for a version
// or a kind that this binary does not know. The node must stop: an entry that
// one replica skips is a replica that differs.
var ErrUnknown = errors.New("not known to this version of highwater")

// State is the whole replicated state. It is pure: it reads no clock, draws no
// randomness, does no I/O and starts no goroutine, and the same entries give
// the same bytes on every node. It is not safe for concurrent use; Machine is.
type State struct{}

// New returns the state of an empty cluster.
func New() *State { return &State{} }

// Outcome is what one log entry did.
type Outcome struct {
	// Void: the entry was stamped for another term than it was stored under,
	// so it changed nothing, not even time. Results is empty.
	Void bool
	// Term is the Raft term that the entry was stored under.
	Term uint64
	// Now is the authority time after the entry, in milliseconds.
	Now int64
	// Results has one element for each command, in order.
	Results []Result
}

// Apply executes one committed log entry: its index, the Raft term that it was
// stored under, and its bytes. An error means that the node must stop.
func (s *State) Apply(index, term uint64, data []byte) (Outcome, error) {
	return Outcome{}, nil
}

// Query answers a question from the state as it is.
func (s *State) Query(q Query) Answer { return Answer{} }

// Info is the part of the state that leadership and status work with.
type Info struct {
	Index      uint64 // last applied entry
	Now        int64  // authority time, ms
	FloorSet   bool
	Floor      lease.Token
	LastToken  lease.Token
	GrantsFrom int64 // authority time, ms, from which acquire and next are served
	// Deadline is the authority time, ms, at which something ends or grants
	// start; valid if Live.
	Deadline int64
	Live     bool
	Leases   int
	// Digest is a rolling hash over every entry applied (index, term, bytes):
	// equal on all nodes that are at the same index.
	Digest uint64
}

// Info returns the state's figures.
func (s *State) Info() Info { return Info{} }

// Snapshot is a frozen copy of a State. Taking it costs O(1) or near it; it can
// be written from another goroutine while the State goes on.
type Snapshot struct{}

// Snapshot freezes the present state.
func (s *State) Snapshot() *Snapshot { return &Snapshot{} }

// WriteTo encodes the snapshot: versioned, with a record count and a checksum
// at its end.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) { return 0, nil }

// ReadSnapshot decodes what WriteTo wrote into a fresh state. It returns an
// error, and no state, for anything cut, altered or unknown.
func ReadSnapshot(r io.Reader) (*State, error) { return nil, nil }
