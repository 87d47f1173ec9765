package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/btree"

	"github.com/highwater/highwater/lease"
)

// ErrUnknown is wrapped by the errors of Apply and ReadSnapshot for a version
// or a kind that this binary does not know. The node must stop: an entry that
// one replica skips is a replica that differs.
var ErrUnknown = errors.New("not known to this version of highwater")

// State is the whole replicated state. It is pure: it reads no clock, draws no
// randomness, does no I/O and starts no goroutine, and the same entries give
// the same bytes on every node. It is not safe for concurrent use; Machine is.
type State struct {
	figures
	leases     btree.Map[string, *held]        // by resource
	sequences  btree.Map[string, lease.Token]  // by name: the last value issued
	byToken    btree.Map[lease.Token, string]  // live tokens: the resource
	byDeadline *btree.BTreeG[end]              // live leases in the order in which they end
	limits     struct{ leases, sequences int } // maxLeases, maxSequences
}

// figures are the single values of the state.
type figures struct {
	index      uint64 // last applied entry
	digest     uint64
	now        int64 // authority time, ms
	floorSet   bool
	floor      lease.Token
	counter    lease.Token // last token issued, or the floor
	grantsFrom int64       // authority time, ms
}

// Limits of the state. They are part of what an entry does, and so change only
// with a new feature level.
const (
	maxLeases    = 10_000_000
	maxSequences = 100_000
)

// New returns the state of an empty cluster.
func New() *State {
	s := &State{byDeadline: btree.NewBTreeGOptions(end.before, btree.Options{NoLocks: true})}
	s.limits.leases, s.limits.sequences = maxLeases, maxSequences
	return s
}

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
// stored under, and its bytes. An error means that the node must stop; the
// state is then as it was before, since an entry is understood as a whole
// before it changes anything.
func (s *State) Apply(index, term uint64, data []byte) (Outcome, error) {
	if index <= s.index {
		return Outcome{}, fmt.Errorf("log entry %d: comes after entry %d, and indexes must rise", index, s.index)
	}
	e, err := decodeEntry(data)
	if err != nil {
		return Outcome{}, fmt.Errorf("log entry %d: %w", index, err)
	}
	s.digest = rollDigest(s.digest, index, term, data)
	s.index = index

	out := Outcome{Term: term}
	switch {
	case e.kind == entryLead:
	case e.term != term:
		out.Void = true
	default:
		s.advance(e.now)
		out.Results = makeList[Result](len(e.commands))
		for i, c := range e.commands {
			out.Results[i] = s.execute(c, e.wall)
		}
	}
	out.Now = s.now
	return out, nil
}

// advance moves time forward, never back, and ends what has come to its end.
func (s *State) advance(now int64) {
	s.now = max(s.now, now)
	s.expire()
}

func (s *State) execute(c Command, wall int64) Result {
	switch c := c.(type) {
	case SetFloor:
		return s.setFloor(c)
	case Acquire:
		return s.acquire(c, wall)
	case Renew:
		return s.renew(c)
	case Release:
		return s.release(c)
	case Next:
		return s.next(c)
	}
	panic(fmt.Sprintf("fsm: no command: %T", c)) // decodeEntry makes no other
}

// rollDigest is the digest after an entry: xxhash64 over the digest before it,
// index and term, 8 bytes each, little-endian, and the entry's bytes.
func rollDigest(digest, index, term uint64, data []byte) uint64 {
	var head [24]byte
	binary.LittleEndian.PutUint64(head[0:], digest)
	binary.LittleEndian.PutUint64(head[8:], index)
	binary.LittleEndian.PutUint64(head[16:], term)
	var h xxhash.Digest
	h.Reset()
	h.Write(head[:])
	h.Write(data)
	return h.Sum64()
}

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
func (s *State) Info() Info {
	i := Info{
		Index:      s.index,
		Now:        s.now,
		FloorSet:   s.floorSet,
		Floor:      s.floor,
		LastToken:  s.counter,
		GrantsFrom: s.grantsFrom,
		Leases:     s.leases.Len(),
		Digest:     s.digest,
	}
	if first, ok := s.byDeadline.Min(); ok {
		i.Deadline, i.Live = first.deadline+1, true
	}
	if s.now < s.grantsFrom && (!i.Live || s.grantsFrom < i.Deadline) {
		i.Deadline, i.Live = s.grantsFrom, true
	}
	return i
}
