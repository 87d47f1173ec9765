package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

// LogStore is the kind of store that holds the Raft log.
type LogStore string

// The kinds of log store, as --log-store spells them.
const (
	LogStoreWAL  LogStore = "wal"
	LogStoreBolt LogStore = "bolt"
)

const (
	stableFile  = "stable.db" // term, vote, identity
	boltLogFile = "log.db"
	walDir      = "wal"
	walMetaFile = "wal-meta.db" // raft-wal's own list of segments, in walDir
	// snapshotDir is the name that raft's file snapshot store insists on.
	snapshotDir = "snapshots"

	// lockTimeout is how long another process may take to let go of the data
	// directory. Bolt waits for ever without one.
	lockTimeout = time.Second
	// keptSnapshots is how many snapshots stay on disk.
	keptSnapshots = 2
	// logCacheSize is how many of the latest entries stay in memory for the
	// followers that are a little behind.
	logCacheSize = 512
)

// stores is all that a node keeps on its disk. Everything in it is durable when
// the call that wrote it returns.
//
// The stable store holds term, vote and identity in one file, because a node
// that lost its vote must not pass for the node that cast it: what is lost
// together makes a new node, and what is missing alone is refused.
type stores struct {
	stable    raft.StableStore
	log       raft.LogStore
	snapshots raft.SnapshotStore
	dir       string

	bolt     *raftboltdb.BoltStore
	closeLog func() error
	installs *snapshotStore

	mu     sync.Mutex
	record record // as on disk
	nodeID string // as of this start
	failed error  // the first failed write
	onFail func(error)
}

// openStores opens the data directory, or makes it at the first start. It
// refuses, with the path and what to do, a directory that another process has
// open (C47), one that lost a part of its state, and another kind of log than
// the one it was made with.
func openStores(dir string, kind LogStore, logger hclog.Logger) (*stores, error) {
	return openStoresSized(dir, kind, wal.DefaultSegmentSize, logger)
}

func openStoresSized(dir string, kind LogStore, segmentBytes int, logger hclog.Logger) (_ *stores, err error) {
	if kind != LogStoreWAL && kind != LogStoreBolt {
		return nil, fmt.Errorf("--log-store: must be %q or %q, not %q", LogStoreWAL, LogStoreBolt, kind)
	}
	if err := makeDir(dir); err != nil {
		return nil, fmt.Errorf("--data-dir: %w", err)
	}
	s := &stores{dir: dir}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()

	if !exists(filepath.Join(dir, stableFile)) {
		if err := s.refuseLeftovers(); err != nil {
			return nil, err
		}
	}
	s.bolt, err = openBolt(filepath.Join(dir, stableFile))
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fmt.Errorf("--data-dir: %s is in use by another process", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("--data-dir: %s: %w", filepath.Join(dir, stableFile), err)
	}
	s.stable = &stableStore{BoltStore: s.bolt, fail: s.fail}

	if err := s.openRecord(kind); err != nil {
		return nil, err
	}
	log, err := s.openLog(kind, segmentBytes, logger)
	if err != nil {
		return nil, err
	}
	if s.log, err = raft.NewLogCache(logCacheSize, log); err != nil {
		return nil, err
	}
	if err := s.openSnapshots(logger); err != nil {
		return nil, err
	}
	log.snapshots = s.snapshots
	if err := s.reconcile(logger); err != nil {
		return nil, err
	}
	return s, nil
}

// openRecord reads the identity record, or makes it on an empty directory.
func (s *stores) openRecord(kind LogStore) error {
	path := filepath.Join(s.dir, stableFile)
	b, err := s.bolt.Get(recordKey)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		if err := s.refuseLeftovers(); err != nil {
			return err
		}
		return s.save(record{Version: recordVersion, Instance: newInstance(), LogStore: kind})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	r, err := decodeRecord(b)
	if err != nil {
		return fmt.Errorf("%s: identity: %w", path, err)
	}
	if r.LogStore != kind {
		return fmt.Errorf("--log-store: %s was made with %q and cannot be opened with %q: its log would be lost; "+
			"to change the kind, remove the node from the cluster and join it again with an empty directory", s.dir, r.LogStore, kind)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record, s.nodeID = r, r.NodeID
	return nil
}

// refuseLeftovers refuses a log or a snapshot that has no stable store beside
// it: with the vote forgotten, the node could vote a second time in one term.
func (s *stores) refuseLeftovers() error {
	for _, name := range []string{boltLogFile, walDir, snapshotDir} {
		path := filepath.Join(s.dir, name)
		entries, err := os.ReadDir(path)
		if exists(path) && (err != nil || len(entries) > 0) {
			return fmt.Errorf("--data-dir: %s is there, but the node's term, vote and identity in %s are missing; "+
				"it cannot go on as the node it was: remove the node from the cluster, empty the directory, then start it with --join",
				path, filepath.Join(s.dir, stableFile))
		}
	}
	return nil
}

// openLog opens the log of the given kind. A node that was bootstrapped has
// one: to start without it would take back what it acknowledged.
func (s *stores) openLog(kind LogStore, segmentBytes int, logger hclog.Logger) (*logStore, error) {
	path, proof := filepath.Join(s.dir, boltLogFile), filepath.Join(s.dir, boltLogFile)
	if kind == LogStoreWAL {
		path, proof = filepath.Join(s.dir, walDir), filepath.Join(s.dir, walDir, walMetaFile)
	}
	if s.record.Bootstrapped && !exists(proof) {
		return nil, s.lost(path, "is missing")
	}
	if kind == LogStoreBolt {
		bolt, err := openBolt(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		s.closeLog = bolt.Close
		return &logStore{LogStore: bolt, path: path, fail: s.fail}, nil
	}
	if err := makeDir(path); err != nil {
		return nil, err
	}
	if err := repairTail(path, segmentBytes); err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	w, err := wal.Open(path, wal.WithLogger(logger.Named("wal")), wal.WithSegmentSize(segmentBytes))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s.closeLog = w.Close
	return &logStore{LogStore: w, path: path, fail: s.fail}, nil
}

// lost says that a part of the state is gone, and the way back.
func (s *stores) lost(path, what string) error {
	return fmt.Errorf("%s %s: this node has lost what it acknowledged and must not go on as the node it was; "+
		"remove node %s from the cluster, empty %s, then start it with --join", path, what, s.record.NodeID, s.dir)
}

// identity is the node's identity as it is on disk, with the node ID of this
// start. Safe for concurrent use.
func (s *stores) identity() identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.record.identity()
	i.NodeID = s.nodeID
	return i
}

// adoptNodeID takes --node-id. A node that belongs to a cluster has one for
// ever; before that the flag may be corrected.
func (s *stores) adoptNodeID(nodeID string) error {
	if err := checkNodeID("--node-id", nodeID); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record.ClusterID != "" && s.record.NodeID != nodeID {
		return fmt.Errorf("--node-id: %s belongs to node %q, not to %q", s.dir, s.record.NodeID, nodeID)
	}
	s.nodeID = nodeID
	return nil
}

// saveIdentity makes i durable.
func (s *stores) saveIdentity(i identity) error {
	s.mu.Lock()
	r := s.record
	s.mu.Unlock()
	r.NodeID, r.ClusterID, r.Initial, r.Bootstrapped = i.NodeID, i.ClusterID, i.Initial, i.Bootstrapped
	return s.save(r)
}

func (s *stores) save(r record) error {
	b, err := r.encode()
	if err != nil {
		return err
	}
	if err := s.bolt.Set(recordKey, b); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(s.dir, stableFile), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record = r
	if r.NodeID != "" {
		s.nodeID = r.NodeID
	}
	return nil
}

// onFailure sets what is called, once, when a write has failed and the process
// must end: what the disk holds is unknown then, and only a fresh start reads
// it. It is called at once if a write has failed before. f is called on Raft's
// goroutines and must not wait for Raft.
func (s *stores) onFailure(f func(error)) {
	s.mu.Lock()
	failed := s.failed
	s.onFail = f
	s.mu.Unlock()
	if failed != nil {
		f(failed)
	}
}

func (s *stores) fail(err error) {
	s.mu.Lock()
	first, f := s.failed == nil, s.onFail
	if first {
		s.failed = err
	}
	s.mu.Unlock()
	if first && f != nil {
		f(err)
	}
}

// Close closes the stores. Raft must have been shut down. Idempotent.
func (s *stores) Close() error {
	var errs []error
	if s.closeLog != nil {
		errs = append(errs, s.closeLog())
	}
	if s.bolt != nil {
		errs = append(errs, s.bolt.Close())
	}
	return errors.Join(errs...)
}

// openBolt opens or makes a bolt file. A fresh file is only as durable as its
// entry in the directory, which bolt does not sync.
func openBolt(path string) (*raftboltdb.BoltStore, error) {
	fresh := !exists(path)
	b, err := raftboltdb.New(raftboltdb.Options{
		Path:        path,
		BoltOptions: &bbolt.Options{Timeout: lockTimeout},
	})
	if err != nil {
		return nil, err
	}
	if fresh {
		if err := syncDir(filepath.Dir(path)); err != nil {
			b.Close()
			return nil, err
		}
	}
	return b, nil
}

// makeDir makes a directory and those above it, for the owner only, each
// durable in the one above it.
func makeDir(path string) error {
	err := os.Mkdir(path, 0o700)
	switch {
	case err == nil:
		return syncDir(filepath.Dir(path))
	case errors.Is(err, os.ErrNotExist) && !exists(filepath.Dir(path)):
		if err := makeDir(filepath.Dir(path)); err != nil {
			return err
		}
		return makeDir(path)
	case errors.Is(err, os.ErrExist):
		if info, err := os.Stat(path); err != nil {
			return err
		} else if !info.IsDir() {
			return fmt.Errorf("%s is not a directory", path)
		}
		return nil
	}
	return err
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}
