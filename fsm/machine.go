package fsm

import (
	"io"

	"github.com/hashicorp/raft"
)

// Machine adapts a State to raft.FSM and lets readers in between entries.
type Machine struct{}

// NewMachine returns a machine with an empty state. stop is called at most
// once, with the reason, when an entry cannot be executed; from then on the
// machine applies nothing and takes no snapshot, and the node must exit.
// applied, if not nil, is called after each entry with its outcome and size in
// bytes, on the goroutine that applies.
func NewMachine(stop func(error), applied func(Outcome, int)) *Machine { return &Machine{} }

// Apply implements raft.FSM. It returns an Outcome, or an error after stop.
func (m *Machine) Apply(l *raft.Log) any { return nil }

// Snapshot implements raft.FSM.
func (m *Machine) Snapshot() (raft.FSMSnapshot, error) { return nil, nil }

// Restore implements raft.FSM.
func (m *Machine) Restore(r io.ReadCloser) error { return nil }

// Query answers from the state as it is now.
func (m *Machine) Query(q Query) Answer { return Answer{} }

// Info returns the state's figures as they are now.
func (m *Machine) Info() Info { return Info{} }
