package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/highwater/highwater/cluster"
	"github.com/highwater/highwater/httpapi"
	"github.com/highwater/highwater/httpapi/wire"
)

// stopTimeout bounds how long a node takes to stop: handing leadership over,
// answering what it has been asked, and closing its stores.
const stopTimeout = 10 * time.Second

// Node is one node with its API: package cluster below, package httpapi above,
// met only here.
type Node struct {
	cluster *cluster.Node
	server  *httpapi.Server
	logger  hclog.Logger
	// failed has the error that ended the API, if one did.
	failed chan error

	closeOnce sync.Once
	closeErr  error
}

// StartNode opens a node and serves its API on listener, which it closes at
// the end.
func StartNode(ctx context.Context, config cluster.Config, listener net.Listener) (*Node, error) {
	config.Logger.Info("highwater starts", "version", config.Version, "node", config.NodeID,
		"api", listener.Addr().String(), "data", config.DataDir)
	opened, err := cluster.Open(ctx, config)
	if err != nil {
		listener.Close()
		return nil, err
	}
	n := &Node{cluster: opened, logger: config.Logger, failed: make(chan error, 1)}
	n.server = httpapi.NewServer(httpapi.Config{
		Authority:    opened,
		Cluster:      func() wire.Cluster { return wireCluster(opened.Status()) },
		AllowedHosts: []string{config.HTTPAdvertise},
		Logger:       config.Logger,
	})
	go func() { n.failed <- n.server.Serve(listener) }()
	return n, nil
}

// Wait returns after the node has stopped: nil if ctx ended, else the reason
// why it could not go on.
func (n *Node) Wait(ctx context.Context) error {
	var reason error
	select {
	case <-ctx.Done():
		n.logger.Info("asked to stop")
	case <-n.cluster.Done():
		reason = n.cluster.Err()
	case err := <-n.failed:
		reason = fmt.Errorf("the API stopped: %w", err)
	}
	return errors.Join(reason, n.Close())
}

// Close hands leadership over, then answers what has been asked, then stops.
// Further calls return what the first one did.
func (n *Node) Close() error { return n.stop(true) }

// stop is Close, without handing over where all nodes stop at the same time.
func (n *Node) stop(handOver bool) error {
	n.closeOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if node, leader := n.cluster.Names(); handOver && node == leader {
			// Without a successor there is nobody to hand over to, and it
			// stops all the same.
			if err := n.cluster.TransferLeadership(ctx); err != nil {
				n.logger.Warn("leadership was not handed over", "error", err)
			}
		}
		n.closeErr = errors.Join(n.stopServer(ctx), n.cluster.Close(ctx))
		n.logger.Info("stopped")
	})
	return n.closeErr
}

// stopServer closes the listener and waits for the requests under way. One
// that is not answered in time loses its connection, which its client takes
// for an unknown outcome, rightly.
func (n *Node) stopServer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout/2)
	defer cancel()
	err := n.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		n.logger.Warn("requests were not answered in time")
		return n.server.Close()
	}
	return err
}
