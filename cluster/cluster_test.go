package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/highwater/highwater/lease"
)

var verbose = flag.Bool("nodelog", false, "print what nodes log")

// testCluster is a whole cluster in this process, over TCP on loopback.
type testCluster struct {
	testing.TB
	net     *faultNet
	configs []Config
	names   []string

	mu    sync.Mutex
	nodes map[string]*Node // those that run
}

// startCluster starts n nodes and waits until they are ready. At the end of the
// test it heals the network and checks what must hold after every fault.
func startCluster(t testing.TB, n int, change func(i int, c *Config)) *testCluster {
	t.Helper()
	c := openCluster(t, n, change)
	c.waitReady(c.names...)
	return c
}

// openCluster is startCluster without the waiting.
func openCluster(t testing.TB, n int, change func(i int, c *Config)) *testCluster {
	t.Helper()
	c := &testCluster{TB: t, net: newFaultNet(t), nodes: make(map[string]*Node)}
	dir := t.TempDir()
	var listed []string
	for i := range n {
		name := fmt.Sprintf("n%d", i+1)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		c.net.register(name, addr)
		c.names = append(c.names, name)
		listed = append(listed, name+"="+addr)
		level := hclog.Off
		if *verbose {
			level = hclog.Debug
		}
		c.configs = append(c.configs, Config{
			NodeID:           name,
			DataDir:          filepath.Join(dir, name),
			ClusterListener:  l,
			ClusterListen:    addr,
			ClusterAdvertise: addr,
			HTTPAdvertise:    fmt.Sprintf("127.0.0.1:%d", 8400+10*i),
			LogStore:         LogStore(os.Getenv("HIGHWATER_LOG_STORE")), // as the binary reads it; empty: wal
			Version:          "test",
			Dial:             c.net.dial(name),
			Logger:           hclog.New(&hclog.LoggerOptions{Name: name, Level: level, Output: os.Stderr}),
		})
	}
	for i := range c.configs {
		c.configs[i].InitialCluster = strings.Join(listed, ",")
		if change != nil {
			change(i, &c.configs[i])
		}
	}
	t.Cleanup(func() {
		c.net.healAll()
		if !t.Failed() {
			c.check()
		}
		c.stopAll()
	})
	for _, name := range c.names {
		c.start(name)
	}
	return c
}

func (c *testCluster) config(name string) *Config {
	for i := range c.configs {
		if c.configs[i].NodeID == name {
			return &c.configs[i]
		}
	}
	c.Fatalf("no node %s", name)
	return nil
}

// start starts a node that does not run.
func (c *testCluster) start(name string) *Node {
	c.Helper()
	config := c.config(name)
	n, err := Open(context.Background(), *config)
	if err != nil {
		c.Fatalf("open %s: %v", name, err)
	}
	config.ClusterListener = nil // the next start listens on the same address
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[name] = n
	return n
}

func (c *testCluster) node(name string) *Node {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil {
		c.Fatalf("node %s does not run", name)
	}
	return n
}

func (c *testCluster) running() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	var nodes []*Node
	for _, name := range c.names {
		if n := c.nodes[name]; n != nil {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// others are the names of all nodes but one.
func (c *testCluster) others(name string) (others []string) {
	for _, o := range c.names {
		if o != name {
			others = append(others, o)
		}
	}
	return others
}

// kill ends a node as kill -9 does, as far as that is possible in one process:
// nothing is handed over, and every connection breaks.
func (c *testCluster) kill(name string) {
	c.Helper()
	n := c.node(name)
	c.mu.Lock()
	delete(c.nodes, name)
	c.mu.Unlock()
	n.closeOnce.Do(func() { n.closeErr = n.stop(context.Background()) })
	if n.closeErr != nil {
		c.Errorf("stop %s: %v", name, n.closeErr)
	}
}

func (c *testCluster) stopAll() {
	var stopping sync.WaitGroup
	for _, n := range c.running() {
		stopping.Go(func() { c.kill(n.cfg.NodeID) })
	}
	stopping.Wait()
}

// leader waits until a node leads and says so itself, and all that run and can
// be ready know it.
func (c *testCluster) leader() *Node {
	c.Helper()
	var leads *Node
	c.eventually("a leader", func() bool {
		for _, n := range c.running() {
			if l := n.leader.Load(); l.self && n.Ready() == nil {
				leads = n
				return true
			}
		}
		return false
	})
	return leads
}

// follower is a running node that is ready and does not lead.
func (c *testCluster) follower() *Node {
	c.Helper()
	var follows *Node
	c.eventually("a follower", func() bool {
		for _, n := range c.running() {
			if l := n.leader.Load(); l.known() && !l.self && n.Ready() == nil {
				follows = n
				return true
			}
		}
		return false
	})
	return follows
}

func (c *testCluster) waitReady(names ...string) {
	c.Helper()
	for _, name := range names {
		n := c.node(name)
		c.eventually(name+" is ready", func() bool {
			if err := n.Err(); err != nil {
				c.Fatalf("%s: %v", name, err)
			}
			return n.Ready() == nil
		})
	}
}

// eventually waits for a condition that has no event.
func (c *testCluster) eventually(what string, ok func() bool) {
	c.Helper()
	eventually(c, what, ok)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(longStop)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", longStop, what)
		}
		<-look.C
	}
}

// check is what must hold after every fault: all nodes that run come to the
// same state, byte for byte as far as the digest tells.
func (c *testCluster) check() {
	nodes := c.running()
	if len(nodes) <= len(c.names)/2 {
		return
	}
	for _, n := range nodes {
		if n.Err() != nil {
			return
		}
	}
	c.eventually("all nodes are in the same state", func() bool {
		first := nodes[0].machine.Info()
		for _, n := range nodes[1:] {
			info := n.machine.Info()
			if info.Index == first.Index && info != first {
				c.Errorf("at entry %d %s has %+v and %s has %+v", info.Index, nodes[0].cfg.NodeID, first, n.cfg.NodeID, info)
				return true
			}
			if info.Index != first.Index {
				return false
			}
		}
		return true
	})
}

func (c *testCluster) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), longStop)
	c.Cleanup(cancel)
	return ctx
}

func acquire(resource, holder string, ttl time.Duration) lease.AcquireRequest {
	return lease.AcquireRequest{Resource: resource, Holder: holder, TTL: ttl}
}

// mustAcquire acquires through a node.
func (c *testCluster) mustAcquire(n *Node, resource string, ttl time.Duration) lease.Lease {
	c.Helper()
	l, err := n.Acquire(c.context(), acquire(resource, n.cfg.NodeID, ttl))
	if err != nil {
		c.Fatalf("acquire %s through %s: %v", resource, n.cfg.NodeID, err)
	}
	return l
}

func applied(err error) lease.Applied {
	var e *lease.Error
	if errors.As(err, &e) {
		return e.Applied
	}
	return ""
}
