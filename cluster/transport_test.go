package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// raftNode is Raft on a seed, with a state machine that only keeps what it got.
type raftNode struct {
	*seed
	raft      *raft.Raft
	transport *transport
	kept      *keeper
	raftLog   *lines
}

// keeper is a state machine that keeps every entry.
type keeper struct {
	mu       sync.Mutex
	Entries  []string
	restored int
	change   chan struct{}
}

func (k *keeper) Apply(l *raft.Log) any {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Entries = append(k.Entries, strings.TrimSpace(string(l.Data)))
	k.changed()
	return nil
}

func (k *keeper) changed() {
	if k.change != nil {
		close(k.change)
		k.change = nil
	}
}

func (k *keeper) Snapshot() (raft.FSMSnapshot, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return keptSnapshot(slices.Clone(k.Entries)), nil
}

func (k *keeper) Restore(r io.ReadCloser) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.restored++
	k.Entries = nil
	defer k.changed()
	return json.NewDecoder(r).Decode(&k.Entries)
}

func (k *keeper) last() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.Entries) == 0 {
		return ""
	}
	return k.Entries[len(k.Entries)-1]
}

// wait returns when the last entry is as wanted.
func (k *keeper) wait(t testing.TB, want string) {
	t.Helper()
	stop := time.After(longStop)
	for {
		k.mu.Lock()
		if k.change == nil {
			k.change = make(chan struct{})
		}
		change, n := k.change, len(k.Entries)
		reached := n > 0 && k.Entries[n-1] == want
		k.mu.Unlock()
		if reached {
			return
		}
		select {
		case <-change:
		case <-stop:
			t.Fatalf("%q did not come; %d entries, last %q", want, n, k.last())
		}
	}
}

type keptSnapshot []string

func (s keptSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := json.NewEncoder(sink).Encode(s); err != nil {
		sink.Cancel()
		return err
	}
	return sink.Close()
}

func (keptSnapshot) Release() {}

// startRaft starts Raft on a seed that is started and bootstrapped.
func startRaft(t testing.TB, s *seed) *raftNode {
	t.Helper()
	n := &raftNode{seed: s, kept: &keeper{}, raftLog: &lines{}}
	logger := hclog.New(&hclog.LoggerOptions{Output: n.raftLog, Level: hclog.Info})
	n.transport = newTransport(s.net, s.st, logger)
	config := raft.DefaultConfig()
	config.LocalID = s.st.identity().ServerID()
	config.HeartbeatTimeout, config.ElectionTimeout, config.LeaderLeaseTimeout = 300*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond
	config.CommitTimeout = 5 * time.Millisecond
	config.SnapshotThreshold, config.TrailingLogs = 1<<20, 4 // snapshots when asked
	config.Logger = logger
	var err error
	n.raft, err = raft.NewRaft(config, n.kept, s.st.log, s.st.stable, s.st.snapshots, n.transport)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.halt()
		if t.Failed() {
			t.Logf("Raft of %s:\n%s", s.id, n.raftLog)
		}
	})
	return n
}

// halt stops Raft, its connections first: a call that waits for another node
// would keep it.
func (n *raftNode) halt() {
	done := n.raft.Shutdown()
	if n.net != nil {
		n.net.Close()
	}
	done.Error()
	n.seed.stop()
}

// waitLeader returns the leader among nodes when all of them know it.
func waitLeader(t testing.TB, nodes ...*raftNode) *raftNode {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	stop := time.After(longStop)
	for {
		for _, n := range nodes {
			known := 0
			for _, other := range nodes {
				if addr, id := other.raft.LeaderWithID(); id == n.st.identity().ServerID() {
					if string(addr) != n.net.advertise() {
						t.Fatalf("the leader is known as %q, it advertises %q", addr, n.net.advertise())
					}
					known++
				}
			}
			if n.raft.State() == raft.Leader && known == len(nodes) {
				return n
			}
		}
		select {
		case <-tick.C:
		case <-stop:
			t.Fatal("no leader")
		}
	}
}

// apply proposes e<from> to e<to>. They are padded so that a few dozen fill a
// segment: raft-wal goes on reading what was cut from the front of one.
func (n *raftNode) apply(t testing.TB, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		if err := n.raft.Apply(fmt.Appendf(nil, "%-400s", fmt.Sprint("e", i)), longStop).Error(); err != nil {
			t.Fatal(err)
		}
	}
}

// others are the nodes but for one.
func others(nodes []*raftNode, but *raftNode) []*raftNode {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *raftNode) bool { return n == but })
}

func formRaft(t testing.TB, seeds ...*seed) []*raftNode {
	t.Helper()
	form(t, seeds...)
	var nodes []*raftNode
	for _, s := range seeds {
		nodes = append(nodes, startRaft(t, s))
	}
	return nodes
}

func TestRaftOverTheClusterPort(t *testing.T) {
	nodes := formRaft(t, newSeeds(t, "n1", "n2", "n3")...)
	leader := waitLeader(t, nodes...)
	leader.apply(t, 1, 50)
	for _, n := range nodes {
		n.kept.wait(t, "e50")
		if strings.Contains(n.raftLog.String(), "pre-vote is disabled") {
			t.Error("pre-vote is lost")
		}
	}
	// The leader dies; the two others go on, and it comes back.
	leader.halt()
	rest := others(nodes, leader)
	next := waitLeader(t, rest...)
	next.apply(t, 51, 60)
	leader.start()
	back := startRaft(t, leader.seed)
	back.kept.wait(t, "e60")
}

// TestC45NewAddressesUnderOldNames restarts all nodes at new addresses. The
// names that the configuration holds lead to them.
func TestC45NewAddressesUnderOldNames(t *testing.T) {
	var mu sync.Mutex
	addrs := map[string]string{}
	dial := func(ctx context.Context, name string) (net.Conn, error) {
		mu.Lock()
		addr := addrs[name]
		mu.Unlock()
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	seeds := newSeeds(t, "n1", "n2", "n3")
	var list []member
	for _, s := range seeds {
		name := s.id + ".test:8401"
		addrs[name] = s.addr
		list = append(list, member{ID: s.id, ClusterAddr: name})
	}
	for _, s := range seeds {
		s.list, s.dial = list, dial
	}
	form(t, seeds...)
	run := func() []*raftNode {
		var nodes []*raftNode
		for _, s := range seeds {
			n := startRaft(t, s)
			nodes = append(nodes, n)
		}
		return nodes
	}
	for _, s := range seeds {
		s.net.cfg.Advertise = s.id + ".test:8401"
	}
	nodes := run()
	waitLeader(t, nodes...).apply(t, 1, 5)
	for _, n := range nodes {
		n.kept.wait(t, "e5")
	}
	for _, n := range nodes {
		n.halt()
	}
	for _, s := range seeds {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s.listener, s.addr = l, l.Addr().String()
		mu.Lock()
		addrs[s.id+".test:8401"] = s.addr
		mu.Unlock()
		s.start()
		s.net.cfg.Advertise = s.id + ".test:8401"
	}
	nodes = run()
	waitLeader(t, nodes...).apply(t, 6, 9)
	for _, n := range nodes {
		n.kept.wait(t, "e9")
	}
}

// TestC60ReplacedDiskDoesNotVote: n1 and n2 committed an entry, n2's disk is
// replaced, n1 dies. n3, which lacks the entry, must not become leader with the
// vote of the new n2.
func TestC60ReplacedDiskDoesNotVote(t *testing.T) {
	nodes := formRaft(t, newSeeds(t, "n1", "n2", "n3")...)
	leader := waitLeader(t, nodes...)
	rest := others(nodes, leader)
	replaced, behind := rest[0], rest[1]
	behind.halt()
	leader.apply(t, 1, 3)
	cluster := leader.st.identity()
	replaced.halt()
	leader.halt()
	replaced.wipe()
	replaced.start()
	// Even one that has got the cluster's ID somehow, and runs Raft.
	id := replaced.st.identity()
	id.ClusterID, id.Initial = cluster.ClusterID, cluster.Initial
	for _, step := range bootstrapSteps(replaced.st, id) {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	startRaft(t, replaced.seed)
	behind.start()
	again := startRaft(t, behind.seed)
	// It asks for votes, and is told who is there instead.
	again.raftLog.wait(t, "this is "+string(id.ServerID()))
	again.raftLog.wait(t, "entering candidate state")
	if again.raft.State() == raft.Leader || again.raft.LastIndex() > 3 {
		t.Fatal("elected without the committed entries")
	}
}

// TestC64DeadBetweenSnapshotAndLog has a follower die when it had stored a
// received snapshot and not yet emptied its log. It catches up.
func TestC64DeadBetweenSnapshotAndLog(t *testing.T) {
	eachKind(t, func(t *testing.T, kind LogStore) {
		seeds := newSeeds(t, "n1", "n2", "n3")
		for _, s := range seeds {
			s.kind = kind
		}
		nodes := formRaft(t, seeds...)
		leader := waitLeader(t, nodes...)
		leader.apply(t, 1, 5)
		follower := others(nodes, leader)[0]
		follower.kept.wait(t, "e5")
		follower.halt()
		leader.apply(t, 6, 40)
		if err := leader.raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		from := filepath.Join(leader.dir, snapshotDir)
		if err := os.CopyFS(filepath.Join(follower.dir, snapshotDir), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		follower.start()
		back := startRaft(t, follower.seed)
		leader.apply(t, 41, 45)
		back.kept.wait(t, "e45")
		if n := len(back.kept.Entries); n != 45 {
			t.Fatalf("%d entries, want 45", n)
		}
		// And from a snapshot that is sent over the network.
		back.halt()
		leader.apply(t, 46, 80)
		if err := leader.raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		follower.start()
		back = startRaft(t, follower.seed)
		leader.apply(t, 81, 82)
		back.kept.wait(t, "e82")
		if back.kept.restored < 2 {
			t.Errorf("restored %d times, want the snapshot on disk and the one sent", back.kept.restored)
		}
		back.halt()
		follower.start()
		last := startRaft(t, follower.seed)
		leader.apply(t, 83, 83)
		last.kept.wait(t, "e83")
	})
}

// fakeLeader is another member, at whose calls a test has a follower act.
type fakeLeader struct {
	t         *testing.T
	follower  *raftNode
	transport *transport
	header    raft.RPCHeader
}

// newFollower starts n1 of three, of which n2 is the test.
func newFollower(t *testing.T, kind LogStore) (*raftNode, *fakeLeader) {
	seeds := newSeeds(t, "n1", "n2", "n3")
	for _, s := range seeds {
		s.kind = kind
	}
	form(t, seeds...)
	f := startRaft(t, seeds[0])
	return f, &fakeLeader{t, f, newTransport(seeds[1].net, seeds[1].st, hclog.NewNullLogger()), raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax,
		ID:              []byte(seeds[1].st.identity().ServerID()),
		Addr:            []byte(seeds[1].addr),
	}}
}

func (l *fakeLeader) to() (raft.ServerID, raft.ServerAddress) {
	return l.follower.st.identity().ServerID(), raft.ServerAddress(l.follower.addr)
}

// entries sends entries first to last of a term, all of them committed up to
// commit.
func (l *fakeLeader) entries(prevTerm, first, last, term, commit uint64) {
	l.t.Helper()
	l.transport.CloseStreams() // idle ones may lead to a follower that was stopped since
	req := &raft.AppendEntriesRequest{RPCHeader: l.header, Term: term, PrevLogEntry: first - 1, PrevLogTerm: prevTerm, LeaderCommitIndex: commit}
	for i := first; i <= last; i++ {
		req.Entries = append(req.Entries, &raft.Log{Index: i, Term: term, Type: raft.LogCommand, Data: fmt.Appendf(nil, "e%d", i)})
	}
	var resp raft.AppendEntriesResponse
	id, addr := l.to()
	if err := l.transport.AppendEntries(id, addr, req, &resp); err != nil || !resp.Success {
		l.t.Fatalf("append of %d to %d: %+v, %v", first, last, resp, err)
	}
}

func (l *fakeLeader) snapshot(index, snapTerm, term uint64) (raft.InstallSnapshotResponse, error) {
	data := `["snapshot"]`
	req := &raft.InstallSnapshotRequest{
		RPCHeader: l.header, SnapshotVersion: 1, Term: term, LastLogIndex: index, LastLogTerm: snapTerm,
		Configuration: firstConfiguration(l.follower.st.identity().Initial), ConfigurationIndex: 1, Size: int64(len(data)),
	}
	var resp raft.InstallSnapshotResponse
	id, addr := l.to()
	err := l.transport.InstallSnapshot(id, addr, req, &resp, strings.NewReader(data))
	return resp, err
}

// TestCoveredSnapshotIsNotInstalled sends a follower a snapshot of what its log
// has, as a leader does that was misled, or whose sending was slow. The entries
// behind it were acknowledged, and must stay.
func TestCoveredSnapshotIsNotInstalled(t *testing.T) {
	eachKind(t, func(t *testing.T, kind LogStore) {
		f, leader := newFollower(t, kind)
		leader.entries(1, 2, 20, 5, 15)
		f.kept.wait(t, "e15")
		for _, index := range []uint64{10, 15, 18, 20} {
			resp, err := leader.snapshot(index, 5, 5)
			if err != nil || !resp.Success || resp.Term != 5 {
				t.Fatalf("snapshot at %d: %+v, %v; the leader would send it for ever", index, resp, err)
			}
		}
		wantLog(t, f.st.log, 1, 20)
		leader.entries(5, 21, 22, 5, 22)
		f.kept.wait(t, "e22")
		if f.kept.restored != 0 {
			t.Fatal("the state machine was set back")
		}
		// Its own snapshot covers older ones, when the log no longer has them.
		if err := f.raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		if resp, err := leader.snapshot(12, 5, 5); err != nil || !resp.Success {
			t.Fatalf("%+v, %v", resp, err)
		}
		if f.kept.restored != 0 || f.kept.last() != "e22" {
			t.Fatal("the state machine was set back")
		}
		// One of an older term is refused as ever, one that reaches further is
		// installed.
		if resp, err := leader.snapshot(40, 4, 4); err != nil || resp.Success {
			t.Fatalf("of an older term: %+v, %v", resp, err)
		}
		if resp, err := leader.snapshot(40, 6, 6); err != nil || !resp.Success {
			t.Fatalf("that reaches further: %+v, %v", resp, err)
		}
		f.kept.wait(t, "snapshot")
		leader.entries(6, 41, 42, 6, 42)
		f.kept.wait(t, "e42")
		wantLog(t, f.st.log, 41, 42)
		f.halt()
		f.start()
		again := startRaft(t, f.seed)
		leader.entries(6, 43, 43, 6, 43)
		again.kept.wait(t, "e43")
	})
}

// TestAppendBehindASnapshotIsSentAgain has the leader miss the answers to what
// followed a snapshot. Raft alone refuses to take it again, for good.
func TestAppendBehindASnapshotIsSentAgain(t *testing.T) {
	eachKind(t, func(t *testing.T, kind LogStore) {
		f, leader := newFollower(t, kind)
		leader.entries(1, 2, 5, 5, 5)
		if resp, err := leader.snapshot(40, 6, 6); err != nil || !resp.Success {
			t.Fatalf("%+v, %v", resp, err)
		}
		leader.entries(6, 41, 44, 6, 42)
		leader.entries(6, 41, 42, 6, 42)
		leader.entries(6, 41, 45, 6, 43)
		leader.entries(6, 41, 40, 6, 44) // none, only that 44 is committed
		f.kept.wait(t, "e44")
		f.halt()
		f.start()
		f = startRaft(t, f.seed)
		leader.entries(6, 41, 46, 6, 46)
		f.kept.wait(t, "e46")
		// Another leader replaces what was not committed, from there on.
		leader.entries(6, 47, 49, 6, 46)
		f.halt()
		f.start()
		f = startRaft(t, f.seed)
		leader.entries(6, 41, 46, 6, 46)
		leader.entries(6, 47, 47, 8, 47)
		f.kept.wait(t, "e47")
		wantLog(t, f.st.log, 41, 47)
	})
}

// TestEntryBeforeTheLog: only that one is made up, and only from a snapshot.
func TestEntryBeforeTheLog(t *testing.T) {
	eachKind(t, func(t *testing.T, kind LogStore) {
		st := openTestStores(t, t.TempDir(), kind)
		find := func(index uint64) string {
			var e raft.Log
			if err := st.log.GetLog(index, &e); err == raft.ErrLogNotFound {
				return "none" // Raft compares with ==
			} else if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%d of %d, %v", e.Index, e.Term, e.Type)
		}
		takeSnapshot(t, st, 8, 3)
		takeSnapshot(t, st, 9, 4)
		if got := find(9); got != "none" {
			t.Errorf("before an empty log: %s", got)
		}
		appendEntries(t, st.log, 10, 12, 4)
		for index, want := range map[uint64]string{
			7: "none", 8: "none", 9: "9 of 4, LogNoop", 10: "10 of 4, LogCommand", 12: "12 of 4, LogCommand", 13: "none",
		} {
			if got := find(index); got != want {
				t.Errorf("entry %d: %s, want %s", index, got, want)
			}
		}
	})
}

// TestDivergedLogIsReplaced sends a follower a snapshot that conflicts with its
// log, which reaches further. It must be started again, and then goes on.
func TestDivergedLogIsReplaced(t *testing.T) {
	eachKind(t, func(t *testing.T, kind LogStore) {
		f, leader := newFollower(t, kind)
		failed := make(chan error, 1)
		f.st.onFailure(func(err error) { failed <- err })
		leader.entries(1, 2, 20, 5, 1)
		answered := make(chan bool, 1)
		go func() {
			resp, err := leader.snapshot(10, 7, 7)
			answered <- err == nil && resp.Success
		}()
		defer func() {
			if <-answered {
				t.Error("the leader may count on a node that still votes by its old log")
			}
		}()
		select {
		case err := <-failed:
			wantError(t, err, "start the node again")
		case <-time.After(longStop):
			t.Fatal("it goes on with a wrong idea of its log")
		}
		f.halt()
		f.start()
		again := startRaft(t, f.seed)
		leader.entries(7, 11, 12, 7, 12)
		again.kept.wait(t, "e12")
		wantLog(t, again.st.log, 11, 12)
	})
}
