package cluster

import "github.com/hashicorp/raft"

// identity says who a node is.
type identity struct {
	NodeID       string
	Instance     string
	ClusterID    string   // empty before the bootstrap
	Initial      []member // as bootstrapped
	Bootstrapped bool
}

// member is one node of a cluster.
type member struct {
	ID          string // the node ID, "n1"
	Instance    string
	ClusterAddr string // host:port as advertised
}

// ServerID is the node's name in Raft: node ID and instance, "n1.INSTANCE".
func (i identity) ServerID() raft.ServerID { return serverID(i.NodeID, i.Instance) }

func serverID(nodeID, instance string) raft.ServerID { return raft.ServerID(nodeID + "." + instance) }

// splitServerID takes a server ID apart; both are empty if it is none.
func splitServerID(id raft.ServerID) (nodeID, instance string) { return "", "" }
