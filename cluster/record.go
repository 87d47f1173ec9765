package cluster

import (
	"fmt"

	"github.com/go-json-experiment/json"
)

// recordVersion is the version of the identity record that this binary writes
// and reads.
const recordVersion = 1

// recordKey is beside Raft's own keys in the stable store.
var recordKey = []byte("HighwaterIdentity")

// record is the identity as it is stored: one value, so one write changes it as
// a whole.
type record struct {
	Version      int      `json:"version"`
	NodeID       string   `json:"node_id,omitempty"` // empty before the node belongs to a cluster
	Instance     string   `json:"instance"`
	LogStore     LogStore `json:"log_store"`
	ClusterID    string   `json:"cluster_id,omitempty"`
	Initial      []member `json:"initial,omitempty"`
	Bootstrapped bool     `json:"bootstrapped"`
}

func (r record) identity() identity {
	return identity{
		NodeID:       r.NodeID,
		Instance:     r.Instance,
		ClusterID:    r.ClusterID,
		Initial:      r.Initial,
		Bootstrapped: r.Bootstrapped,
	}
}

func (r record) encode() ([]byte, error) { return json.Marshal(r) }

// decodeRecord refuses what this binary did not write: a member that it does
// not know could be one that a newer version relies on.
func decodeRecord(b []byte) (record, error) {
	var r record
	if err := json.Unmarshal(b, &r, json.RejectUnknownMembers(true)); err != nil {
		return record{}, err
	}
	if r.Version != recordVersion {
		return record{}, fmt.Errorf("version %d is not known to this version of highwater", r.Version)
	}
	if !validInstance(r.Instance) {
		return record{}, fmt.Errorf("%q is no instance ID", r.Instance)
	}
	if r.ClusterID != "" && !validNodeID(r.NodeID) {
		return record{}, fmt.Errorf("%q is no node ID", r.NodeID)
	}
	return r, nil
}
