package cluster

import "time"

// peerStatus is what a node tells others of itself.
type peerStatus struct {
	ServerID  string `json:"server_id"`
	ClusterID string `json:"cluster_id"` // empty before the bootstrap
	HTTPAddr  string `json:"http_addr"`
	Version   string `json:"version"`
	WallMS    int64  `json:"wall_ms"` // the node's wall clock, Unix milliseconds
	HasState  bool   `json:"has_state"`

	Role         string `json:"role"` // as the upper half sets it: leader, follower, nonvoter
	Leader       string `json:"leader"`
	Term         uint64 `json:"term"`
	LastIndex    uint64 `json:"last_index"`
	CommitIndex  uint64 `json:"commit_index"`
	AppliedIndex uint64 `json:"applied_index"`
	Digest       uint64 `json:"digest"` // of the state at AppliedIndex
	Healthy      bool   `json:"healthy"`
}

// peers keeps the latest status of every other member.
type peers struct{}

// newPeers asks nobody before start.
func newPeers(n *network, members func() []member) *peers { return &peers{} }

func (p *peers) start() {}

// stop ends the asking and waits for it. Idempotent.
func (p *peers) stop() {}

// latest is the last status that a node gave, and how long ago.
func (p *peers) latest(nodeID string) (status peerStatus, heardAgo time.Duration, ok bool) {
	return peerStatus{}, 0, false
}
