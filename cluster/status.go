package cluster

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/highwater/highwater/lease"
)

// FeatureLevel is the newest set of entries and formats that this binary knows,
// and so far the only one.
const FeatureLevel = 1

// Role is a node's part in the cluster.
type Role string

// The roles.
const (
	RoleLeader   Role = "leader"
	RoleFollower Role = "follower"
	RoleNonvoter Role = "nonvoter"
)

// Status is the cluster as one node sees it, without asking anybody.
type Status struct {
	ClusterID    string // empty before the cluster is formed
	Node         string
	Leader       string // empty while none is known
	Term         uint64
	CommitIndex  uint64
	AppliedIndex uint64 // the last entry in this node's state
	Digest       uint64 // of the state; equal on all nodes at the same index
	LastToken    lease.Token
	Floor        lease.Token
	FeatureLevel int
	Nodes        []NodeStatus
}

// NodeStatus is one member as one node sees it.
type NodeStatus struct {
	ID          string
	HTTPAddr    string // empty while it is not known
	ClusterAddr string
	Role        Role
	Healthy     bool
	// LastContact is how long ago the node was last heard of; negative: never
	// since this node started.
	LastContact time.Duration
	// Lag is how many entries it has yet to apply, as far as is known here.
	Lag     uint64
	Version string
}

// healthyContact is how long ago a healthy node was last heard of, at most. It is
// asked once a second.
const healthyContact = 3 * time.Second

// Status returns what this node knows, at once, with or without a leader.
func (n *Node) Status() Status {
	info := n.machine.Info()
	l := n.leader.Load()
	s := Status{
		ClusterID:    n.stores.identity().ClusterID,
		Node:         n.cfg.NodeID,
		Leader:       l.node,
		AppliedIndex: info.Index,
		Digest:       info.Digest,
		LastToken:    info.LastToken,
		Floor:        info.Floor,
		FeatureLevel: FeatureLevel,
	}
	r := n.raft.Load()
	if r == nil {
		for _, m := range n.listed {
			s.Nodes = append(s.Nodes, n.nodeStatus(m, RoleFollower, l, 0))
		}
		return s
	}
	s.Term, s.CommitIndex = r.CurrentTerm(), r.CommitIndex()
	for _, server := range r.GetConfiguration().Configuration().Servers {
		id, instance := splitServerID(server.ID)
		role := RoleFollower
		switch {
		case server.ID == l.id:
			role = RoleLeader
		case server.Suffrage != raft.Voter:
			role = RoleNonvoter
		}
		m := member{ID: id, Instance: instance, ClusterAddr: string(server.Address)}
		s.Nodes = append(s.Nodes, n.nodeStatus(m, role, l, s.CommitIndex))
	}
	return s
}

func (n *Node) nodeStatus(m member, role Role, l *leaderView, commit uint64) NodeStatus {
	s := NodeStatus{ID: m.ID, ClusterAddr: m.ClusterAddr, Role: role, LastContact: -1}
	if m.ID == n.cfg.NodeID {
		s.HTTPAddr, s.Version = n.cfg.HTTPAdvertise, n.cfg.Version
		s.Healthy = n.Ready() == nil
		s.LastContact = 0
		s.Lag = behind(commit, n.machine.Info().Index)
		return s
	}
	peer, ago, ok := n.peers.latest(m.ID)
	if !ok {
		return s
	}
	s.HTTPAddr, s.Version, s.LastContact = peer.HTTPAddr, peer.Version, ago
	s.Healthy = peer.Healthy && ago < healthyContact
	// What it has applied is as of when it was asked. While it hears from the
	// leader it knows itself what it lacked then.
	s.Lag = behind(commit, peer.AppliedIndex)
	if s.Healthy {
		s.Lag = behind(peer.CommitIndex, peer.AppliedIndex)
	}
	return s
}

// behind is how far applied is behind commit. The two can be of different
// moments.
func behind(commit, applied uint64) uint64 {
	if applied >= commit {
		return 0
	}
	return commit - applied
}

// ownStatus is what this node tells others of itself.
func (n *Node) ownStatus() peerStatus {
	info := n.machine.Info()
	l := n.leader.Load()
	s := peerStatus{Role: string(RoleFollower), Leader: l.node, AppliedIndex: info.Index, Digest: info.Digest, Healthy: n.Ready() == nil}
	r := n.raft.Load()
	if r == nil {
		return s
	}
	s.Term, s.LastIndex, s.CommitIndex = r.CurrentTerm(), r.LastIndex(), r.CommitIndex()
	if l.self {
		s.Role = string(RoleLeader)
	}
	return s
}
