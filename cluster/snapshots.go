package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// openSnapshots opens the snapshots, after clearing away those that a crash
// left half-written: nothing else ever deletes them.
func (s *stores) openSnapshots(logger hclog.Logger) error {
	path := filepath.Join(s.dir, snapshotDir)
	if err := makeDir(path); err != nil {
		return err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasSuffix(e.Name(), ".tmp") {
			if err := os.RemoveAll(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	files, err := raft.NewFileSnapshotStoreWithLogger(s.dir, keptSnapshots, logger.Named("snapshot"))
	if err != nil {
		return err
	}
	s.installs = &snapshotStore{FileSnapshotStore: files, log: s.log}
	s.snapshots = s.installs
	return nil
}

// newestSnapshot returns the newest snapshot, read through and found whole, or
// nil if there is none. Raft skips a snapshot that it cannot read and takes the
// one before it; with a log that was cut at the newest, that would be a node
// which silently went back.
func (s *stores) newestSnapshot() (*raft.SnapshotMeta, error) {
	path := filepath.Join(s.dir, snapshotDir)
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var newest string
	var newestTerm, newestIndex, newestMS uint64
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		var term, index, ms uint64
		if _, err := fmt.Sscanf(e.Name(), "%d-%d-%d", &term, &index, &ms); err != nil {
			return nil, fmt.Errorf("%s is no snapshot", filepath.Join(path, e.Name()))
		}
		if newest == "" || term > newestTerm || term == newestTerm && (index > newestIndex || index == newestIndex && ms > newestMS) {
			newest, newestTerm, newestIndex, newestMS = e.Name(), term, index, ms
		}
	}
	if newest == "" {
		return nil, nil
	}
	meta, r, err := s.snapshots.Open(newest)
	if err != nil {
		return nil, s.lost(filepath.Join(path, newest), fmt.Sprintf("cannot be read (%v)", err))
	}
	r.Close()
	return meta, nil
}

// reconcile makes log and newest snapshot fit together before Raft starts.
//
// When Raft receives a snapshot, it stores it, restores the state machine from
// it, and only then empties the log. A node that dies in between starts with
// the snapshot and the old log (C64). Raft would then take the snapshot's index
// as its last one and append the entry after it, which raft-wal refuses as a
// gap, for ever: the node never catches up. All that such a log holds is in the
// snapshot, so it is emptied here. The same holds if the log reaches over the
// snapshot, but has another entry at the snapshot's index: entries from there
// on conflict with a committed one, so none of them was ever committed.
//
// A hole between snapshot and log, or a log that nothing precedes, is a part of
// the state that is gone.
func (s *stores) reconcile(logger hclog.Logger) error {
	snapshot, err := s.newestSnapshot()
	if err != nil {
		return err
	}
	first, err := s.log.FirstIndex()
	if err != nil {
		return fmt.Errorf("log in %s: %w", s.dir, err)
	}
	last, err := s.log.LastIndex()
	if err != nil {
		return fmt.Errorf("log in %s: %w", s.dir, err)
	}
	path := "the log in " + s.dir

	start := uint64(1) // the first entry that the state needs
	if snapshot != nil {
		start = snapshot.Index + 1
	}
	switch {
	case snapshot == nil && last == 0:
		if s.record.Bootstrapped {
			return s.lost(path, "is empty")
		}
		return nil
	case last != 0 && first > start:
		return s.lost(path, fmt.Sprintf("starts at entry %d, and entries from %d on are missing", first, start))
	case last == 0:
		return nil
	case snapshot != nil:
		fits := last >= snapshot.Index
		if fits && first <= snapshot.Index {
			var entry raft.Log
			if err := s.log.GetLog(snapshot.Index, &entry); err != nil {
				return s.lost(path, fmt.Sprintf("cannot be read at entry %d (%v)", snapshot.Index, err))
			}
			fits = entry.Term == snapshot.Term
		}
		if !fits {
			logger.Warn("emptying a log that a received snapshot replaced", "snapshot_index", snapshot.Index, "log_first", first, "log_last", last)
			if err := s.log.DeleteRange(first, last); err != nil {
				return err
			}
			return nil
		}
	}
	// Raft reads the same entries next, and panics at one that it cannot read.
	for index := start; index <= last; index++ {
		var entry raft.Log
		err := s.log.GetLog(index, &entry)
		if err == nil && entry.Index != index {
			err = fmt.Errorf("holds entry %d", entry.Index)
		}
		if err != nil {
			return s.lost(path, fmt.Sprintf("cannot be read at entry %d (%v)", index, err))
		}
	}
	return nil
}

// errCovered is what an installation of a snapshot meets if the log already has
// all of it.
var errCovered = errors.New("the log already covers this snapshot")

// snapshotStore is the file snapshot store, with a say in what Raft installs.
//
// A leader sends a snapshot when it believes that the follower's next entry is
// no longer in its own log. It can be wrong: each append that the follower could
// not store makes the leader step one entry back, and a snapshot whose sender
// has given up can still arrive. Raft installs what it is sent even so. It sets
// the state machine back and empties a log that holds acknowledged entries
// behind the snapshot, and these may have been committed with this node's word.
// The Raft paper retains them (figure 13, InstallSnapshot, step 6): a log that
// has the snapshot's last entry, same index and same term, is left as it is, and
// the leader is told that all is well.
//
// The check is made in Create, which Raft calls for an installation on the very
// goroutine that appends, so that no append can come between.
type snapshotStore struct {
	*raft.FileSnapshotStore
	log raft.LogStore

	// exclusive is held while a snapshot is received, and while one of the
	// node's own is taken, until Raft knows of it: never both.
	exclusive sync.Mutex

	mu         sync.Mutex
	installing *installation
}

// installation is one snapshot that is being received.
type installation struct {
	index, term uint64
	covered     bool // refused: the log has all of it
	diverged    bool // the log reached to it or over it, with other entries
}

// begin announces the next installation; its outcome is in the returned value
// after Raft has answered.
func (s *snapshotStore) begin(index, term uint64) *installation {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.installing = &installation{index: index, term: term}
	return s.installing
}

func (s *snapshotStore) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.installing = nil
}

// Create implements raft.SnapshotStore. A snapshot of the node's own that is
// taken of just the entry that is being installed is refused as well; Raft takes
// the next one later.
func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	s.mu.Lock()
	in := s.installing
	if in != nil && in.index == index && in.term == term {
		covered, reaches, err := s.covers(index, term)
		if err != nil {
			s.mu.Unlock()
			return nil, err
		}
		in.covered, in.diverged = covered, reaches && !covered
		if covered {
			s.mu.Unlock()
			return nil, errCovered
		}
	}
	s.mu.Unlock()
	return s.FileSnapshotStore.Create(version, index, term, configuration, configurationIndex, trans)
}

// covers says whether the node already has all that a snapshot of this index
// and term holds, and whether its log reaches to it at all.
func (s *snapshotStore) covers(index, term uint64) (covered, reaches bool, err error) {
	own, err := s.List()
	if err != nil {
		return false, false, err
	}
	for _, meta := range own {
		if meta.Index >= index {
			return true, true, nil
		}
	}
	first, err := s.log.FirstIndex()
	if err != nil {
		return false, false, err
	}
	last, err := s.log.LastIndex()
	if err != nil {
		return false, false, err
	}
	if last < index {
		return false, false, nil
	}
	if first > index {
		return false, true, nil
	}
	var entry raft.Log
	if err := s.log.GetLog(index, &entry); err != nil {
		return false, true, err
	}
	return entry.Term == term, true, nil
}
