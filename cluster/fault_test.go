package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/highwater/highwater/fsm"
	"github.com/highwater/highwater/lease"
)

// isolate cuts a node off, and waits until the others have another leader.
func (c *testCluster) isolate(name string) *Node {
	c.Helper()
	c.net.isolate(name, c.others(name)...)
	return c.otherLeader(name)
}

// otherLeader waits until another node than the named one leads.
func (c *testCluster) otherLeader(name string) *Node {
	c.Helper()
	var leads *Node
	c.eventually("another leader than "+name, func() bool {
		for _, n := range c.running() {
			if l := n.leader.Load(); n.cfg.NodeID != name && l.self && n.Ready() == nil {
				leads = n
				return true
			}
		}
		return false
	})
	return leads
}

// A leader is killed while 32 clients acquire one name (C03): one grant, and the
// others are told so, or that they cannot know.
func TestC03AcquireWhileTheLeaderIsKilled(t *testing.T) {
	c := startCluster(t, 3, nil)
	leader := c.leader()
	entered := make(chan struct{})
	var granted, held, unknown, started atomic.Int32
	var clients sync.WaitGroup
	ctx := c.context()
	nodes := c.running()
	for i := range 32 {
		n := nodes[i%len(nodes)]
		clients.Go(func() {
			if started.Add(1) == 16 {
				close(entered)
			}
			_, err := n.Acquire(ctx, acquire("a", fmt.Sprint(i), time.Minute))
			switch {
			case err == nil:
				granted.Add(1)
			case errors.Is(err, lease.ErrLeaseHeld):
				held.Add(1)
			case errors.Is(err, lease.ErrOutcomeUnknown), errors.Is(err, lease.ErrNoLeader) && n == leader:
				unknown.Add(1)
			default:
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	<-entered
	c.kill(leader.cfg.NodeID)
	clients.Wait()
	if granted.Load() > 1 || granted.Load() == 0 && unknown.Load() == 0 {
		t.Errorf("%d were granted, %d held, %d unknown", granted.Load(), held.Load(), unknown.Load())
	}
	if _, _, err := c.leader().GetLease(ctx, "a", false); err != nil {
		t.Errorf("nobody holds it: %v", err)
	}
}

func TestC06GrantOutlivesTheLeader(t *testing.T) {
	c := startCluster(t, 3, nil)
	leader := c.leader()
	l := c.mustAcquire(leader, "a", time.Minute)
	c.kill(leader.cfg.NodeID)
	got, _, err := c.leader().GetLease(c.context(), "a", false)
	if err != nil || got.Token != l.Token {
		t.Errorf("%+v became %+v, %v", l, got, err)
	}
}

// A leader that is cut off ends nothing, renews nothing, grants nothing, and its
// reads do not answer as current (C10).
func TestC10CutOffLeader(t *testing.T) {
	c := startCluster(t, 3, func(_ int, c *Config) { c.LeaderWait = time.Second })
	old := c.leader()
	ctx := c.context()
	l := c.mustAcquire(old, "a", time.Second)
	c.net.isolate(old.cfg.NodeID, c.others(old.cfg.NodeID)...)

	type outcome struct {
		what string
		err  error
	}
	outcomes := make(chan outcome, 3)
	go func() {
		_, _, err := old.GetLease(ctx, "a", false)
		outcomes <- outcome{"read", err}
	}()
	go func() {
		_, err := old.Renew(ctx, lease.RenewRequest{Resource: "a", Token: l.Token, TTL: time.Hour})
		outcomes <- outcome{"renewal", err}
	}()
	go func() {
		_, err := old.Acquire(ctx, acquire("b", "h", time.Hour))
		outcomes <- outcome{"acquire", err}
	}()
	fresh := c.otherLeader(old.cfg.NodeID)
	c.eventually("the lease ends with the new leader", func() bool {
		_, _, err := fresh.GetLease(ctx, "a", false)
		return errors.Is(err, lease.ErrNotHeld)
	})
	taken := c.mustAcquire(fresh, "a", time.Minute)
	for range 3 {
		o := <-outcomes
		if o.err == nil || applied(o.err) == "" {
			t.Errorf("the %s through the cut off leader: %v", o.what, o.err)
		}
	}
	stale, age, err := old.GetLease(ctx, "a", true)
	if err == nil && stale.Token != l.Token || age == 0 {
		t.Errorf("a stale read at the cut off node: %+v, age %v, %v", stale, age, err)
	}
	c.net.healAll()
	c.waitReady(old.cfg.NodeID)
	got, _, err := old.GetLease(ctx, "a", false)
	if err != nil || got.Token != taken.Token {
		t.Errorf("after the heal: %+v, %v", got, err)
	}
	if _, _, err := old.GetLease(ctx, "b", false); !errors.Is(err, lease.ErrNotHeld) {
		t.Errorf("the acquire of the cut off leader: %v", err)
	}
}

// The leader dies between commit and answer (C15, C16): a follower finds the next
// leader and there the lease that its first sending made, with one token; a
// release, which cannot be told from another's, is of unknown outcome.
func TestC15C16LeaderDiesBeforeItAnswers(t *testing.T) {
	var stuck atomic.Pointer[chan struct{}] // set: the leader stops behind the commit
	reached := make(chan struct{}, 1)
	c := startCluster(t, 3, func(_ int, config *Config) {
		config.hooks.committed = func() {
			if release := stuck.Load(); release != nil {
				select {
				case reached <- struct{}{}:
					<-*release
				default:
				}
			}
		}
	})
	ctx := c.context()
	for _, what := range []string{"acquire", "release"} {
		old, follower := c.leader(), c.follower()
		held := c.mustAcquire(follower, "held-"+what, time.Minute)
		release := make(chan struct{})
		type outcome struct {
			lease lease.Lease
			err   error
		}
		done := make(chan outcome, 1)
		stuck.Store(&release)
		go func() {
			var o outcome
			if what == "acquire" {
				o.lease, o.err = follower.Acquire(ctx, acquire("a", "h", time.Minute))
			} else {
				o.err = follower.Release(ctx, lease.ReleaseRequest{Resource: held.Resource, Token: held.Token})
			}
			done <- o
		}()
		<-reached
		stuck.Store(nil)
		c.isolate(old.cfg.NodeID)
		o := <-done
		if what == "acquire" {
			// The commit was before the leader got stuck: token held+1, once.
			if o.err != nil || o.lease.Token != held.Token+1 {
				t.Errorf("acquire: %+v, %v", o.lease, o.err)
			}
		} else if !errors.Is(o.err, lease.ErrOutcomeUnknown) || applied(o.err) != lease.AppliedUnknown {
			t.Errorf("release: %v", o.err)
		}
		close(release)
		c.net.healAll()
		c.waitReady(c.names...)
	}
}

// A release whose entry was lost with the leadership is of unknown outcome, though
// another leader is there to ask: it could not tell whose release it sees.
func TestReleaseIsNotSentTwice(t *testing.T) {
	stamped := make(chan struct{}, 1)
	var armed atomic.Bool
	c := startCluster(t, 3, func(_ int, c *Config) {
		c.hooks.stamped = func(commands int) {
			if commands > 0 && armed.CompareAndSwap(true, false) {
				stamped <- struct{}{}
			}
		}
	})
	old := c.leader()
	name := old.cfg.NodeID
	l := c.mustAcquire(old, "a", time.Minute)
	c.net.isolate(name, c.others(name)...)
	done := make(chan error, 1)
	armed.Store(true)
	go func() { done <- old.Release(c.context(), lease.ReleaseRequest{Resource: "a", Token: l.Token}) }()
	<-stamped
	c.otherLeader(name)
	c.net.healAll()
	if err := <-done; !errors.Is(err, lease.ErrOutcomeUnknown) {
		t.Errorf("release: %v", err)
	}
	if got, _, err := c.leader().GetLease(c.context(), "a", false); err != nil || got.Token != l.Token {
		t.Errorf("%+v, %v", got, err)
	}
}

// A lease ends although no leader lasts (C18, I5).
func TestC18LeaseEndsInSpiteOfElections(t *testing.T) {
	c := startCluster(t, 3, nil)
	ctx := c.context()
	c.mustAcquire(c.leader(), "a", 2*time.Second)
	elections := 0
	for {
		leader := c.leader()
		_, _, err := leader.GetLease(ctx, "a", false)
		if errors.Is(err, lease.ErrNotHeld) {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the lease lives on after %d elections", elections)
		}
		// A few hundred milliseconds a leader: until time has gone on a little.
		from := leader.machine.Info().Now
		c.eventually("time goes on", func() bool {
			return leader.machine.Info().Now >= from+200 || leader.machine.Info().Leases == 0 || !leader.leader.Load().self
		})
		if leader.TransferLeadership(ctx) == nil {
			elections++
		}
	}
	if elections < 2 {
		t.Errorf("only %d elections", elections)
	}
}

func TestC19RemainingAfterAnElection(t *testing.T) {
	c := startCluster(t, 3, nil)
	ttl := 30 * time.Second
	c.mustAcquire(c.leader(), "a", ttl)
	for range 3 {
		if err := c.leader().TransferLeadership(c.context()); err != nil {
			continue
		}
		for _, n := range c.running() {
			l, _, err := n.GetLease(c.context(), "a", false)
			if err != nil || l.Remaining < 0 || l.Remaining > ttl {
				t.Errorf("%s: %+v, %v", n.cfg.NodeID, l, err)
			}
		}
	}
}

// A lease ends without any traffic (C20), and not before its time (C25).
func TestC20C25LeaseEndsOnItsOwn(t *testing.T) {
	c := startCluster(t, 3, nil)
	n := c.leader()
	before := time.Now()
	c.mustAcquire(c.follower(), "a", time.Second)
	c.eventually("the lease ends on every node", func() bool {
		for _, n := range c.running() {
			if n.machine.Info().Leases != 0 {
				return false
			}
		}
		return true
	})
	if lived := time.Since(before); lived < time.Second {
		t.Errorf("it lived %v", lived)
	}
	// And then nothing is written any more.
	index := n.machine.Info().Index
	c.eventually("a status round has passed", func() bool {
		_, ago, ok := n.peers.latest(c.others(n.cfg.NodeID)[0])
		return ok && ago < 500*time.Millisecond
	})
	if now := n.machine.Info().Index; now != index {
		t.Errorf("an idle cluster wrote entries %d to %d", index+1, now)
	}
}

// Wall clocks step; no lease ends early, none lives on, tokens go on by one
// (C22).
func TestC22WallClocksDoNotMatter(t *testing.T) {
	var offset [3]atomic.Int64
	c := startCluster(t, 3, func(i int, c *Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(offset[i].Load())) }
	})
	ctx := c.context()
	long := c.mustAcquire(c.leader(), "long", time.Hour)
	last := long.Token
	for _, step := range []time.Duration{time.Hour, -time.Hour, 365 * 24 * time.Hour, 0} {
		for i := range offset {
			if i < 2 || step == 0 {
				offset[i].Store(int64(step))
			}
		}
		short := c.mustAcquire(c.follower(), "short", time.Second)
		if short.Token != last+1 {
			t.Errorf("token %d after %d", short.Token, last)
		}
		last = short.Token
		got, _, err := c.leader().GetLease(ctx, "long", false)
		if err != nil || got.Token != long.Token || got.Remaining > time.Hour || got.Remaining < 58*time.Minute {
			t.Errorf("clocks %v off: %+v, %v", step, got, err)
		}
		c.eventually("the short lease ends", func() bool {
			_, _, err := c.leader().GetLease(ctx, "short", false)
			return errors.Is(err, lease.ErrNotHeld)
		})
		if err := c.leader().TransferLeadership(ctx); err != nil {
			t.Log("no handover:", err)
		}
	}
}

// One node of three is killed, and holders that renew at a third of their TTL
// lose nothing (C26).
func TestC26HoldersSurviveTheDeathOfANode(t *testing.T) {
	c := startCluster(t, 3, nil)
	ctx, cancel := context.WithCancel(c.context())
	defer cancel()
	const ttl = 6 * time.Second
	var holders sync.WaitGroup
	var renewals atomic.Int32
	victim := c.leader().cfg.NodeID
	nodes := c.running()
	for i := range 6 {
		n := nodes[i%3]
		if n.cfg.NodeID == victim {
			n = nodes[(i+1)%3] // its client goes to another node
		}
		name := fmt.Sprintf("a/%d", i)
		l := c.mustAcquire(n, name, ttl)
		holders.Go(func() {
			tick := time.NewTicker(ttl / 12)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
				_, err := n.Renew(ctx, lease.RenewRequest{Resource: name, Token: l.Token})
				if err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				renewals.Add(1)
			}
		})
	}
	c.kill(victim)
	fresh := c.leader()
	after := renewals.Load() + 6*12 // a TTL and more
	c.eventually("renewals go on", func() bool { return renewals.Load() >= after || t.Failed() })
	cancel()
	holders.Wait()
	if leases, _, _, err := fresh.ListLeases(c.context(), lease.Page{Limit: 100}, false); err != nil || len(leases) != 6 {
		t.Errorf("%d leases, %v", len(leases), err)
	}
}

// No list shows a lease that has ended (C27).
func TestC27ListsShowNoEndedLease(t *testing.T) {
	c := startCluster(t, 3, nil)
	ctx := c.context()
	begun := time.Now()
	for i := range 30 {
		c.mustAcquire(c.follower(), fmt.Sprintf("a/%d", i), time.Second)
	}
	granted := time.Now()
	for alive := true; alive; {
		alive = false
		for _, n := range c.running() {
			asked := time.Now()
			leases, _, _, err := n.ListLeases(ctx, lease.Page{Limit: 100}, false)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range leases {
				if l.Remaining < 0 || l.Remaining > l.TTL {
					t.Fatalf("%s shows %+v", n.cfg.NodeID, l)
				}
			}
			alive = alive || len(leases) > 0
			if len(leases) < 30 && asked.Sub(begun) < 900*time.Millisecond && time.Since(begun) < time.Second {
				t.Fatalf("%s shows %d leases before their time", n.cfg.NodeID, len(leases))
			}
		}
		if time.Since(granted) > longStop {
			t.Fatal("leases do not end")
		}
	}
}

// Without a quorum every write is answered in bounded time, and stale reads work
// (C35).
func TestC35NoQuorum(t *testing.T) {
	c := startCluster(t, 3, func(_ int, c *Config) { c.LeaderWait = 500 * time.Millisecond })
	left := c.follower()
	ctx := c.context()
	l := c.mustAcquire(left, "a", time.Minute)
	c.eventually("the follower has it", func() bool { return left.machine.Info().Leases == 1 })
	for _, name := range c.others(left.cfg.NodeID) {
		c.kill(name)
	}
	for what, do := range map[string]func() error{
		"acquire": func() error { _, err := left.Acquire(ctx, acquire("b", "h", time.Minute)); return err },
		"renew": func() error {
			_, err := left.Renew(ctx, lease.RenewRequest{Resource: "a", Token: l.Token})
			return err
		},
		"release": func() error {
			return left.Release(ctx, lease.ReleaseRequest{Resource: "a", Token: l.Token})
		},
		"next": func() error { _, err := left.Next(ctx, lease.NextRequest{Name: "s", Count: 1}); return err },
		"read": func() error { _, _, err := left.GetLease(ctx, "a", false); return err },
	} {
		err := do()
		var e *lease.Error
		if !errors.As(err, &e) || e.RetryAfter <= 0 ||
			!(e.Code == lease.CodeNoLeader && e.Applied == lease.AppliedNo || e.Code == lease.CodeOutcomeUnknown && e.Applied == lease.AppliedUnknown) {
			t.Errorf("%s: %#v", what, err)
		}
	}
	got, age, err := left.GetLease(ctx, "a", true)
	if err != nil || got.Token != l.Token || age <= 0 {
		t.Errorf("stale read: %+v, age %v, %v", got, age, err)
	}
	_, later, _ := left.GetLease(ctx, "a", true)
	if later <= age {
		t.Errorf("the age fell from %v to %v without a leader", age, later)
	}
	if left.Ready() == nil {
		t.Error("ready without a quorum")
	}
}

// A node that takes the wrong node for the leader is told so, sends nothing on a
// second hop, does not spin, and ends in bounded time (C36).
func TestC36WrongIdeaOfTheLeader(t *testing.T) {
	c := startCluster(t, 3, func(_ int, c *Config) { c.LeaderWait = 500 * time.Millisecond })
	leader := c.leader()
	var followers []*Node
	for _, n := range c.running() {
		if n != leader {
			followers = append(followers, n)
		}
	}
	mistaken, other := followers[0], followers[1]
	mistaken.observing.Lock() // it looks no more
	right := mistaken.leader.Load()
	before := leader.machine.Info().Index
	for _, wrong := range []*leaderView{
		{id: other.serverID, node: other.cfg.NodeID, addr: other.network.advertise(), term: right.term},
		{id: leader.serverID, node: leader.cfg.NodeID, addr: leader.network.advertise(), term: right.term + 1},
		{id: leader.serverID, node: leader.cfg.NodeID, addr: other.network.advertise(), term: right.term}, // does not answer there
	} {
		wrong.changed = make(chan struct{})
		mistaken.leader.Store(wrong)
		_, err := mistaken.Acquire(c.context(), acquire("a", "h", time.Minute))
		if !errors.Is(err, lease.ErrNoLeader) || applied(err) != lease.AppliedNo {
			t.Errorf("sent to %s at %s for term %d: %v", wrong.node, wrong.addr, wrong.term, err)
		}
	}
	mistaken.leader.Store(right)
	mistaken.observing.Unlock()
	if after := leader.machine.Info().Index; after != before {
		t.Errorf("entries %d to %d were written", before+1, after)
	}
	c.mustAcquire(mistaken, "a", time.Minute)
}

// The first read on a fresh leader sees the last acknowledged write (C39).
func TestC39FirstReadOnAFreshLeader(t *testing.T) {
	c := startCluster(t, 3, nil)
	for i := range 5 {
		old := c.leader()
		l := c.mustAcquire(old, fmt.Sprintf("a/%d", i), time.Minute)
		var fresh *Node
		if i%2 == 0 {
			fresh = c.isolate(old.cfg.NodeID)
		} else if old.TransferLeadership(c.context()) == nil {
			fresh = c.otherLeader(old.cfg.NodeID)
		} else {
			continue
		}
		got, _, err := fresh.GetLease(c.context(), l.Resource, false)
		if err != nil || got.Token != l.Token {
			t.Errorf("%+v is %+v, %v", l, got, err)
		}
		c.net.healAll()
		c.waitReady(c.names...)
	}
}

// The disk of a node is replaced under its old name, and the only other node with
// the last grant dies: the new one does not vote, and nothing is issued twice
// (C60).
func TestC60DiskIsReplacedAndTheLeaderDies(t *testing.T) {
	c := startCluster(t, 3, func(_ int, c *Config) { c.LeaderWait = 500 * time.Millisecond })
	n1 := c.leader()
	others := c.others(n1.cfg.NodeID)
	n2, n3 := others[0], others[1]
	c.kill(n3) // does not get the grant
	l := c.mustAcquire(n1, "a", time.Minute)
	c.kill(n2)
	if err := os.RemoveAll(c.config(n2).DataDir); err != nil {
		t.Fatal(err)
	}
	replaced := c.start(n2)
	select {
	case <-replaced.Done():
		if replaced.Err() == nil {
			t.Error("it does not say why it ends")
		}
	case <-time.After(longStop):
		t.Error("the replaced node goes on")
	}
	c.kill(n1.cfg.NodeID)
	c.start(n3)
	if _, err := c.node(n3).Acquire(c.context(), acquire("b", "h", time.Minute)); err == nil {
		t.Error("granted by one old node and a replaced one")
	}
	c.kill(n2)
	c.start(n1.cfg.NodeID)
	c.waitReady(n3, n1.cfg.NodeID)
	if next := c.mustAcquire(c.node(n3), "b", time.Minute); next.Token <= l.Token {
		t.Errorf("token %d after %d", next.Token, l.Token)
	}
}

// The proposer is paused between stamping and proposing while its node loses and
// regains the leadership (C61): the entry is stored, changes nothing, not even
// time, and its request is not applied.
func TestC61PausedBetweenStampingAndProposing(t *testing.T) {
	var paused atomic.Pointer[Node] // the node whose next entry is held
	reached := make(chan uint64, 1)
	release := make(chan struct{})
	c := startCluster(t, 3, func(i int, config *Config) {
		id := config.NodeID
		config.hooks.stamped = func(int) {
			n := paused.Load()
			if n != nil && n.cfg.NodeID == id && paused.CompareAndSwap(n, nil) {
				reached <- n.raft.Load().CurrentTerm()
				<-release
			}
		}
	})
	n := c.leader()
	ctx := c.context()
	paused.Store(n)
	stuck := newCall(request{kind: callWrite})
	stuck.data = fsm.AppendCommand(nil, fsm.Acquire{Resource: "a", Holder: "h", TTL: 60_000, Request: lease.RequestID{1}})
	if !n.epoch.Load().add(stuck) {
		t.Fatal("the leader does not take it")
	}
	term := <-reached
	// Away, and back.
	for n.raft.Load().State() == raft.Leader {
		n.TransferLeadership(ctx)
	}
	r, err := c.otherLeader(n.cfg.NodeID).Next(ctx, lease.NextRequest{Name: "s", Count: 1})
	if err != nil || r.Last != 1 {
		t.Fatal(r, err)
	}
	for {
		l := c.leader()
		if l == n {
			break
		}
		n.await(ctx, l.raft.Load().LeadershipTransferToServer(n.serverID, raft.ServerAddress(n.network.advertise())))
		if ctx.Err() != nil {
			t.Fatal("the leadership does not come back")
		}
	}
	if now := n.raft.Load().CurrentTerm(); now <= term {
		t.Fatalf("term %d after term %d", now, term)
	}
	// Nothing is alive, so there are no ticks: the next entry is the paused one.
	before := n.machine.Info()
	close(release)
	<-stuck.done
	if stuck.fate != fateNotApplied {
		t.Errorf("fate %d", stuck.fate)
	}
	after := n.machine.Info()
	if after.Index != before.Index+1 {
		t.Errorf("entry %d became %d: the entry was not stored, which is not what this test is for", before.Index, after.Index)
	}
	after.Index, after.Digest = before.Index, before.Digest
	if after != before {
		t.Errorf("%+v became %+v", before, after)
	}
	if l := c.mustAcquire(n, "a", time.Minute); l.Token != 1 {
		t.Errorf("the first token is %d", l.Token)
	}
}

// A follower's answer waits in the socket of a leader that is stopped; another
// leads, the resource changes hands, the old one gets a linearizable read: the
// new holder, or an error (C62).
func TestC62AnswerFromBeforeTheRead(t *testing.T) {
	c := startCluster(t, 3, func(_ int, c *Config) { c.LeaderWait = 300 * time.Millisecond })
	old := c.leader()
	name := old.cfg.NodeID
	l := c.mustAcquire(old, "a", time.Minute)
	// What the others answer is held back from now on.
	for _, o := range c.others(name) {
		c.net.drop(o, name)
	}
	fresh := c.otherLeader(name)
	if err := fresh.Release(c.context(), lease.ReleaseRequest{Resource: "a", Token: l.Token}); err != nil {
		t.Fatal(err)
	}
	taken := c.mustAcquire(fresh, "a", time.Minute)
	results := make(chan lease.Lease, 50)
	var reads sync.WaitGroup
	for i := range 50 {
		reads.Go(func() {
			got, _, err := old.GetLease(c.context(), "a", false)
			if err == nil {
				results <- got
			}
		})
		if i == 25 {
			c.net.healAll() // all that was held back arrives
		}
	}
	reads.Wait()
	close(results)
	for got := range results {
		if got.Token != taken.Token {
			t.Errorf("a read that began after %+v was granted saw %+v", taken, got)
		}
	}
}

// Writers and readers on all nodes while leadership goes round: values of a
// sequence are distinct and rise in real time, and a read sees every value that
// was acknowledged before it began (C32, I8).
func TestLinearizableUnderChangesOfLeader(t *testing.T) {
	c := startCluster(t, 3, nil)
	rounds := 5
	if os.Getenv("HIGHWATER_SOAK") != "" {
		rounds = 100
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var acked atomic.Int64 // the largest value that was acknowledged
	type ack struct {
		at    time.Time
		value lease.Token
	}
	type staleRead struct {
		began time.Time
		age   time.Duration
		last  lease.Token
	}
	var mu sync.Mutex
	seen := make(map[lease.Token]bool)
	var acks []ack // in the order of their times
	var reads []staleRead
	var traffic sync.WaitGroup
	for i := range 6 {
		n := c.running()[i%3]
		traffic.Go(func() {
			for ctx.Err() == nil {
				before := acked.Load()
				r, err := n.Next(ctx, lease.NextRequest{Name: "s", Count: 1})
				if err != nil {
					continue
				}
				if int64(r.First) <= before {
					t.Errorf("%d was issued after %d had been", r.First, before)
				}
				mu.Lock()
				if seen[r.First] {
					t.Errorf("%d was issued twice", r.First)
				}
				seen[r.First] = true
				acks = append(acks, ack{time.Now(), r.First})
				mu.Unlock()
				for {
					high := acked.Load()
					if int64(r.First) <= high || acked.CompareAndSwap(high, int64(r.First)) {
						break
					}
				}
			}
		})
		traffic.Go(func() {
			for ctx.Err() == nil {
				before := acked.Load()
				s, _, err := n.GetSequence(ctx, "s", false)
				if err == nil && int64(s.Last) < before || before > 0 && errors.Is(err, lease.ErrSequenceUnknown) {
					t.Errorf("a read saw %+v, %v, when %d had been acknowledged", s, err, before)
				}
				// A stale one is at most as old as it says: looked at in the end.
				read := staleRead{began: time.Now()}
				s, read.age, err = n.GetSequence(ctx, "s", true)
				read.last = s.Last
				if err == nil && read.age < longStop {
					mu.Lock()
					reads = append(reads, read)
					mu.Unlock()
				}
			}
		})
	}
	for i := range rounds {
		leader := c.leader()
		from := acked.Load()
		switch i % 3 {
		case 0:
			leader.TransferLeadership(ctx)
		case 1:
			c.isolate(leader.cfg.NodeID)
			c.net.healAll()
		case 2:
			for _, o := range c.others(leader.cfg.NodeID) {
				c.net.sever(leader.cfg.NodeID, o)
			}
		}
		c.eventually("writes go on", func() bool { return acked.Load() > from+50 || t.Failed() })
	}
	cancel()
	traffic.Wait()
	highest := make([]lease.Token, len(acks)) // up to and with each
	for i, a := range acks {
		highest[i] = a.value
		if i > 0 {
			highest[i] = max(a.value, highest[i-1])
		}
	}
	for _, r := range reads {
		as := r.began.Add(-r.age)
		n, _ := slices.BinarySearchFunc(acks, as, func(a ack, t time.Time) int { return a.at.Compare(t) })
		if n > 0 && highest[n-1] > r.last {
			t.Fatalf("a stale read of age %v saw %d, and %d had been acknowledged before", r.age, r.last, highest[n-1])
		}
	}
	t.Logf("%d values, %d stale reads", len(acks), len(reads))
}

// The ages of stale reads are honest: what was acknowledged before is seen.
func TestStaleReadsKnowTheirAge(t *testing.T) {
	c := startCluster(t, 3, nil)
	leader := c.leader()
	for _, n := range c.running() {
		c.eventually("a small age at "+n.cfg.NodeID, func() bool {
			_, _, age, err := n.ListLeases(c.context(), lease.Page{Limit: 1}, true)
			return err == nil && age < time.Second
		})
	}
	// One that gets nothing any more grows old, and says so, though its leader
	// was there a moment ago.
	follower := c.follower()
	c.net.drop(leader.cfg.NodeID, follower.cfg.NodeID)
	l := c.mustAcquire(leader, "a", time.Minute)
	granted := time.Now()
	for range 100 {
		since := time.Since(granted)
		_, age, err := follower.GetLease(c.context(), "a", true)
		if err == nil {
			t.Fatalf("a node that gets nothing has %+v", l)
		}
		if age < since {
			t.Fatalf("%v after the grant, a state without it says that it is %v old", since, age)
		}
	}
}

func TestFates(t *testing.T) {
	for err, want := range map[error]fate{
		nil:                                   fateDone,
		raft.ErrNotLeader:                     fateNotApplied,
		raft.ErrLeadershipTransferInProgress:  fateNotApplied,
		raft.ErrEnqueueTimeout:                fateNotApplied,
		raft.ErrLeadershipLost:                fateUnknown,
		raft.ErrRaftShutdown:                  fateUnknown,
		raft.ErrAbortedByRestore:              fateUnknown,
		errStopping:                           fateUnknown,
		errors.New("log.db: no space left"):   fateUnknown,
		fmt.Errorf("x: %w", fsm.ErrUnknown):   fateUnknown,
		fmt.Errorf("y: %w", context.Canceled): fateUnknown,
	} {
		if got := fateOf(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

// A canceled request returns at once, wherever it is.
func TestCanceledRequestsReturn(t *testing.T) {
	c := startCluster(t, 3, nil)
	leader := c.leader()
	ctx, cancel := context.WithCancel(context.Background())
	c.net.isolate(leader.cfg.NodeID, c.others(leader.cfg.NodeID)...)
	var returned sync.WaitGroup
	for _, n := range c.running() {
		returned.Go(func() {
			if _, err := n.Acquire(ctx, acquire("a", "h", time.Minute)); err != nil && !errors.Is(err, context.Canceled) && n != leader {
				t.Errorf("%s: %v", n.cfg.NodeID, err)
			}
		})
	}
	cancel()
	returned.Wait()
}
