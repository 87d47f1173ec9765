package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// seed is a node before its cluster is formed. It can be stopped and started
// again under its address.
type seed struct {
	t    testing.TB
	id   string
	dir  string
	addr string
	kind LogStore
	list []member
	now  func() time.Time
	auto bool
	log  *lines
	dial func(ctx context.Context, addr string) (net.Conn, error)

	listener net.Listener
	st       *stores
	net      *network
}

// newSeeds reserves an address for each node; nothing is started.
func newSeeds(t testing.TB, ids ...string) []*seed {
	t.Helper()
	var seeds []*seed
	var list []member
	for i, id := range ids {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &seed{t: t, id: id, dir: t.TempDir(), addr: l.Addr().String(), kind: bothKinds[i%2], now: time.Now, log: &lines{}, listener: l}
		seeds = append(seeds, s)
		list = append(list, member{ID: id, ClusterAddr: s.addr})
		t.Cleanup(s.stop)
	}
	for _, s := range seeds {
		s.list = list
	}
	return seeds
}

// start opens stores and cluster port, as a process does before bootstrap.
func (s *seed) start() {
	s.t.Helper()
	var err error
	if s.st, err = openStoresSized(s.dir, s.kind, smallSegment, hclog.NewNullLogger()); err != nil {
		s.t.Fatal(err)
	}
	if err := s.st.adoptNodeID(s.id); err != nil {
		s.t.Fatal(err)
	}
	l := s.listener
	s.listener = nil
	if l == nil {
		if l, err = net.Listen("tcp", s.addr); err != nil {
			s.t.Fatal(err)
		}
	}
	s.net, err = newNetwork(networkConfig{
		Listener: l, Identity: s.st.identity, InitialCluster: s.list, Now: s.now, Dial: s.dial, Logger: hclog.NewNullLogger(),
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *seed) stop() {
	if s.listener != nil {
		s.listener.Close()
		s.listener = nil
	}
	if s.net != nil {
		s.net.Close()
		s.st.Close()
		s.net, s.st = nil, nil
	}
}

// wipe replaces the disk.
func (s *seed) wipe() {
	s.stop()
	s.dir = s.t.(*testing.T).TempDir()
}

func (s *seed) bootstrap(ctx context.Context) (identity, error) {
	logger := hclog.New(&hclog.LoggerOptions{Output: s.log})
	return bootstrap(ctx, bootstrapConfig{NodeID: s.id, InitialCluster: s.list, AutoFloor: s.auto, Now: s.now, Logger: logger}, s.st, s.net)
}

// lines keeps what is logged, and tells when there is more.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// wait returns when all parts have been logged.
func (l *lines) wait(t testing.TB, parts ...string) {
	t.Helper()
	stop := time.After(longStop)
	for {
		l.mu.Lock()
		if l.more == nil {
			l.more = make(chan struct{})
		}
		more, text := l.more, l.text.String()
		l.mu.Unlock()
		missing := ""
		for _, part := range parts {
			if !strings.Contains(text, part) {
				missing = part
			}
		}
		if missing == "" {
			return
		}
		select {
		case <-more:
		case <-stop:
			t.Fatalf("%q was not logged in %q", missing, text)
		}
	}
}

type outcome struct {
	id  identity
	err error
}

func (s *seed) begin(ctx context.Context) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		id, err := s.bootstrap(ctx)
		done <- outcome{id, err}
	}()
	return done
}

func await(t testing.TB, done <-chan outcome) outcome {
	t.Helper()
	select {
	case o := <-done:
		return o
	case <-time.After(longStop):
		t.Fatal("bootstrap does not return")
		return outcome{}
	}
}

// form bootstraps all nodes, which are started in order.
func form(t testing.TB, seeds ...*seed) identity {
	t.Helper()
	var runs []<-chan outcome
	for _, s := range seeds {
		s.start()
		runs = append(runs, s.begin(t.Context()))
	}
	var first identity
	for i, run := range runs {
		o := await(t, run)
		if o.err != nil {
			t.Fatalf("%s: %v", seeds[i].id, o.err)
		}
		if i == 0 {
			first = o.id
		}
		if o.id.ClusterID == "" || o.id.ClusterID != first.ClusterID || o.id.NodeID != seeds[i].id || !sameList(o.id.Initial, seeds[i].list) {
			t.Fatalf("%s is %+v, the first is of cluster %s", seeds[i].id, o.id, first.ClusterID)
		}
		wantBootstrapped(t, seeds[i])
	}
	return first
}

// wantBootstrapped checks what Raft will find.
func wantBootstrapped(t testing.TB, s *seed) {
	t.Helper()
	if !s.st.identity().Bootstrapped {
		t.Fatalf("%s is not marked", s.id)
	}
	wantLog(t, s.st.log, 1, 1)
	term, err := s.st.stable.GetUint64(raftTermKey)
	if err != nil || term != 1 {
		t.Fatalf("%s has term %d, %v", s.id, term, err)
	}
	var e raft.Log
	if err := s.st.log.GetLog(1, &e); err != nil {
		t.Fatal(err)
	}
	if e.Type != raft.LogConfiguration || e.Term != 1 || !bytes.Equal(e.Data, firstConfiguration(s.st.identity().Initial)) {
		t.Fatalf("%s begins its log with %+v", s.id, e)
	}
	for i, server := range raft.DecodeConfiguration(e.Data).Servers {
		m := s.st.identity().Initial[i]
		if server.ID != serverID(m.ID, m.Instance) || string(server.Address) != m.ClusterAddr || server.Suffrage != raft.Voter {
			t.Fatalf("%s has the member %+v, want %+v", s.id, server, m)
		}
	}
}

func TestC41NodesStartInAnyOrder(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 0, 1}, {1, 2, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			t.Parallel()
			seeds := newSeeds(t, "n1", "n2", "n3")
			var runs []<-chan outcome
			for i, at := range order {
				s := seeds[at]
				s.start()
				runs = append(runs, s.begin(t.Context()))
				if i < len(order)-1 {
					// The next starts only when this one has said whom it lacks.
					s.log.wait(t, seeds[order[len(order)-1]].id+" (")
					if s.st.identity().ClusterID != "" {
						t.Fatal("it did not wait for all")
					}
				}
			}
			var cluster string
			for _, run := range runs {
				o := await(t, run)
				if o.err != nil {
					t.Fatal(o.err)
				}
				if cluster == "" {
					cluster = o.id.ClusterID
				}
				if o.id.ClusterID != cluster {
					t.Fatal("two clusters")
				}
			}
			for _, s := range seeds {
				wantBootstrapped(t, s)
				if lines := strings.Count(s.log.String(), "waiting to form"); lines > 1 {
					t.Errorf("%s logged %d lines within seconds", s.id, lines)
				}
			}
			// Restarts ignore the list, and need nobody.
			for _, s := range seeds {
				s.stop()
				s.start()
				s.list = nil
				if id, err := s.bootstrap(t.Context()); err != nil || id.ClusterID != cluster {
					t.Fatalf("restarted: %+v, %v", id, err)
				}
				wantBootstrapped(t, s)
				s.stop()
			}
		})
	}
}

func TestOneNode(t *testing.T) {
	form(t, newSeeds(t, "n1")...)
}

func TestBootstrapIsCancelled(t *testing.T) {
	s := newSeeds(t, "n1", "n2")[0]
	s.start()
	ctx, cancel := context.WithCancel(t.Context())
	run := s.begin(ctx)
	s.log.wait(t, "waiting to form")
	cancel()
	if o := await(t, run); !errors.Is(o.err, context.Canceled) {
		t.Fatalf("got %v", o.err)
	}
	if s.st.identity().ClusterID != "" {
		t.Fatal("it wrote something")
	}
}

// TestDeathAtEachStepOfBootstrap stops n1 after each of its writes, and starts
// it again with nobody else up: what it has decided, others may count on.
func TestDeathAtEachStepOfBootstrap(t *testing.T) {
	for done := range 5 {
		for _, kind := range bothKinds {
			t.Run(fmt.Sprintf("%d writes, %s", done, kind), func(t *testing.T) {
				t.Parallel()
				seeds := newSeeds(t, "n1", "n2", "n3")
				n1 := seeds[0]
				n1.kind = kind
				for _, s := range seeds {
					s.start()
				}
				id := n1.st.identity()
				members, err := agree(t.Context(), bootstrapConfig{NodeID: "n1", InitialCluster: n1.list, Now: n1.now, Logger: hclog.NewNullLogger()}, id, n1.net)
				if err != nil {
					t.Fatal(err)
				}
				id.ClusterID, id.Initial = clusterID(members), members
				steps := bootstrapSteps(n1.st, id)
				for _, step := range steps[:done] {
					if err := step(); err != nil {
						t.Fatal(err)
					}
				}
				n1.stop()
				if done == 0 {
					// Nothing was decided yet: all three are needed again.
					n1.start()
					run := n1.begin(t.Context())
					for _, s := range seeds[1:] {
						if _, err := s.bootstrap(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					await(t, run)
					wantBootstrapped(t, n1)
					return
				}
				n2, n3 := seeds[1], seeds[2]
				n2.stop()
				n3.stop()
				n1.start()
				got, err := n1.bootstrap(t.Context())
				if err != nil || got.ClusterID != id.ClusterID {
					t.Fatalf("restarted: %+v, %v", got, err)
				}
				wantBootstrapped(t, n1)
				// The others follow it into the same cluster.
				n2.start()
				n3.start()
				for _, run := range []<-chan outcome{n2.begin(t.Context()), n3.begin(t.Context())} {
					if o := await(t, run); o.err != nil || o.id.ClusterID != id.ClusterID {
						t.Fatalf("got %+v, %v", o.id, o.err)
					}
				}
				wantBootstrapped(t, n2)
				wantBootstrapped(t, n3)
			})
		}
	}
}

func TestC42WipedDiskDoesNotTakeItsOldPlace(t *testing.T) {
	seeds := newSeeds(t, "n1", "n2", "n3")
	cluster := form(t, seeds...)
	n2 := seeds[1]
	n2.wipe()
	seeds[2].stop() // it is said with only one of the others up
	n2.start()
	_, err := n2.bootstrap(t.Context())
	wantError(t, err, "node n1 belongs to cluster "+cluster.ClusterID, "knows n2 with another data directory", "remove n2 from the cluster", "--join")
	if id := n2.st.identity(); id.ClusterID != "" {
		t.Fatalf("it wrote %+v", id)
	}
	// C60: neither end lets Raft pass, whatever the replaced disk claims.
	n1 := seeds[0]
	n1.net.raftLayer()
	n2.net.raftLayer()
	old := cluster.Initial[1]
	_, err = n1.net.raftLayer().Dial(dialAddress(serverID(old.ID, old.Instance), raft.ServerAddress(old.ClusterAddr)), longStop)
	wantError(t, err, "refused")
	_, err = n2.net.raftLayer().Dial(dialAddress(n1.st.identity().ServerID(), raft.ServerAddress(n1.addr)), longStop)
	wantError(t, err, "does not belong to a cluster yet")
}

func TestTwoOfThreeWipedMakeNoSecondCluster(t *testing.T) {
	seeds := newSeeds(t, "n1", "n2", "n3")
	form(t, seeds...)
	for _, s := range seeds[1:] {
		s.wipe()
		s.start()
	}
	for _, s := range seeds[1:] {
		_, err := s.bootstrap(t.Context())
		wantError(t, err, "node n1 belongs to cluster", "remove "+s.id)
		if s.st.identity().ClusterID != "" {
			t.Fatal("a second cluster")
		}
	}
}

func TestC43NodeOfAnotherClusterIsRefused(t *testing.T) {
	foreign := newSeeds(t, "n3")
	form(t, foreign...)
	seeds := newSeeds(t, "n1", "n2", "n3")
	for _, s := range seeds[:2] {
		s.list = []member{seeds[0].list[0], seeds[0].list[1], {ID: "n3", ClusterAddr: foreign[0].addr}}
		s.start()
	}
	for _, s := range seeds[:2] {
		_, err := s.bootstrap(t.Context())
		wantError(t, err, "node n3 belongs to another cluster already", "--join", "empty the data directory of n3")
	}
	// The other way round: a node with state ignores the list and stays what it
	// is, and no connection of its passes.
	_, err := foreign[0].net.raftLayer().Dial(dialAddress(seeds[0].st.identity().ServerID(), raft.ServerAddress(seeds[0].addr)), longStop)
	wantError(t, err, "refused")
}

// TestReplacedWhileForming replaces n3 after n1 has decided and before n2 has.
func TestReplacedWhileForming(t *testing.T) {
	seeds := newSeeds(t, "n1", "n2", "n3")
	n1, n2, n3 := seeds[0], seeds[1], seeds[2]
	for _, s := range seeds {
		s.start()
	}
	if _, err := n1.bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	n3.wipe()
	n3.start()
	_, err := n2.bootstrap(t.Context())
	wantError(t, err, "node n1 belongs to cluster", "the data directory of n3 was replaced")
	_, err = n3.bootstrap(t.Context())
	wantError(t, err, "knows n3 with another data directory", "remove n3")
}

func TestListsMustAgree(t *testing.T) {
	seeds := newSeeds(t, "n1", "n2", "n3")
	n1, n2 := seeds[0], seeds[1]
	n2.list = n2.list[:2]
	for _, s := range seeds {
		s.start()
	}
	run := n1.begin(t.Context())
	n1.log.wait(t, "n2 (", "its --initial-cluster is another list")
	ctx, cancel := context.WithCancel(t.Context())
	run2 := n2.begin(ctx)
	n2.log.wait(t, "n1 (", "its --initial-cluster is another list")
	cancel()
	await(t, run2)
	// Corrected, it goes on.
	n2.stop()
	n2.list = n1.list
	n2.start()
	run2 = n2.begin(t.Context())
	for _, r := range []<-chan outcome{run, run2} {
		if o := await(t, r); o.err != nil {
			t.Fatal(o.err)
		}
	}
	// An empty node with another list meets one that has decided.
	n3 := seeds[2]
	n3.list = n3.list[1:]
	_, err := n3.bootstrap(t.Context())
	wantError(t, err, "--initial-cluster", "was made with another list", formatMembers(n1.list))
}

func TestBootstrapRefusesAtOnce(t *testing.T) {
	seeds := newSeeds(t, "n1", "n2", "n3")
	for _, s := range seeds {
		s.start()
	}
	n1 := seeds[0]
	full := n1.list
	n1.list = nil
	_, err := n1.bootstrap(t.Context())
	wantError(t, err, "--initial-cluster: needed", "--join")
	n1.list = full[1:]
	_, err = n1.bootstrap(t.Context())
	wantError(t, err, "lacks this node", "--node-id n1")
	n1.list = append([]member{{ID: "n2", ClusterAddr: "127.0.0.1:1"}}, full...)
	_, err = n1.bootstrap(t.Context())
	wantError(t, err, "n2 is listed twice")
}

func TestCopiedDataDirectoryIsRefused(t *testing.T) {
	seeds := newSeeds(t, "n1", "n2")
	for _, s := range seeds {
		s.start()
	}
	r := seeds[1].st.record
	r.Instance = seeds[0].st.record.Instance
	if err := seeds[1].st.save(r); err != nil {
		t.Fatal(err)
	}
	_, err := seeds[0].bootstrap(t.Context())
	wantError(t, err, "--data-dir", "n1 and n2", "same instance ID")
}

func TestAddressThatLeadsToAnotherNode(t *testing.T) {
	seeds := newSeeds(t, "n1", "n2", "n3")
	n1 := seeds[0]
	for _, s := range seeds {
		s.start()
	}
	n1.list = []member{n1.list[0], {ID: "n2", ClusterAddr: n1.list[2].ClusterAddr}, {ID: "n3", ClusterAddr: n1.list[1].ClusterAddr}}
	ctx, cancel := context.WithCancel(t.Context())
	run := n1.begin(ctx)
	n1.log.wait(t, "n2 (", "node n3 answers there")
	cancel()
	await(t, run)
	if n1.st.identity().ClusterID != "" {
		t.Fatal("it bootstrapped")
	}
}

func TestAutoFloorNeedsRightClocks(t *testing.T) {
	t.Run("never set", func(t *testing.T) {
		s := newSeeds(t, "n1", "n2")[0]
		s.auto, s.now = true, func() time.Time { return earliestClock.Add(-time.Second) }
		s.start()
		_, err := s.bootstrap(t.Context())
		wantError(t, err, "--token-floor", "2025-12-31T23:59:59Z")
	})
	t.Run("a number needs no clock", func(t *testing.T) {
		s := newSeeds(t, "n1")[0]
		s.now = func() time.Time { return time.Unix(0, 0) }
		form(t, s)
	})
	t.Run("another node's differs", func(t *testing.T) {
		seeds := newSeeds(t, "n1", "n2")
		var mu sync.Mutex
		wrong := 75 * time.Second
		seeds[1].now = func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return time.Now().Add(wrong)
		}
		var runs []<-chan outcome
		for _, s := range seeds {
			s.auto = true
			s.start()
			runs = append(runs, s.begin(t.Context()))
		}
		// Both say of the other by how much, and go on when the clock is set.
		seeds[0].log.wait(t, "n2 (", "its clock is 1m1", "--token-floor auto allows 1m0s")
		mu.Lock()
		wrong = 50 * time.Second
		mu.Unlock()
		for _, run := range runs {
			if o := await(t, run); o.err != nil {
				t.Fatal(o.err)
			}
		}
	})
}

func TestClockDifference(t *testing.T) {
	before := time.Date(2026, 5, 1, 0, 0, 0, 500_000, time.UTC)
	after := before.Add(time.Second)
	for _, tt := range []struct{ theirs, want time.Duration }{
		{0, 0}, {time.Second, 0}, {500 * time.Millisecond, 0},
		{-10 * time.Second, 10*time.Second - time.Millisecond + 500*time.Microsecond},
		{11 * time.Second, 10*time.Second - 500*time.Microsecond},
	} {
		s := peerStatus{WallMS: before.Add(tt.theirs).UnixMilli()}
		if got := clockDifference(s, before, after); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.theirs, got, tt.want)
		}
	}
}
