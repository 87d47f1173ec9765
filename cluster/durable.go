package cluster

import (
	"bytes"
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
	path string
	fail func(error)
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
