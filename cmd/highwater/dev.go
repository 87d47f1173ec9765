package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/highwater/highwater/cluster"
	"github.com/highwater/highwater/lease"
)

// devFormTimeout is how long a cluster of one process may take to be ready.
const devFormTimeout = 30 * time.Second

// Dev is a whole cluster in one process on loopback: the same nodes as serve
// runs, without a floor, so that its tokens read 1, 2, 3.
type Dev struct {
	printFlags
	Nodes    int    `default:"3" help:"How many nodes: 1 to 9."`
	DataDir  string `help:"Where to keep the nodes' data. Default: a temporary directory, removed at the end."`
	Port     int    `default:"8400" help:"Node i has its API on this port + 10(i-1) and its cluster port one above; 0 takes free ports."`
	LogLevel string `enum:"debug,info,warn,error,off" default:"error" help:"debug, info, warn, error or off, on stderr."`
}

// Limits of a development cluster.
const (
	maxDevNodes = 9
	devPortStep = 10
)

// Validate is called by kong.
func (d *Dev) Validate() error {
	if d.Nodes < 1 || d.Nodes > maxDevNodes {
		return lease.BadRequest("--nodes", "must be an integer from 1 to %d, not %d", maxDevNodes, d.Nodes)
	}
	if last := 65535 - devPortStep*(maxDevNodes-1) - 1; d.Port < 0 || d.Port > last {
		return lease.BadRequest("--port", "must be an integer from 0 to %d, not %d", last, d.Port)
	}
	if d.Port == 0 && d.DataDir != "" && d.Nodes > 1 {
		return lease.BadRequest("--port", "must not be 0 with --data-dir: its nodes know each other by their ports")
	}
	return nil
}

// Run starts the cluster, says what to try, and serves until ctx ends.
func (d *Dev) Run(ctx context.Context, out *streams) error {
	started, err := d.Start(ctx, out.Err)
	if errors.Is(err, context.Canceled) {
		return nil // asked to stop before it was ready
	}
	if err != nil {
		return err
	}
	if err := out.print(started.summary(), started.transcript); err != nil {
		return errors.Join(err, started.Close())
	}
	return started.Wait(ctx)
}

// DevCluster is a running development cluster.
type DevCluster struct {
	nodes   []*Node
	members []devMember
	dataDir string
	logger  hclog.Logger
	// temporary: nobody asked for dataDir, so it goes with the cluster.
	temporary bool
	ended     chan struct{}

	closeOnce sync.Once
	closeErr  error
}

type devMember struct {
	ID          string `json:"id"`
	URL         string `json:"url"`
	HTTPAddr    string `json:"http_addr"`
	ClusterAddr string `json:"cluster_addr"`
	api         net.Listener
	peers       net.Listener
}

// Start returns when the cluster has a leader that every node knows.
func (d *Dev) Start(ctx context.Context, logs io.Writer) (_ *DevCluster, err error) {
	members, err := d.listen()
	if err != nil {
		return nil, err
	}
	c := &DevCluster{
		members: members,
		dataDir: d.DataDir,
		logger:  hclog.New(&hclog.LoggerOptions{Level: hclog.LevelFromString(d.LogLevel), Output: logs}),
		ended:   make(chan struct{}),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.dataDir == "" {
		if c.dataDir, err = os.MkdirTemp("", "highwater-dev-"); err != nil {
			return nil, err
		}
		c.temporary = true
	}
	for _, m := range members {
		node, err := StartNode(ctx, cluster.Config{
			NodeID:           m.ID,
			DataDir:          filepath.Join(c.dataDir, m.ID),
			ClusterListener:  m.peers,
			ClusterAdvertise: m.ClusterAddr,
			HTTPAdvertise:    m.HTTPAddr,
			InitialCluster:   initialCluster(members),
			LogStore:         cluster.LogStoreWAL,
			RaftTimeout:      300 * time.Millisecond,
			LeaderWait:       5 * time.Second,
			Version:          buildVersion(),
			Now:              time.Now,
			Logger:           c.logger.Named(m.ID),
		}, m.api)
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, node)
	}
	return c, c.waitReady(ctx)
}

// listen opens all ports before any node starts, so that a busy one is named
// at once and free ones, for port 0, are known to all.
func (d *Dev) listen() (members []devMember, err error) {
	defer func() {
		if err != nil {
			closeListeners(members)
		}
	}()
	for i := range d.Nodes {
		m := devMember{ID: fmt.Sprintf("n%d", i+1)}
		apiPort, peersPort := 0, 0
		if d.Port != 0 {
			apiPort = d.Port + devPortStep*i
			peersPort = apiPort + 1
		}
		if m.api, err = listenLoopback(apiPort); err != nil {
			return members, err
		}
		members = append(members, m)
		if members[i].peers, err = listenLoopback(peersPort); err != nil {
			return members, err
		}
		members[i].HTTPAddr = m.api.Addr().String()
		members[i].URL = "http://" + members[i].HTTPAddr
		members[i].ClusterAddr = members[i].peers.Addr().String()
	}
	return members, nil
}

func listenLoopback(port int) (net.Listener, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, fmt.Errorf("port %d: %w; --port chooses others", port, err)
	}
	return listener, nil
}

func closeListeners(members []devMember) {
	for _, m := range members {
		for _, l := range []net.Listener{m.api, m.peers} {
			if l != nil {
				l.Close()
			}
		}
	}
}

func initialCluster(members []devMember) string {
	entries := make([]string, len(members))
	for i, m := range members {
		entries[i] = m.ID + "=" + m.ClusterAddr
	}
	return strings.Join(entries, ",")
}

// waitReady polls: readiness is a state of each node, with no event of its own.
func (c *DevCluster) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, devFormTimeout)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for _, n := range c.nodes {
		for {
			err := n.cluster.Ready()
			if err == nil {
				break
			}
			select {
			case <-poll.C:
			case <-n.cluster.Done():
				return n.cluster.Err()
			case <-ctx.Done():
				if !c.temporary {
					err = fmt.Errorf("%w; a cluster in --data-dir keeps the --nodes and the --port that it began with", err)
				}
				return fmt.Errorf("the cluster is not ready: %w", err)
			}
		}
	}
	return nil
}

// Wait serves until ctx ends or a node cannot go on.
func (c *DevCluster) Wait(ctx context.Context) error {
	failed := make(chan error, len(c.nodes))
	for _, n := range c.nodes {
		go func() {
			select {
			case <-n.cluster.Done():
				failed <- n.cluster.Err()
			case err := <-n.failed:
				failed <- err
			case <-c.ended:
			}
		}()
	}
	var reason error
	select {
	case <-ctx.Done():
	case reason = <-failed:
	}
	return errors.Join(reason, c.Close())
}

// Close stops all nodes and removes a temporary directory. They stop at the
// same time: handing leadership from one to the next helps nobody here.
func (c *DevCluster) Close() error {
	c.closeOnce.Do(func() {
		close(c.ended)
		// Nodes that lose each other at the end have errors to tell, and
		// nobody needs to hear them.
		c.logger.SetLevel(hclog.Off)
		errs := make([]error, len(c.nodes)+1)
		var stopping sync.WaitGroup
		for i, n := range c.nodes {
			stopping.Go(func() { errs[i] = n.stop(false) })
		}
		stopping.Wait()
		closeListeners(c.members)
		if c.temporary {
			errs[len(c.nodes)] = os.RemoveAll(c.dataDir)
		}
		c.closeErr = errors.Join(errs...)
	})
	return c.closeErr
}

// endpoints are the base URLs of all nodes.
func (c *DevCluster) endpoints() []string {
	urls := make([]string, len(c.members))
	for i, m := range c.members {
		urls[i] = m.URL
	}
	return urls
}

type devSummary struct {
	Nodes   []devMember `json:"nodes"`
	DataDir string      `json:"data_dir"`
}

func (c *DevCluster) summary() devSummary { return devSummary{c.members, c.dataDir} }
