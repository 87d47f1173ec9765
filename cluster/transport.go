package cluster

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// transportTimeout bounds one Raft call to another node; sending a snapshot
	// gets as much again for every 256 KiB.
	transportTimeout = 2 * time.Second
	// transportPool is how many idle connections to a node are kept.
	transportPool = 3
)

// transport is Raft's network transport on the cluster port. Raft names the
// server ID in every call, and this passes it on in the address that the stream
// layer dials, which then makes sure that this server, and no other under the
// same name or address, is at the other end.
//
// It embeds raft.NetworkTransport, and has every optional method of it: without
// RequestPreVote Raft would go without pre-vote.
type transport struct {
	*raft.NetworkTransport
	stores   *stores
	logger   hclog.Logger
	received chan raft.RPC
	closing  chan struct{}
	once     sync.Once
}

var (
	_ raft.Transport   = (*transport)(nil)
	_ raft.WithPreVote = (*transport)(nil)
	_ raft.WithClose   = (*transport)(nil)
)

// newTransport puts Raft on the cluster port.
func newTransport(n *network, st *stores, logger hclog.Logger) *transport {
	t := &transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream:  n.raftLayer(),
			MaxPool: transportPool,
			Timeout: transportTimeout,
			Logger:  logger,
		}),
		stores:   st,
		logger:   logger,
		received: make(chan raft.RPC),
		closing:  make(chan struct{}),
	}
	go t.receive()
	return t
}

// dialAddress tells the stream layer whom to expect where.
func dialAddress(id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(id) + "@" + addr
}

// Consumer implements raft.Transport.
func (t *transport) Consumer() <-chan raft.RPC { return t.received }

// receive passes calls on to Raft. Heartbeats do not come this way.
func (t *transport) receive() {
	for {
		select {
		case rpc := <-t.NetworkTransport.Consumer():
			if req, ok := rpc.Command.(*raft.InstallSnapshotRequest); ok {
				if !t.install(rpc, req) {
					return
				}
				continue
			}
			t.pass(rpc)
		case <-t.closing:
			return
		}
	}
}

func (t *transport) pass(rpc raft.RPC) bool {
	select {
	case t.received <- rpc:
		return true
	case <-t.closing:
		return false
	}
}

// install passes a snapshot on and looks at what became of it; see
// snapshotStore. It returns false if Raft must hear nothing any more.
func (t *transport) install(rpc raft.RPC, req *raft.InstallSnapshotRequest) bool {
	if !t.stores.installs.exclusive.TryLock() {
		// The leader sends it again. What it has sent is read first, since the
		// next request comes behind it.
		_, _ = io.Copy(io.Discard, rpc.Reader)
		rpc.Respond(nil, errors.New("this node is taking a snapshot of its own"))
		return true
	}
	defer t.stores.installs.exclusive.Unlock()
	in := t.stores.installs.begin(req.LastLogIndex, req.LastLogTerm)
	defer t.stores.installs.end()
	answers := make(chan raft.RPCResponse, 1)
	if !t.pass(raft.RPC{Command: rpc.Command, Reader: rpc.Reader, RespChan: answers}) {
		return false
	}
	var answer raft.RPCResponse
	select {
	case answer = <-answers:
	case <-t.closing:
		return false
	}
	if in.covered {
		t.logger.Info("kept the log instead of a snapshot that it covers", "index", req.LastLogIndex)
		term := req.Term
		if resp, ok := answer.Response.(*raft.InstallSnapshotResponse); ok {
			term = resp.Term
		}
		rpc.Respond(&raft.InstallSnapshotResponse{Term: term, Success: true}, nil)
		return true
	}
	if in.diverged && answer.Error == nil {
		// The snapshot is stored and the log is emptied, but Raft still takes
		// the end of the old log for its last entry, and would vote by it. A
		// fresh start does not. Until then it hears nothing, and the leader is
		// told nothing that it could count on.
		t.stores.fail(errors.New("a received snapshot has replaced a log that had diverged from it; start the node again"))
		return false
	}
	rpc.RespChan <- answer
	return true
}

// Close implements raft.WithClose.
func (t *transport) Close() error {
	t.once.Do(func() { close(t.closing) })
	return t.NetworkTransport.Close()
}

// AppendEntriesPipeline implements raft.Transport.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, addr raft.ServerAddress) (raft.AppendPipeline, error) {
	return t.NetworkTransport.AppendEntriesPipeline(id, dialAddress(id, addr))
}

// AppendEntries implements raft.Transport.
func (t *transport) AppendEntries(id raft.ServerID, addr raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return t.NetworkTransport.AppendEntries(id, dialAddress(id, addr), req, resp)
}

// RequestVote implements raft.Transport.
func (t *transport) RequestVote(id raft.ServerID, addr raft.ServerAddress, req *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return t.NetworkTransport.RequestVote(id, dialAddress(id, addr), req, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (t *transport) RequestPreVote(id raft.ServerID, addr raft.ServerAddress, req *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.NetworkTransport.RequestPreVote(id, dialAddress(id, addr), req, resp)
}

// InstallSnapshot implements raft.Transport.
func (t *transport) InstallSnapshot(id raft.ServerID, addr raft.ServerAddress, req *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return t.NetworkTransport.InstallSnapshot(id, dialAddress(id, addr), req, resp, data)
}

// TimeoutNow implements raft.Transport.
func (t *transport) TimeoutNow(id raft.ServerID, addr raft.ServerAddress, req *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.NetworkTransport.TimeoutNow(id, dialAddress(id, addr), req, resp)
}
