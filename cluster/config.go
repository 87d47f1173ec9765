package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/highwater/highwater/lease"
)

// Defaults and limits of a Config.
const (
	DefaultRaftTimeout = 300 * time.Millisecond
	MinRaftTimeout     = 50 * time.Millisecond
	MaxRaftTimeout     = 10 * time.Second
	DefaultLeaderWait  = 5 * time.Second
	MaxLeaderWait      = time.Minute
)

// Config is what a node is started with. Errors about it name the command line
// flag that sets the field.
type Config struct {
	NodeID  string // --node-id
	DataDir string // --data-dir

	// ClusterListen is the host:port of the cluster port, --cluster-addr.
	ClusterListen string
	// ClusterListener is the cluster port, already open; ClusterListen is not
	// used then. Open takes it over, and closes it in any case.
	ClusterListener net.Listener
	// ClusterAdvertise is the host:port at which other nodes dial the cluster
	// port, --cluster-advertise. Empty: the own entry of InitialCluster, or else
	// the listen address.
	ClusterAdvertise string
	// HTTPAdvertise is the host:port at which clients reach the API, told to
	// other nodes, --http-advertise.
	HTTPAdvertise string
	// InitialCluster lists the nodes of a new cluster, "n1=host:port,...", the
	// same on all of them, --initial-cluster. It acts on empty state only.
	InitialCluster string

	// AutoFloor takes the token floor of a new cluster from the clock,
	// --token-floor auto; otherwise TokenFloor is it.
	AutoFloor  bool
	TokenFloor lease.Token

	LogStore LogStore // --log-store; empty: LogStoreWAL
	// RaftTimeout is how long a follower waits for its leader before it stands
	// for election, and a leader for its followers before it steps down,
	// --raft-timeout. Zero: DefaultRaftTimeout.
	RaftTimeout time.Duration
	// LeaderWait is how long a request is kept while no leader is known,
	// --leader-wait. Zero: DefaultLeaderWait.
	LeaderWait time.Duration

	Version string // of this binary, told to other nodes
	Logger  hclog.Logger
	// Now is the wall clock. It is noted in entries for people to read, and once
	// makes the automatic floor; nothing else depends on it. Nil: time.Now.
	Now func() time.Time
	// Dial opens a connection to another node's cluster port. Nil: a net.Dialer,
	// which resolves names each time.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	hooks hooks
}

// hooks let tests stop a node at a line. Each may be nil.
type hooks struct {
	// stamped is called between reading the clock for an entry of so many
	// commands and proposing it.
	stamped func(commands int)
	// committed is called between the commit of an entry and its answers.
	committed func()
}

// Validate checks everything that can be known before the node is opened.
func (c Config) Validate() error {
	if err := checkNodeID("--node-id", c.NodeID); err != nil {
		return err
	}
	if c.DataDir == "" {
		return errors.New("--data-dir: a directory is needed")
	}
	if c.LogStore != "" && c.LogStore != LogStoreWAL && c.LogStore != LogStoreBolt {
		return fmt.Errorf("--log-store: must be %q or %q, not %q", LogStoreWAL, LogStoreBolt, c.LogStore)
	}
	if c.RaftTimeout != 0 && (c.RaftTimeout < MinRaftTimeout || c.RaftTimeout > MaxRaftTimeout) {
		return fmt.Errorf("--raft-timeout: must be from %v to %v, not %v", MinRaftTimeout, MaxRaftTimeout, c.RaftTimeout)
	}
	if c.LeaderWait < 0 || c.LeaderWait > MaxLeaderWait {
		return fmt.Errorf("--leader-wait: must be from 0s to %v, not %v", MaxLeaderWait, c.LeaderWait)
	}
	if c.TokenFloor < 0 || c.TokenFloor > lease.MaxToken {
		return fmt.Errorf("--token-floor: must be auto or an integer from 0 to %d, not %d", int64(lease.MaxToken), c.TokenFloor)
	}
	if c.AutoFloor && c.TokenFloor != 0 {
		return errors.New("--token-floor: must be auto or a number, not both")
	}
	members, err := c.members()
	if err != nil {
		return err
	}
	return c.checkAddresses(members)
}

// members is InitialCluster; nil if it is empty.
func (c Config) members() ([]member, error) {
	if c.InitialCluster == "" {
		return nil, nil
	}
	return parseInitialCluster(c.InitialCluster)
}

// checkAddresses refuses advertised addresses that the listed nodes could not
// dial (C46).
func (c Config) checkAddresses(members []member) error {
	var others []string
	for _, m := range members {
		if m.ID != c.NodeID {
			others = append(others, m.ClusterAddr)
		}
	}
	flag, addr := c.advertise(members)
	if err := checkAdvertised(flag, addr, others); err != nil {
		return err
	}
	if c.HTTPAdvertise == "" {
		return nil
	}
	return checkAdvertised("--http-advertise", c.HTTPAdvertise, others)
}

// advertise is the address that other nodes dial, and the flag that it is from.
func (c Config) advertise(members []member) (flag, addr string) {
	if c.ClusterAdvertise != "" {
		return "--cluster-advertise", c.ClusterAdvertise
	}
	for _, m := range members {
		if m.ID == c.NodeID {
			return "--initial-cluster", m.ClusterAddr
		}
	}
	if c.ClusterListener != nil {
		return "--cluster-advertise", c.ClusterListener.Addr().String()
	}
	return "--cluster-advertise", c.ClusterListen
}

// withDefaults fills in what may be left out.
func (c Config) withDefaults() Config {
	if c.LogStore == "" {
		c.LogStore = LogStoreWAL
	}
	if c.RaftTimeout == 0 {
		c.RaftTimeout = DefaultRaftTimeout
	}
	if c.LeaderWait == 0 {
		c.LeaderWait = DefaultLeaderWait
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}
