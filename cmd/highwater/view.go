package main

import (
	"fmt"

	"github.com/highwater/highwater/cluster"
	"github.com/highwater/highwater/httpapi/wire"
)

// wireCluster is how the API shows a node's view of its cluster.
func wireCluster(s cluster.Status) wire.Cluster {
	c := wire.Cluster{
		ClusterID:    s.ClusterID,
		Node:         s.Node,
		Leader:       s.Leader,
		Term:         s.Term,
		CommitIndex:  s.CommitIndex,
		LastToken:    s.LastToken,
		Floor:        s.Floor,
		FeatureLevel: s.FeatureLevel,
		AppliedIndex: s.AppliedIndex,
		Digest:       fmt.Sprintf("%016x", s.Digest),
		Nodes:        make([]wire.Node, len(s.Nodes)),
	}
	for i, n := range s.Nodes {
		c.Nodes[i] = wire.Node{
			ID:          n.ID,
			HTTPAddr:    n.HTTPAddr,
			ClusterAddr: n.ClusterAddr,
			Role:        wire.Role(n.Role),
			Healthy:     n.Healthy,
			Lag:         n.Lag,
			Version:     n.Version,
		}
		if n.LastContact >= 0 {
			ms := n.LastContact.Milliseconds()
			c.Nodes[i].LastContactMS = &ms
		}
	}
	return c
}
