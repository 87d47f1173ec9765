package cluster

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// Raft's keys of the last vote.
var (
	lastVoteTermKey = []byte("LastVoteTerm")
	lastVoteCandKey = []byte("LastVoteCand")
)

// stableStore is Raft's stable store. It ends the process when a write fails,
// and it keeps a half-written vote from being taken for a whole one.
//
// Raft stores a vote as two values: first the term, then the candidate. A node
// that dies between the two starts with the new term beside the old candidate.
// If that candidate then asks in the new term, Raft finds "the vote already
// cast" and grants it without comparing logs, and a node without the latest
// entries can be elected. So the old candidate is cleared before the term is
// stored: no candidate means no vote yet, and logs are compared.
type stableStore struct {
	*raftboltdb.BoltStore
	fail func(error)
}

func (s *stableStore) SetUint64(key []byte, val uint64) error {
	if bytes.Equal(key, lastVoteTermKey) {
		if err := s.Set(lastVoteCandKey, nil); err != nil {
			return err
		}
	}
	return s.check(s.BoltStore.SetUint64(key, val))
}

func (s *stableStore) Set(key, val []byte) error {
	return s.check(s.BoltStore.Set(key, val))
}

func (s *stableStore) check(err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", stableFile, err)
		s.fail(err)
	}
	return err
}

// logStore is Raft's log under its cache. A failed write ends the process:
// Raft would go on with a log whose end it does not know (it keeps its idea of
// the last entry after a truncation whose append failed), and after a failed
// sync nobody knows what the disk holds until it is read again.
type logStore struct {
	raft.LogStore
	path      string
	fail      func(error)
	snapshots raft.SnapshotStore // nil until they are open
}

// GetLog finds, besides the entries of the log, the one right before its first,
// if a snapshot tells its term.
//
// A node that received a snapshot has a log that starts behind it. When the
// leader missed an answer, it sends again what follows the snapshot, and names
// the snapshot's last entry as the one before. Raft recognises that entry only
// while nothing follows it, and else looks for it in the log. Without this it
// would refuse every append until the next snapshot: the leader steps back, finds
// that it has to send the same snapshot, and begins anew.
//
// The entry that is made up has a term and no content, and must not be taken for
// the real one. The leader reads entries to send only behind one that it found
// as well; the entry before this one is not in the log, so that never leads here
// unless this is entry 1, which is left out.
func (l *logStore) GetLog(index uint64, entry *raft.Log) error {
	err := l.LogStore.GetLog(index, entry)
	if err == nil || !errors.Is(err, raft.ErrLogNotFound) || l.snapshots == nil || index <= 1 {
		return err
	}
	if first, ferr := l.FirstIndex(); ferr != nil || first != index+1 {
		return err
	}
	kept, lerr := l.snapshots.List()
	if lerr != nil {
		return err
	}
	for _, meta := range kept {
		if meta.Index == index {
			*entry = raft.Log{Index: index, Term: meta.Term, Type: raft.LogNoop}
			return nil
		}
	}
	return err
}

func (l *logStore) StoreLog(entry *raft.Log) error {
	return l.StoreLogs([]*raft.Log{entry})
}

func (l *logStore) StoreLogs(entries []*raft.Log) error {
	return l.check(l.LogStore.StoreLogs(entries))
}

func (l *logStore) DeleteRange(first, last uint64) error {
	return l.check(l.LogStore.DeleteRange(first, last))
}

// IsMonotonic implements raft.MonotonicLogStore. raft-wal takes no gaps; bolt
// would, and is asked for the same, so that one set of rules holds for both:
// after a received snapshot the log is empty, and no log has a hole.
func (l *logStore) IsMonotonic() bool { return true }

func (l *logStore) check(err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", l.path, err)
		l.fail(err)
	}
	return err
}
