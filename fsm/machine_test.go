package fsm

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/highwater/highwater/lease"
)

var (
	_ raft.FSM         = (*Machine)(nil)
	_ raft.FSMSnapshot = persister{}
)

// sink is a raft.SnapshotSink that notes how it was ended.
type sink struct {
	bytes.Buffer
	writeErr, closeErr, cancelErr error
	closed, cancelled             int
}

func (s *sink) Write(b []byte) (int, error) {
	if s.writeErr != nil {
		return 0, s.writeErr
	}
	return s.Buffer.Write(b)
}
func (s *sink) ID() string    { return "sink" }
func (s *sink) Close() error  { s.closed++; return s.closeErr }
func (s *sink) Cancel() error { s.cancelled++; return s.cancelErr }

func logOf(index uint64, data []byte) *raft.Log {
	return &raft.Log{Type: raft.LogCommand, Index: index, Term: 1, Data: data}
}

func TestMachine(t *testing.T) {
	var outcomes []Outcome
	var sizes []int
	m := NewMachine(func(err error) { t.Errorf("stopped: %v", err) }, func(o Outcome, n int) {
		outcomes, sizes = append(outcomes, o), append(sizes, n)
	})
	entries := [][]byte{
		LeadEntry(5),
		entryOf(1, 0, 0, SetFloor{}),
		entryOf(1, 0, 0, acquire("a", 5000)),
		entryOf(9, 0, 0, Release{"a", 1}),
	}
	for i, data := range entries {
		got, ok := m.Apply(logOf(uint64(i+1), data)).(Outcome)
		if !ok || !reflect.DeepEqual(got, outcomes[i]) || sizes[i] != len(data) || got.Term != 1 || got.Void != (i == 3) {
			t.Errorf("entry %d: %+v, %t; told %+v, %d", i, got, ok, outcomes[i], sizes[i])
		}
	}
	if i := m.Info(); i.Index != 4 || i.Leases != 1 {
		t.Errorf("info %+v", i)
	}

	snapshot, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var out sink
	if err := snapshot.Persist(&out); err != nil || out.closed != 1 || out.cancelled != 0 {
		t.Fatalf("persist: %v, %+v", err, out)
	}
	snapshot.Release()

	m2 := NewMachine(nil, nil)
	if err := m2.Restore(io.NopCloser(&out.Buffer)); err != nil {
		t.Fatal(err)
	}
	if m2.Info() != m.Info() || !reflect.DeepEqual(m2.Query(GetLease{"a"}), m.Query(GetLease{"a"})) {
		t.Errorf("restored %+v, want %+v", m2.Info(), m.Info())
	}
}

// Persist returns the first error: not what Cancel says, and never nil, or raft
// would drop its log with no snapshot behind it.
func TestPersistFails(t *testing.T) {
	full, other := errors.New("disk full"), errors.New("other")
	m := NewMachine(nil, nil)
	snapshot, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, cancel := range []error{nil, other} {
		out := sink{writeErr: full, cancelErr: cancel}
		if err := snapshot.Persist(&out); !errors.Is(err, full) || errors.Is(err, other) || out.cancelled != 1 || out.closed != 0 {
			t.Errorf("persist: %v, %+v", err, out)
		}
	}
	if err := snapshot.Persist(&sink{closeErr: full}); !errors.Is(err, full) {
		t.Errorf("persist: %v", err)
	}
}

// An entry that this version does not know stops the machine, once, and for
// good: nothing is applied, nothing is saved, nothing is restored after it.
func TestMachineStops(t *testing.T) {
	var stops []error
	applied := 0
	m := NewMachine(func(err error) { stops = append(stops, err) }, func(Outcome, int) { applied++ })
	m.Apply(logOf(1, entryOf(1, 0, 0, SetFloor{})))
	m.Apply(logOf(2, entryOf(1, 0, 0, acquire("a", 5000))))
	before := m.Info()

	for i, data := range [][]byte{{1, 77}, entryOf(1, 0, 0, Release{"a", 1}), {1, 77}} {
		err, ok := m.Apply(logOf(uint64(3+i), data)).(error)
		if !ok || !errors.Is(err, ErrUnknown) {
			t.Errorf("entry %d after the stop: %v", i, err)
		}
	}
	if len(stops) != 1 || !errors.Is(stops[0], ErrUnknown) || applied != 2 {
		t.Errorf("stopped %d times: %v; %d entries told", len(stops), stops, applied)
	}
	if s, err := m.Snapshot(); s != nil || !errors.Is(err, ErrUnknown) {
		t.Errorf("snapshot: %v, %v", s, err)
	}
	if err := m.Restore(io.NopCloser(bytes.NewReader(bytesOf(t, New())))); !errors.Is(err, ErrUnknown) {
		t.Errorf("restore: %v", err)
	}
	if m.Info() != before {
		t.Errorf("info %+v, want %+v", m.Info(), before)
	}
}

// C51, C17: a snapshot that cannot be read whole replaces nothing, and stops
// the machine.
func TestRestoreFails(t *testing.T) {
	good := bytesOf(t, someState(t))
	var stops []error
	m := NewMachine(func(err error) { stops = append(stops, err) }, nil)
	if err := m.Restore(io.NopCloser(bytes.NewReader(good))); err != nil {
		t.Fatal(err)
	}
	before := m.Info()
	for range 2 {
		if err := m.Restore(io.NopCloser(bytes.NewReader(good[:len(good)-1]))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("restore: %v", err)
		}
	}
	if len(stops) != 1 || m.Info() != before {
		t.Errorf("stopped %d times; info %+v, want %+v", len(stops), m.Info(), before)
	}
}

// Readers, entries, snapshots and restores at once; the race detector watches.
func TestMachineBesideReaders(t *testing.T) {
	m := NewMachine(func(err error) { t.Errorf("stopped: %v", err) }, nil)
	m.Apply(logOf(1, entryOf(1, 0, 0, SetFloor{})))
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				a := m.Query(ListLeases{lease.Page{Limit: 100}})
				for _, l := range a.Leases {
					if l.Remaining < 0 {
						t.Errorf("a reader sees %+v", l)
					}
				}
				if i := m.Info(); !i.FloorSet {
					t.Errorf("a reader sees %+v", i)
				}
			}
		})
	}
	for i := range uint64(300) {
		index := i + 2
		c := Acquire{Resource: string(rune('a' + i%20)), Holder: "w", TTL: 1000}
		if _, ok := m.Apply(logOf(index, entryOf(1, int64(i)*100, 0, c))).(Outcome); !ok {
			t.Fatal("not applied")
		}
		if i%50 == 49 {
			snapshot, err := m.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			var out sink
			readers.Go(func() {
				if err := snapshot.Persist(&out); err != nil {
					t.Error(err)
				}
			})
			var whole bytes.Buffer
			if _, err := snapshot.(persister).snapshot.WriteTo(&whole); err != nil {
				t.Fatal(err)
			}
			if err := m.Restore(io.NopCloser(&whole)); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(done)
	readers.Wait()
}
