package cluster

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// networkConfig is what a node's cluster port needs to know.
type networkConfig struct {
	// Listener is the open cluster port; if nil, Listen is listened on.
	Listener net.Listener
	Listen   string // host:port
	// Advertise is the host:port that others dial. Empty: the listener's address.
	Advertise string
	HTTPAddr  string // advertised API address, told to others
	Version   string // of this binary, told to others
	// Identity is asked for every connection.
	Identity func() identity
	// Members is the current configuration; nil or empty before there is one.
	Members func() []member
	// InitialCluster is the parsed --initial-cluster, told to others.
	InitialCluster []member
	// Dial opens a connection; nil means a net.Dialer, which resolves names
	// each time.
	Dial   func(ctx context.Context, addr string) (net.Conn, error)
	Now    func() time.Time // wall clock; nil means time.Now
	Logger hclog.Logger
}

// network is a node's end of the cluster port.
type network struct{}

func newNetwork(cfg networkConfig) (*network, error) { return nil, errors.New("not written yet") }

// advertise is the host:port that others dial.
func (n *network) advertise() string { return "" }

// raftLayer is the stream layer for newTransport. Raft connections are refused
// before the first call and after its Close.
func (n *network) raftLayer() raft.StreamLayer { return nil }

// dialForward opens a connection for forwarded requests to the node of that
// server ID, and to no other.
func (n *network) dialForward(ctx context.Context, to raft.ServerID, addr string) (net.Conn, error) {
	return nil, errors.New("not written yet")
}

// onForward sets what serves accepted connections for forwarded requests. Each
// call has its own goroutine; the connection is closed when it returns. Before
// onForward, such connections are refused.
func (n *network) onForward(serve func(conn net.Conn, from raft.ServerID)) {}

// serveStatus sets what a status question is answered with. Identity, version,
// addresses and clock are filled in by the network.
func (n *network) serveStatus(status func() peerStatus) {}

// status asks the node at addr who and how it is.
func (n *network) status(ctx context.Context, addr string) (peerStatus, error) {
	return peerStatus{}, errors.New("not written yet")
}

// Close closes the listener and every open connection. Idempotent.
func (n *network) Close() error { return nil }
