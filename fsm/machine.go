package fsm

import (
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// Machine adapts a State to raft.FSM and lets readers in between entries.
type Machine struct {
	stop    func(error)
	applied func(Outcome, int)

	mu      sync.RWMutex
	state   *State
	stopped error // why nothing is applied any more
}

// NewMachine returns a machine with an empty state. stop is called at most
// once, with the reason, when an entry cannot be executed or a snapshot cannot be
// read; from then on the machine applies nothing and takes no snapshot, and the node must exit.
// applied, if not nil, is called after each entry with its outcome and size in
// bytes, on the goroutine that applies. Neither may wait for raft, which waits
// for them.
func NewMachine(stop func(error), applied func(Outcome, int)) *Machine {
	return &Machine{stop: stop, applied: applied, state: New()}
}

// Apply implements raft.FSM. It returns an Outcome, or an error after stop.
func (m *Machine) Apply(l *raft.Log) any {
	outcome, first, err := m.apply(l)
	if first {
		m.stop(err)
	}
	if err != nil {
		return err
	}
	if m.applied != nil {
		m.applied(outcome, len(l.Data))
	}
	return outcome
}

func (m *Machine) apply(l *raft.Log) (_ Outcome, first bool, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped != nil {
		return Outcome{}, false, m.stopped
	}
	outcome, err := m.state.Apply(l.Index, l.Term, l.Data)
	m.stopped = err
	return outcome, err != nil, err
}

// Snapshot implements raft.FSM.
func (m *Machine) Snapshot() (raft.FSMSnapshot, error) {
	m.mu.Lock() // not RLock: the trees note that they share their nodes now
	defer m.mu.Unlock()
	if m.stopped != nil {
		return nil, fmt.Errorf("no snapshot of a state that has stopped: %w", m.stopped)
	}
	return persister{m.state.Snapshot()}, nil
}

// Restore implements raft.FSM. The state is replaced when the whole of its
// successor has been read. A snapshot that cannot be read stops the machine:
// raft would otherwise go back to an older one without a word.
func (m *Machine) Restore(r io.ReadCloser) error {
	state, err := ReadSnapshot(r)
	m.mu.Lock()
	first := err != nil && m.stopped == nil
	if first {
		m.stopped = err
	}
	if m.stopped == nil {
		m.state = state
	}
	err = m.stopped
	m.mu.Unlock()
	if first {
		m.stop(err)
	}
	return err
}

// Query answers from the state as it is now.
func (m *Machine) Query(q Query) Answer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Query(q)
}

// Info returns the state's figures as they are now.
func (m *Machine) Info() Info {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Info()
}

// persister writes a snapshot to raft's store, beside the entries that follow.
type persister struct{ snapshot *Snapshot }

// Persist implements raft.FSMSnapshot. It returns the first error: were it
// lost, raft would drop a log with no snapshot behind it.
func (p persister) Persist(sink raft.SnapshotSink) error {
	if _, err := p.snapshot.WriteTo(sink); err != nil {
		sink.Cancel()
		return fmt.Errorf("write snapshot: %w", err)
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (persister) Release() {}
