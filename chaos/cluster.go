//go:build unix

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ClusterConfig says which processes make a cluster.
type ClusterConfig struct {
	// Binary is the path of the highwater program.
	Binary string
	// Dir holds data directories and logs: n1, n1.log and so on.
	Dir string
	// Nodes is how many there are; zero means three.
	Nodes int
	// LogStore is wal or bolt; empty leaves the choice to the program.
	LogStore string
	// TokenFloor is auto or a number; empty leaves the choice to the program.
	TokenFloor string
	// Args are further flags of every node.
	Args []string
}

// Cluster is a set of `serve` processes on loopback that belong to it alone.
// Nodes are numbered from 0; node i has the ID n(i+1). Signals go to its own
// processes only, by process ID, and never after they were waited for.
type Cluster struct {
	config ClusterConfig
	nodes  []*node
	http   *http.Client
}

// node is one member's place: its addresses and its directory outlive its
// processes.
type node struct {
	id, httpAddr, clusterAddr string
	dataDir, logPath          string

	mu      sync.Mutex
	process *Process // nil when none runs
}

// NewCluster takes ports and directories, and starts nothing.
func NewCluster(config ClusterConfig) (*Cluster, error) {
	if config.Nodes == 0 {
		config.Nodes = 3
	}
	c := &Cluster{config: config, http: &http.Client{Timeout: 5 * time.Second}}
	ports, err := freePorts(2 * config.Nodes)
	if err != nil {
		return nil, err
	}
	for i := range config.Nodes {
		id := fmt.Sprintf("n%d", i+1)
		c.nodes = append(c.nodes, &node{
			id:          id,
			httpAddr:    fmt.Sprintf("127.0.0.1:%d", ports[2*i]),
			clusterAddr: fmt.Sprintf("127.0.0.1:%d", ports[2*i+1]),
			dataDir:     filepath.Join(config.Dir, id),
			logPath:     filepath.Join(config.Dir, id+".log"),
		})
	}
	return c, nil
}

// freePorts finds ports below those that the system gives to outgoing
// connections, or one of these could take the port of a node that is down.
func freePorts(n int) ([]int, error) {
	const lowest, highest, tries = 18_000, 30_000, 1_000
	var ports []int
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	for range tries {
		port := lowest + rand.IntN(highest-lowest)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		held = append(held, l)
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("found %d of %d free ports from %d to %d", len(ports), n, lowest, highest)
}

// Size is the number of nodes.
func (c *Cluster) Size() int { return len(c.nodes) }

// Endpoint is the base URL of a node's API.
func (c *Cluster) Endpoint(i int) string { return "http://" + c.nodes[i].httpAddr }

// Addr is the host and port of a node's API.
func (c *Cluster) Addr(i int) string { return c.nodes[i].httpAddr }

// Endpoints are the base URLs of all nodes' APIs.
func (c *Cluster) Endpoints() []string {
	var all []string
	for i := range c.nodes {
		all = append(all, c.Endpoint(i))
	}
	return all
}

// DataDir is a node's data directory.
func (c *Cluster) DataDir(i int) string { return c.nodes[i].dataDir }

// args are the flags of a node's serve.
func (c *Cluster) args(i int) []string {
	n := c.nodes[i]
	var members []string
	for _, m := range c.nodes {
		members = append(members, m.id+"="+m.clusterAddr)
	}
	args := []string{
		"serve", "--node-id", n.id, "--data-dir", n.dataDir,
		"--http-addr", n.httpAddr, "--cluster-addr", n.clusterAddr,
		"--initial-cluster", strings.Join(members, ","),
	}
	if c.config.LogStore != "" {
		args = append(args, "--log-store", c.config.LogStore)
	}
	if c.config.TokenFloor != "" {
		args = append(args, "--token-floor", c.config.TokenFloor)
	}
	return append(args, c.config.Args...)
}

// Start runs a node's process. It does not wait until the node is ready.
func (c *Cluster) Start(i int) error {
	n := c.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil && n.process.Running() {
		return fmt.Errorf("%s runs already, as process %d", n.id, n.process.Pid())
	}
	p, err := StartProcess(c.config.Binary, n.logPath, c.args(i)...)
	if err != nil {
		return fmt.Errorf("starting %s: %w", n.id, err)
	}
	n.process = p
	return nil
}

// StartAll runs every node's process.
func (c *Cluster) StartAll() error {
	for i := range c.nodes {
		if err := c.Start(i); err != nil {
			return err
		}
	}
	return nil
}

// Process is the process that a node runs or ran last, or nil.
func (c *Cluster) Process(i int) *Process {
	n := c.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

// Kill ends a node's process as a power cut would, and returns when it is gone.
func (c *Cluster) Kill(i int) error {
	p := c.Process(i)
	if p == nil {
		return nil
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.Done()
	return nil
}

// Pause stops a node's process where it is (SIGSTOP): its connections stay
// open and its clocks go on.
func (c *Cluster) Pause(i int) error { return c.signal(i, syscall.SIGSTOP) }

// Resume lets a paused process go on (SIGCONT).
func (c *Cluster) Resume(i int) error { return c.signal(i, syscall.SIGCONT) }

func (c *Cluster) signal(i int, s syscall.Signal) error {
	p := c.Process(i)
	if p == nil {
		return fmt.Errorf("%s was never started", c.nodes[i].id)
	}
	return p.Signal(s)
}

// Stop asks a node's process to end (SIGTERM) and returns its exit code. A
// process that does not end in time is killed and is an error.
func (c *Cluster) Stop(ctx context.Context, i int) (int, error) {
	if err := c.signal(i, syscall.SIGTERM); err != nil {
		return 0, err
	}
	p := c.Process(i)
	select {
	case <-p.Done():
		return p.ExitCode(), nil
	case <-ctx.Done():
		return 0, errors.Join(fmt.Errorf("%s does not end on SIGTERM", c.nodes[i].id), c.Kill(i))
	}
}

// Wipe removes the data directory of a node that does not run.
func (c *Cluster) Wipe(i int) error {
	if p := c.Process(i); p != nil && p.Running() {
		return fmt.Errorf("%s still runs", c.nodes[i].id)
	}
	return os.RemoveAll(c.nodes[i].dataDir)
}

// Close kills what still runs.
func (c *Cluster) Close() error {
	var all error
	for i := range c.nodes {
		all = errors.Join(all, c.Kill(i))
	}
	c.http.CloseIdleConnections()
	return all
}

// View is what GET /v1/cluster answers, as far as chaos needs it.
type View struct {
	ClusterID    string `json:"cluster_id"`
	Node         string `json:"node"`
	Leader       string `json:"leader"`
	Term         uint64 `json:"term"`
	CommitIndex  uint64 `json:"commit_index"`
	AppliedIndex uint64 `json:"applied_index"`
	Digest       string `json:"digest"`
	LastToken    int64  `json:"last_token"`
	Floor        int64  `json:"floor"`
	Nodes        []struct {
		ID      string `json:"id"`
		Role    string `json:"role"`
		Healthy bool   `json:"healthy"`
	} `json:"nodes"`
}

// View asks one node how it sees the cluster.
func (c *Cluster) View(ctx context.Context, i int) (View, error) {
	var v View
	body, status, err := c.get(ctx, c.Endpoint(i)+"/v1/cluster")
	if err != nil {
		return v, err
	}
	if status != http.StatusOK {
		return v, fmt.Errorf("/v1/cluster of %s: status %d: %s", c.nodes[i].id, status, body)
	}
	return v, json.Unmarshal(body, &v)
}

// Ready says whether a node calls itself ready; if not, the error says why.
func (c *Cluster) Ready(ctx context.Context, i int) error { return c.probe(ctx, i, "/readyz") }

// Live says whether a node's process answers at all.
func (c *Cluster) Live(ctx context.Context, i int) error { return c.probe(ctx, i, "/livez") }

func (c *Cluster) probe(ctx context.Context, i int, path string) error {
	body, status, err := c.get(ctx, c.Endpoint(i)+path)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("%s of %s: status %d: %s", path, c.nodes[i].id, status, bytes.TrimSpace(body))
	}
	return nil
}

func (c *Cluster) get(ctx context.Context, target string) ([]byte, int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, 0, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return body, resp.StatusCode, err
}

// Leader is the running node that calls itself the leader in the largest term,
// or -1: for a while after it was replaced, an old leader may still think so.
func (c *Cluster) Leader(ctx context.Context) int {
	leader, term := -1, uint64(0)
	for i, n := range c.nodes {
		p := c.Process(i)
		if p == nil || !p.Running() || p.Paused() {
			continue
		}
		if v, err := c.View(ctx, i); err == nil && v.Leader == n.id && v.Term > term {
			leader, term = i, v.Term
		}
	}
	return leader
}

// Log is what a node's processes have printed so far.
func (c *Cluster) Log(i int) string {
	b, err := os.ReadFile(c.nodes[i].logPath)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
