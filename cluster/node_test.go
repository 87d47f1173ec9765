package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/highwater/highwater/fsm"
	"github.com/highwater/highwater/lease"
)

func TestEveryNodeTakesEveryRequest(t *testing.T) {
	for _, kind := range []LogStore{LogStoreWAL, LogStoreBolt} {
		t.Run(string(kind), func(t *testing.T) {
			c := startCluster(t, 3, func(_ int, c *Config) { c.LogStore = kind })
			ctx := c.context()
			var last lease.Token
			for i, n := range c.running() {
				name := "invoices/" + n.cfg.NodeID
				l, err := n.Acquire(ctx, lease.AcquireRequest{Resource: name, Holder: "h", TTL: time.Minute, Metadata: []byte(`{"a":1}`)})
				if err != nil {
					t.Fatal(err)
				}
				if l.Token <= last || l.Token != lease.Token(i+1) {
					t.Fatalf("token %d after %d", l.Token, last)
				}
				last = l.Token
				if _, err := n.Acquire(ctx, acquire(name, "other", time.Minute)); !errors.Is(err, lease.ErrLeaseHeld) {
					t.Fatalf("a second acquire: %v", err)
				}
				renewed, err := n.Renew(ctx, lease.RenewRequest{Resource: name, Token: l.Token, TTL: 2 * time.Minute})
				if err != nil || renewed.Token != l.Token || renewed.TTL != 2*time.Minute {
					t.Fatalf("renew: %+v, %v", renewed, err)
				}
				// What one node has acknowledged every node sees.
				for _, o := range c.running() {
					got, _, err := o.GetLease(ctx, name, false)
					if err != nil || got.Token != l.Token || string(got.Metadata) != `{"a":1}` {
						t.Fatalf("get through %s: %+v, %v", o.cfg.NodeID, got, err)
					}
					info, _, err := o.GetToken(ctx, l.Token, false)
					if err != nil || info.State != lease.StateCurrent || !slices.Equal(info.Resources, []string{name}) {
						t.Fatalf("token through %s: %+v, %v", o.cfg.NodeID, info, err)
					}
					leases, more, _, err := o.ListLeases(ctx, lease.Page{Prefix: "invoices/", Limit: 1}, false)
					if err != nil || len(leases) != 1 || more != (i > 0) {
						t.Fatalf("list through %s: %+v, %t, %v", o.cfg.NodeID, leases, more, err)
					}
				}
				r, err := n.Next(ctx, lease.NextRequest{Name: "orders", Count: 10})
				if err != nil || r.First != lease.Token(10*i+1) || r.Last != r.First+9 {
					t.Fatalf("next: %+v, %v", r, err)
				}
				s, _, err := n.GetSequence(ctx, "orders", false)
				if err != nil || s.Last != r.Last || !s.Issued {
					t.Fatalf("sequence: %+v, %v", s, err)
				}
				if all, _, _, err := n.ListSequences(ctx, lease.Page{Limit: 10}, false); err != nil || len(all) != 1 {
					t.Fatalf("sequences: %+v, %v", all, err)
				}
			}
			for i, n := range c.running() {
				name := "invoices/" + c.names[(i+1)%3]
				l, _, err := n.GetLease(ctx, name, false)
				if err != nil {
					t.Fatal(err)
				}
				if err := n.Release(ctx, lease.ReleaseRequest{Resource: name, Token: l.Token}); err != nil {
					t.Fatalf("release: %v", err)
				}
				if _, _, err := n.GetLease(ctx, name, false); !errors.Is(err, lease.ErrNotHeld) {
					t.Fatalf("get after release: %v", err)
				}
				if _, err := n.Renew(ctx, lease.RenewRequest{Resource: name, Token: l.Token}); !errors.Is(err, lease.ErrLeaseLost) {
					t.Fatalf("renew after release: %v", err)
				}
				if _, err := n.Renew(ctx, lease.RenewRequest{Resource: name, Token: 4000}); !errors.Is(err, lease.ErrTokenUnknown) {
					t.Fatalf("renew of a token from the future: %v", err)
				}
			}
		})
	}
}

func TestBadRequestsNeverReachTheLog(t *testing.T) {
	c := startCluster(t, 1, nil)
	n := c.leader()
	before := n.machine.Info().Index
	ctx := c.context()
	_, err1 := n.Acquire(ctx, acquire("a//b", "h", time.Minute))
	_, err2 := n.Renew(ctx, lease.RenewRequest{Resource: "a"})
	err3 := n.Release(ctx, lease.ReleaseRequest{Resource: "a"})
	_, err4 := n.Next(ctx, lease.NextRequest{Name: "a"})
	_, _, err5 := n.GetLease(ctx, "", false)
	_, _, _, err6 := n.ListLeases(ctx, lease.Page{}, false)
	_, _, err7 := n.GetToken(ctx, 0, false)
	for i, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
		if !errors.Is(err, lease.ErrBadRequest) {
			t.Errorf("request %d: %v", i+1, err)
		}
	}
	if after := n.machine.Info().Index; after != before {
		t.Errorf("entries %d to %d were written", before+1, after)
	}
}

func TestAutomaticFloor(t *testing.T) {
	clock := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	c := startCluster(t, 3, func(i int, c *Config) {
		c.AutoFloor = true
		// Within a minute of each other.
		c.Now = func() time.Time { return clock.Add(time.Duration(i) * 20 * time.Second) }
	})
	n := c.leader()
	// Held until grants start, one second after the floor.
	l := c.mustAcquire(c.follower(), "a", time.Minute)
	floor := n.Status().Floor
	if low, high := lease.AutoFloor(clock.Unix()), lease.AutoFloor(clock.Unix()+40); floor < low || floor > high || l.Token != floor+1 {
		t.Errorf("floor %d, token %d; want %d to %d and one more", floor, l.Token, low, high)
	}
	if info := n.machine.Info(); info.GrantsFrom < 1000 || info.Now < info.GrantsFrom {
		t.Errorf("granted at %d ms, and grants start at %d ms", info.Now, info.GrantsFrom)
	}
}

// Clocks that were right when the cluster was formed are not any more when the
// first leader reads the floor: it waits for them to be set, and so do requests.
func TestNoFloorFromAWrongClock(t *testing.T) {
	right := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	var wrong, mend atomic.Bool
	c := openCluster(t, 3, func(i int, c *Config) {
		c.AutoFloor = true
		c.Now = func() time.Time {
			if i == 0 || !wrong.Load() || mend.Load() {
				return right
			}
			return right.Add(time.Duration(i) * time.Hour)
		}
		c.hooks.committed = func() { wrong.CompareAndSwap(false, true) } // the lead entry
	})
	var asked *Node
	c.eventually("a node lacks nothing but the floor", func() bool {
		for _, n := range c.running() {
			if err := n.Ready(); err != nil && strings.Contains(err.Error(), "no token floor") {
				asked = n
			}
		}
		return asked != nil
	})
	granted := make(chan error, 1)
	go func() {
		_, err := asked.Acquire(c.context(), acquire("a", "h", time.Minute))
		granted <- err
	}()
	c.eventually("the leader holds the request", func() bool {
		for _, n := range c.running() {
			if e := n.epoch.Load(); e != nil {
				e.mu.Lock()
				held := len(e.held)
				e.mu.Unlock()
				return held == 1
			}
		}
		return false
	})
	for _, n := range c.running() {
		if n.machine.Info().FloorSet {
			t.Fatal("a floor from clocks that disagree")
		}
	}
	mend.Store(true)
	if err := <-granted; err != nil {
		t.Error(err)
	}
	c.waitReady(c.names...)
}

// The floor is not read from a clock that was never set, nor beyond the last
// token.
func TestChooseFloor(t *testing.T) {
	n := &Node{cfg: Config{AutoFloor: true}, ctx: context.Background()}
	for _, wrong := range []time.Time{time.Unix(0, 0), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)} {
		n.cfg.Now = func() time.Time { return wrong }
		if floor, err := n.chooseFloor(); err == nil || !strings.HasPrefix(err.Error(), "--token-floor") {
			t.Errorf("at %v: %+v, %v", wrong, floor, err)
		}
	}
	n.cfg.AutoFloor, n.cfg.TokenFloor = false, 41
	if floor, err := n.chooseFloor(); err != nil || floor != (fsm.SetFloor{Floor: 41}) {
		t.Errorf("%+v, %v", floor, err)
	}
}

func TestRestartOfAll(t *testing.T) {
	for _, kind := range []LogStore{LogStoreWAL, LogStoreBolt} {
		t.Run(string(kind), func(t *testing.T) {
			c := startCluster(t, 3, func(_ int, c *Config) { c.LogStore = kind; c.TokenFloor = 41 })
			before := c.mustAcquire(c.follower(), "a", time.Minute)
			c.stopAll()
			for _, name := range c.names {
				c.start(name)
			}
			c.waitReady(c.names...)
			after, _, err := c.follower().GetLease(c.context(), "a", false)
			if err != nil || after.Token != before.Token || after.Remaining > before.TTL || after.Remaining < 0 {
				t.Fatalf("%+v became %+v, %v", before, after, err)
			}
			if next := c.mustAcquire(c.leader(), "b", time.Minute); next.Token != before.Token+1 {
				t.Errorf("token %d after %d", next.Token, before.Token)
			}
			if s := c.leader().Status(); s.Floor != 41 {
				t.Errorf("floor %d", s.Floor)
			}
		})
	}
}

// A restarted node takes a snapshot from the leader, and snapshots are taken by
// bytes too.
func TestSnapshots(t *testing.T) {
	for _, kind := range []LogStore{LogStoreWAL, LogStoreBolt} {
		t.Run(string(kind), func(t *testing.T) {
			c := startCluster(t, 3, func(_ int, c *Config) { c.LogStore = kind })
			down := c.follower().cfg.NodeID
			c.kill(down)
			c.mustAcquire(c.leader(), "a", time.Hour)
			for _, n := range c.running() {
				r := n.raft.Load()
				reload := r.ReloadableConfig()
				reload.TrailingLogs = 0
				if err := r.ReloadConfig(reload); err != nil {
					t.Fatal(err)
				}
				n.unsaved.Store(snapshotBytes)
			}
			last := c.mustAcquire(c.leader(), "b", time.Hour)
			c.eventually("snapshots", func() bool {
				for _, n := range c.running() {
					list, err := n.stores.snapshots.List()
					if err != nil || len(list) == 0 {
						return false
					}
				}
				return true
			})
			c.mustAcquire(c.leader(), "c", time.Hour)
			c.start(down)
			c.waitReady(c.names...)
			c.eventually("the node has caught up", func() bool {
				l, age, err := c.node(down).GetLease(c.context(), "b", true)
				return err == nil && l.Token == last.Token && age < longStop
			})
		})
	}
}

func TestCloseHandsOver(t *testing.T) {
	c := startCluster(t, 3, func(_ int, c *Config) {
		c.RaftTimeout = 2 * time.Second // an election without a handover takes this long
	})
	old := c.leader()
	name := old.cfg.NodeID
	held := c.mustAcquire(old, "a", time.Minute)
	c.eventually("the others answer", func() bool { _, ok := old.successor(); return ok })
	if err := old.Close(c.context()); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(c.context()); err != nil {
		t.Fatal("closed again:", err)
	}
	c.mu.Lock()
	delete(c.nodes, name)
	c.mu.Unlock()
	if !slices.ContainsFunc(c.running(), func(n *Node) bool { return n.raft.Load().State() == raft.Leader }) {
		t.Error("the node was closed before another one led")
	}
	fresh := c.leader()
	if got, _, err := fresh.GetLease(c.context(), "a", false); err != nil || got.Token != held.Token {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := old.Acquire(c.context(), acquire("b", "h", time.Minute)); !errors.Is(err, lease.ErrNoLeader) || applied(err) != lease.AppliedNo {
		t.Errorf("a closed node: %v", err)
	}
}

func TestTransferLeadership(t *testing.T) {
	c := startCluster(t, 3, nil)
	if err := c.follower().TransferLeadership(c.context()); err == nil {
		t.Error("a node that does not lead handed the leadership over")
	}
	old := c.leader()
	if err := old.TransferLeadership(c.context()); err != nil {
		t.Fatal(err)
	}
	if node, leader := old.Names(); node == leader || leader == "" {
		t.Errorf("%s knows %q as the leader", node, leader)
	}
}

// An entry that this binary does not know stops every node, with a message.
func TestUnknownEntryStopsTheNode(t *testing.T) {
	c := startCluster(t, 3, nil)
	c.leader().raft.Load().Apply([]byte{99, 1}, time.Second)
	for _, n := range c.running() {
		select {
		case <-n.Done():
			if n.Err() == nil {
				t.Errorf("%s does not say why", n.cfg.NodeID)
			}
		case <-time.After(longStop):
			t.Errorf("%s goes on", n.cfg.NodeID)
		}
		if n.Ready() == nil {
			t.Errorf("%s is ready", n.cfg.NodeID)
		}
		if _, err := n.Acquire(c.context(), acquire("a", "h", time.Minute)); err == nil {
			t.Errorf("%s grants", n.cfg.NodeID)
		}
	}
}

func TestStatusOfEveryNode(t *testing.T) {
	c := startCluster(t, 3, nil)
	c.mustAcquire(c.follower(), "a", time.Minute)
	for _, n := range c.running() {
		c.eventually("all are healthy in the status of "+n.cfg.NodeID, func() bool {
			s := n.Status()
			leaders := 0
			for _, m := range s.Nodes {
				if !m.Healthy || m.HTTPAddr == "" || m.ClusterAddr == "" || m.Version != "test" || m.LastContact < 0 {
					return false
				}
				if m.Role == RoleLeader {
					leaders++
				}
			}
			return len(s.Nodes) == 3 && leaders == 1 && s.ClusterID != "" && s.Leader != "" && s.Term > 0 &&
				s.CommitIndex > 0 && s.LastToken == 1 && s.FeatureLevel == FeatureLevel
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	good := Config{NodeID: "n1", DataDir: t.TempDir(), ClusterListen: "127.0.0.1:8401"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for flag, change := range map[string]func(*Config){
		"--node-id":           func(c *Config) { c.NodeID = "a.b" },
		"--data-dir":          func(c *Config) { c.DataDir = "" },
		"--log-store":         func(c *Config) { c.LogStore = "x" },
		"--raft-timeout":      func(c *Config) { c.RaftTimeout = time.Microsecond },
		"--leader-wait":       func(c *Config) { c.LeaderWait = -1 },
		"--token-floor":       func(c *Config) { c.TokenFloor = lease.MaxToken + 1 },
		"--initial-cluster":   func(c *Config) { c.InitialCluster = "n1" },
		"--cluster-advertise": func(c *Config) { c.ClusterListen = "0.0.0.0:8401" }, // C46
		"--http-advertise": func(c *Config) { // C46
			c.InitialCluster, c.HTTPAdvertise = "n1=10.0.0.1:1,n2=10.0.0.2:1", "127.0.0.1:8400"
		},
	} {
		c := good
		change(&c)
		err := c.Validate()
		if err == nil || err.Error()[:min(len(flag), len(err.Error()))] != flag {
			t.Errorf("%s: %v", flag, err)
		}
		if n, err := Open(context.Background(), c); err == nil {
			t.Errorf("%s: opened", flag)
			n.Close(context.Background())
		}
	}
}
