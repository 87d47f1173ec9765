package wire

import "github.com/highwater/highwater/lease"

// Cluster is the answer to GET /v1/cluster: the cluster as one node sees it,
// at once and without asking another.
type Cluster struct {
	ClusterID string `json:"cluster_id"`
	// Node is the ID of the node that answered.
	Node string `json:"node"`
	// Leader is a node ID, absent when none is known.
	Leader       string      `json:"leader,omitzero"`
	Term         uint64      `json:"term"`
	CommitIndex  uint64      `json:"commit_index"`
	LastToken    lease.Token `json:"last_token"`
	Floor        lease.Token `json:"floor"`
	FeatureLevel int         `json:"feature_level"`
	// AppliedIndex is the last log entry that this node's state includes, and
	// Digest the state machine's own check sum there: equal on all nodes that
	// are at one index.
	AppliedIndex uint64 `json:"applied_index,omitzero"`
	Digest       string `json:"digest,omitzero"`
	Nodes        []Node `json:"nodes"`
}

// Node is one member of a cluster.
type Node struct {
	ID          string `json:"id"`
	HTTPAddr    string `json:"http_addr"`
	ClusterAddr string `json:"cluster_addr"`
	Role        Role   `json:"role"`
	Healthy     bool   `json:"healthy"`
	// LastContactMS is the time since the answering node last heard from this
	// one, in milliseconds; null when it never did.
	LastContactMS *int64 `json:"last_contact_ms"`
	// Lag is how many log entries this one is behind the commit index.
	Lag     uint64 `json:"lag"`
	Version string `json:"version"`
}

// Role is what a member does.
type Role string

// The roles.
const (
	RoleLeader   Role = "leader"
	RoleFollower Role = "follower"
	RoleNonvoter Role = "nonvoter"
)
