package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/highwater/highwater/client"
	"github.com/highwater/highwater/lease"
)

// process is a highwater process: this test binary, called by that name.
type process struct {
	cmd    *exec.Cmd
	output *output
	ended  chan struct{} // closed when it has
}

// output is what a process wrote; it can be read while the process runs.
type output struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes.String()
}

// command is the path of a binary called highwater.
func command(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "highwater")
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	return link
}

// start runs a command line until it ends or the test does.
func start(t *testing.T, highwater string, args ...string) *process {
	t.Helper()
	return startIn(t, "", highwater, args...)
}

// startIn is start in a directory.
func startIn(t *testing.T, dir, highwater string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(highwater, args...), output: new(output), ended: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s\n%s", strings.Join(args, " "), p.output)
		}
	})
	return p
}

// wait returns the exit code, -1 for a signal.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		t.Fatal("the process does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// nodes is a cluster of serve processes to be.
type nodes struct {
	highwater string
	dir       string
	http      [3]string
	cluster   [3]string
	running   [3]*process
	flags     []string
}

func newNodes(t *testing.T, flags ...string) *nodes {
	t.Helper()
	n := &nodes{highwater: command(t), dir: t.TempDir(), flags: flags}
	for i := range n.http {
		n.http[i], n.cluster[i] = freeAddr(t), freeAddr(t)
	}
	return n
}

// lastPort is the last port that freeAddr gave away. It begins anywhere in a
// range below the ports that the system gives to outgoing connections.
var lastPort atomic.Int32

func init() { lastPort.Store(13_000 + rand.Int32N(4_000)) }

// freeAddr is an address that was free a moment ago, and is never given twice.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 1000 {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", lastPort.Add(1)))
		if err == nil {
			defer listener.Close()
			return listener.Addr().String()
		}
	}
	t.Fatal("no free port")
	return ""
}

func (n *nodes) args(i int) []string {
	return append([]string{
		"serve", "--node-id", nodeID(i), "--data-dir", filepath.Join(n.dir, nodeID(i)),
		"--http-addr", n.http[i], "--cluster-addr", n.cluster[i], "--log-level", "warn",
		"--initial-cluster", fmt.Sprintf("n1=%s,n2=%s,n3=%s", n.cluster[0], n.cluster[1], n.cluster[2]),
	}, n.flags...)
}

func nodeID(i int) string { return fmt.Sprintf("n%d", i+1) }

func (n *nodes) start(t *testing.T, i int) {
	t.Helper()
	n.running[i] = start(t, n.highwater, n.args(i)...)
}

// client asks node i alone.
func (n *nodes) client(t *testing.T, i int) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Endpoints: []string{"http://" + n.http[i]}, OneAttempt: true})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (n *nodes) ready(t *testing.T, all ...int) {
	t.Helper()
	for _, i := range all {
		eventually(t, nodeID(i)+" is ready", n.client(t, i).Ready)
	}
}

// leader is the number of the node that node i takes for the leader.
func (n *nodes) leader(t *testing.T, i int) int {
	t.Helper()
	cluster, err := n.client(t, i).Cluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for l := range n.http {
		if nodeID(l) == cluster.Leader {
			return l
		}
	}
	t.Fatalf("%s knows no leader", nodeID(i))
	return -1
}

// TestServeInAnyOrder: three empty nodes, the last one started when the others
// have been waiting for it, make one cluster (C41), and come back after all
// were killed.
func TestServeInAnyOrder(t *testing.T) {
	n := newNodes(t)
	n.start(t, 2)
	n.start(t, 0)
	// The API is up before there is a cluster, and says so.
	for _, i := range []int{0, 2} {
		eventually(t, nodeID(i)+" answers", func(ctx context.Context) error {
			cluster, err := n.client(t, i).Cluster(ctx)
			if err == nil && (cluster.Leader != "" || cluster.Node != nodeID(i)) {
				t.Errorf("%s says %+v before there can be a cluster", nodeID(i), cluster)
			}
			return err
		})
		if err := n.client(t, i).Ready(t.Context()); !errors.Is(err, lease.ErrNoLeader) {
			t.Errorf("%s: ready = %v, want no-leader", nodeID(i), err)
		}
	}
	n.start(t, 1)
	n.ready(t, 0, 1, 2)

	ids := map[string]bool{}
	for i := range n.http {
		cluster, err := n.client(t, i).Cluster(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ids[cluster.ClusterID] = true
	}
	if len(ids) != 1 || ids[""] {
		t.Errorf("cluster IDs %v, want one", ids)
	}
	before, err := n.client(t, 0).Acquire(t.Context(), lease.AcquireRequest{Resource: "a", Holder: "A", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}

	for _, p := range n.running {
		p.signal(t, syscall.SIGKILL)
		p.wait(t)
	}
	for i := range n.running {
		n.start(t, i)
	}
	n.ready(t, 0, 1, 2)
	held, err := n.client(t, 1).Get(t.Context(), "a")
	if err != nil || held.Token != before.Token {
		t.Errorf("after the restart: %+v, %v; want token %d", held, err, before.Token)
	}
	after, err := n.client(t, 2).Acquire(t.Context(), lease.AcquireRequest{Resource: "b", Holder: "B", TTL: time.Minute})
	if err != nil || after.Token <= before.Token {
		t.Errorf("after the restart: token %d, %v; want one above %d", after.Token, err, before.Token)
	}
}

// TestKillLeader: kill -9 of the leader straight after a grant (C06). The grant
// is there after the election, with the same token.
func TestKillLeader(t *testing.T) {
	n := newNodes(t)
	for i := range n.http {
		n.start(t, i)
	}
	n.ready(t, 0, 1, 2)
	leader := n.leader(t, 0)
	granted, err := n.client(t, leader).Acquire(t.Context(), lease.AcquireRequest{Resource: "a", Holder: "A", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	n.running[leader].signal(t, syscall.SIGKILL)
	n.running[leader].wait(t)

	other := (leader + 1) % 3
	held, err := n.client(t, other).Get(t.Context(), "a")
	if err != nil || held.Token != granted.Token {
		t.Errorf("after the election: %+v, %v; want token %d", held, err, granted.Token)
	}
	if _, err := n.client(t, other).Acquire(t.Context(), lease.AcquireRequest{Resource: "a", Holder: "B"}); !errors.Is(err, lease.ErrLeaseHeld) {
		t.Errorf("acquired by another: %v, want lease-held", err)
	}
}

// TestTerminateHandsOver: SIGTERM to the leader hands leadership over before it
// ends, with exit code 0. Followers wait longer for a silent leader than a
// request waits for a new one, so a request that is answered right after shows
// that nobody waited for an election.
func TestTerminateHandsOver(t *testing.T) {
	n := newNodes(t, "--raft-timeout", "4s", "--leader-wait", "1s")
	for i := range n.http {
		n.start(t, i)
	}
	n.ready(t, 0, 1, 2)
	leader := n.leader(t, 0)
	other := (leader + 1) % 3
	eventually(t, "the followers have what the leader has", func(ctx context.Context) error {
		cluster, err := n.client(t, leader).Cluster(ctx)
		if err != nil {
			return err
		}
		for _, node := range cluster.Nodes {
			if !node.Healthy || node.Lag > 0 {
				return fmt.Errorf("%+v", node)
			}
		}
		return nil
	})
	n.running[leader].signal(t, syscall.SIGTERM)
	if code := n.running[leader].wait(t); code != exitDone {
		t.Errorf("exit code %d, want %d", code, exitDone)
	}
	if _, err := n.client(t, other).Acquire(t.Context(), lease.AcquireRequest{Resource: "a", Holder: "A"}); err != nil {
		t.Errorf("after the hand-over: %v", err)
	}
	if l := n.leader(t, other); l == leader {
		t.Errorf("%s still takes %s for the leader", nodeID(other), nodeID(l))
	}
}

// TestSecondProcess: a second process on the same data directory is refused,
// with the path (C47), and the first goes on.
func TestSecondProcess(t *testing.T) {
	n := newNodes(t)
	n.start(t, 0)
	eventually(t, "n1 answers", func(ctx context.Context) error {
		_, err := n.client(t, 0).Cluster(ctx)
		return err
	})
	args := n.args(0)
	second := start(t, n.highwater, append(args, "--http-addr", freeAddr(t), "--cluster-addr", freeAddr(t))...)
	if code := second.wait(t); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	if dir := filepath.Join(n.dir, "n1"); !strings.Contains(second.output.String(), dir) {
		t.Errorf("the path %s is not named", dir)
	}
	if _, err := n.client(t, 0).Cluster(t.Context()); err != nil {
		t.Errorf("the first one: %v", err)
	}
}

// TestBusyPorts: a port in use is named, with the flag that changes it.
func TestBusyPorts(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	addr := busy.Addr().String()
	port := busy.Addr().(*net.TCPAddr).Port
	for _, test := range []struct {
		args []string
		says []string
	}{
		{[]string{"serve", "--node-id", "n1", "--data-dir", t.TempDir(), "--http-addr", addr, "--cluster-addr", freeAddr(t)}, []string{"--http-addr", addr}},
		{[]string{"serve", "--node-id", "n1", "--data-dir", t.TempDir(), "--http-addr", freeAddr(t), "--cluster-addr", addr}, []string{"--cluster-addr", addr}},
		{[]string{"dev", "--port", fmt.Sprint(port)}, []string{"--port", fmt.Sprint(port)}},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), test.args, &stdout, &stderr); code != exitFailed {
			t.Errorf("%v: exit code %d, want %d", test.args, code, exitFailed)
		}
		last := strings.TrimSpace(stderr.String())
		last = last[strings.LastIndex(last, "\n")+1:]
		for _, says := range test.says {
			if !strings.Contains(last, says) {
				t.Errorf("%v: it says %q, want %q in it", test.args[0], last, says)
			}
		}
	}
}
