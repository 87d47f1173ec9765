package cluster

import (
	"errors"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// LogStore is the kind of store that holds the Raft log.
type LogStore string

// The kinds of log store, as --log-store spells them.
const (
	LogStoreWAL  LogStore = "wal"
	LogStoreBolt LogStore = "bolt"
)

// stores is all that a node keeps on its disk.
type stores struct {
	stable    raft.StableStore
	log       raft.LogStore
	snapshots raft.SnapshotStore
	dir       string
}

func openStores(dir string, kind LogStore, logger hclog.Logger) (*stores, error) {
	return nil, errors.New("not written yet")
}

// identity is the node's identity as it is on disk, with the node ID that it
// was given at this start. Safe for concurrent use: it is what networkConfig
// asks for.
func (s *stores) identity() identity { return identity{} }

// adoptNodeID takes --node-id: with state it must be the stored one.
func (s *stores) adoptNodeID(nodeID string) error { return nil }

// Close closes the stores. Raft must have been shut down.
func (s *stores) Close() error { return nil }
