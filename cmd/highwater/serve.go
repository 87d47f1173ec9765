package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/highwater/highwater/cluster"
	"github.com/highwater/highwater/lease"
)

// Serve is the configuration of one node, and what runs it.
type Serve struct {
	NodeID  string `name:"node-id" required:"" help:"This node's name in the cluster, like n1: 1 to 64 of A-Z a-z 0-9 _ -."`
	DataDir string `required:"" help:"Where this node keeps its log and its identity. Only one process may use it."`

	HTTPAddr         string `name:"http-addr" default:"127.0.0.1:8400" help:"Where the API listens."`
	ClusterAddr      string `default:"127.0.0.1:8401" help:"Where the other nodes connect to."`
	HTTPAdvertise    string `name:"http-advertise" help:"HOST:PORT by which clients reach the API. Default: --http-addr."`
	ClusterAdvertise string `help:"HOST:PORT by which the other nodes reach this one. Default: the own entry of --initial-cluster, or --cluster-addr."`

	InitialCluster string `placeholder:"ID=HOST:PORT,…" help:"The nodes of a new cluster with their cluster addresses, the same on all of them. Acts on an empty --data-dir only."`
	TokenFloor     string `default:"auto" placeholder:"auto|N" help:"Every token will be above it: auto is above what any cluster issued before now. Acts on an empty --data-dir only. Default: ${default}."`

	LogStore    string        `enum:"wal,bolt" default:"wal" help:"How the log is kept: wal or bolt."`
	RaftTimeout time.Duration `default:"300ms" help:"How long a leader may be silent before the others elect."`
	LeaderWait  time.Duration `default:"5s" help:"How long a request is held while no leader is known."`

	InsecureHTTP    bool `name:"insecure-http" help:"Let the API listen beyond loopback, without TLS and keys."`
	InsecureCluster bool `help:"Let the cluster port listen beyond loopback, without TLS."`

	LogLevel  string `enum:"debug,info,warn,error" default:"info" help:"debug, info, warn or error."`
	LogFormat string `enum:"text,json" default:"text" help:"text or json, on stderr."`
}

// Validate checks the flags that only the process knows of, and then what the
// node itself has to say. Each message names the flag. It is called by kong.
func (s *Serve) Validate() error {
	if s.NodeID == "" || s.DataDir == "" {
		return nil // kong says that they are missing, after this
	}
	if err := checkListen("--http-addr", s.HTTPAddr, s.InsecureHTTP, "--insecure-http"); err != nil {
		return err
	}
	if err := checkListen("--cluster-addr", s.ClusterAddr, s.InsecureCluster, "--insecure-cluster"); err != nil {
		return err
	}
	if s.RaftTimeout <= 0 {
		return lease.BadRequest("--raft-timeout", "must be from %v to %v, not %v", cluster.MinRaftTimeout, cluster.MaxRaftTimeout, s.RaftTimeout)
	}
	if s.LeaderWait <= 0 {
		return lease.BadRequest("--leader-wait", "must be above 0s and at most %v, not %v", cluster.MaxLeaderWait, s.LeaderWait)
	}
	config, err := s.clusterConfig()
	if err != nil {
		return err
	}
	return config.Validate()
}

// checkListen refuses what is no address, and one beyond loopback unless it is
// asked for: there is neither TLS nor a key that would protect it.
func checkListen(flag, addr string, insecure bool, insecureFlag string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return lease.BadRequest(flag, "must be HOST:PORT, not %q", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return lease.BadRequest(flag, "must have a port from 1 to 65535, not %q", port)
	}
	if !insecure && !isLoopback(host) {
		return lease.BadRequest(flag, "must be on loopback, like 127.0.0.1:%s, and not %q, unless %s is given: this port has no TLS",
			port, addr, insecureFlag)
	}
	return nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// clusterConfig is the part that package cluster is configured by.
func (s *Serve) clusterConfig() (cluster.Config, error) {
	config := cluster.Config{
		NodeID:           s.NodeID,
		DataDir:          s.DataDir,
		ClusterListen:    s.ClusterAddr,
		ClusterAdvertise: s.ClusterAdvertise,
		HTTPAdvertise:    s.HTTPAdvertise,
		InitialCluster:   s.InitialCluster,
		AutoFloor:        s.TokenFloor == "auto",
		LogStore:         cluster.LogStore(s.LogStore),
		RaftTimeout:      s.RaftTimeout,
		LeaderWait:       s.LeaderWait,
		Version:          buildVersion(),
		Now:              time.Now,
	}
	if config.HTTPAdvertise == "" {
		config.HTTPAdvertise = s.HTTPAddr
	}
	if !config.AutoFloor && s.TokenFloor != "0" {
		floor, err := lease.ParseToken("--token-floor", s.TokenFloor)
		if err != nil {
			return config, lease.BadRequest("--token-floor", "must be auto or an integer from 0 to %d, not %q", lease.MaxToken, s.TokenFloor)
		}
		config.TokenFloor = floor
	}
	return config, nil
}

// Run serves until ctx ends or the node must stop. It returns nil only if it
// was asked to stop.
func (s *Serve) Run(ctx context.Context, out *streams) error {
	if s.NodeID == "" {
		return lease.BadRequest("--node-id", "must not be empty")
	}
	if s.DataDir == "" {
		return lease.BadRequest("--data-dir", "must not be empty")
	}
	node, err := s.Start(ctx, out.Err)
	if err != nil {
		return err
	}
	return node.Wait(ctx)
}

// Start opens the ports and the stores, and serves. The cluster need not be
// formed when it returns; the API answers already.
func (s *Serve) Start(ctx context.Context, logs io.Writer) (*Node, error) {
	config, err := s.clusterConfig()
	if err != nil {
		return nil, err
	}
	config.Logger = hclog.New(&hclog.LoggerOptions{
		Name:       s.NodeID,
		Level:      hclog.LevelFromString(s.LogLevel),
		JSONFormat: s.LogFormat == "json",
		Output:     logs,
	})
	listener, err := net.Listen("tcp", s.HTTPAddr)
	if err != nil {
		return nil, fmt.Errorf("--http-addr: %w", err)
	}
	return StartNode(ctx, config, listener)
}
