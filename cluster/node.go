package cluster

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/highwater/highwater/fsm"
	"github.com/highwater/highwater/lease"
)

const (
	// commitTimeout is how often, at least, followers hear what is committed.
	commitTimeout = 20 * time.Millisecond
	// maxAppendEntries is how many entries of up to a MiB are sent at once to
	// a node that has fallen behind.
	maxAppendEntries = 32
	// A snapshot is taken when this many entries, or bytes of them, have been
	// added since the last, and trailingLogs entries are kept for nodes that are
	// a little behind.
	snapshotThreshold = 16384
	snapshotBytes     = 64 << 20
	// entryWeight is what an entry counts for beside its bytes.
	entryWeight  = snapshotBytes / snapshotThreshold
	trailingLogs = 2048

	// transferTimeout bounds the handing over of leadership in Close.
	transferTimeout = 3 * time.Second
	// readyAge is how old a node's state may be for it to be ready.
	readyAge = 2 * time.Second
	// recentPeer is how long ago another node must have answered to be given
	// the leadership.
	recentPeer = 3 * time.Second
)

// Node is one node of a cluster.
type Node struct {
	cfg      Config
	listed   []member // --initial-cluster
	logger   hclog.Logger
	stores   *stores
	network  *network
	peers    *peers
	machine  *fsm.Machine
	raft     atomic.Pointer[raft.Raft] // nil until the cluster is formed
	serverID raft.ServerID

	leader    atomic.Pointer[leaderView] // never nil
	epoch     atomic.Pointer[epoch]      // nil while this node does not lead
	observing sync.Mutex
	look      chan struct{} // holds one: look at Raft
	currency  currency

	linkMu sync.Mutex
	link   *outbound // to the leader, the last one opened

	inboundMu sync.Mutex
	inbound   map[raft.ServerID]*inbound

	unsaved   atomic.Int64 // bytes and weight of entries since the last snapshot
	snapshots chan struct{}

	ctx     context.Context // ended by Close and by fail
	cancel  context.CancelFunc
	working sync.WaitGroup
	spawnMu sync.Mutex
	closing bool // nothing is started any more

	failOnce sync.Once
	done     chan struct{}
	err      error

	closeOnce sync.Once
	closeErr  error
}

// Open opens the stores and the cluster port, and starts the node. It returns
// before the cluster is formed, or a leader known: what is asked of the node
// meanwhile waits for that. ctx bounds nothing beyond Open itself.
func Open(ctx context.Context, config Config) (_ *Node, err error) {
	defer func() {
		if err != nil && config.ClusterListener != nil {
			config.ClusterListener.Close()
		}
	}()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	listed, err := config.members()
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg:       config,
		listed:    listed,
		logger:    config.Logger,
		look:      make(chan struct{}, 1),
		snapshots: make(chan struct{}, 1),
		inbound:   make(map[raft.ServerID]*inbound),
		done:      make(chan struct{}),
	}
	n.leader.Store(&leaderView{changed: make(chan struct{})})
	n.machine = fsm.NewMachine(n.fail, n.applied)
	n.ctx, n.cancel = context.WithCancel(context.Background())

	if n.stores, err = openStores(config.DataDir, config.LogStore, config.Logger); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.stores.Close()
		}
	}()
	if err := n.stores.adoptNodeID(config.NodeID); err != nil {
		return nil, err
	}
	n.stores.onFailure(n.fail)
	n.serverID = n.stores.identity().ServerID()

	_, advertise := config.advertise(listed)
	n.network, err = newNetwork(networkConfig{
		Listener:       config.ClusterListener,
		Listen:         config.ClusterListen,
		Advertise:      advertise,
		HTTPAddr:       config.HTTPAdvertise,
		Version:        config.Version,
		Identity:       n.stores.identity,
		Members:        n.members,
		InitialCluster: listed,
		Dial:           config.Dial,
		Now:            config.Now,
		Logger:         config.Logger.Named("network"),
	})
	if err != nil {
		return nil, err
	}
	n.network.serveStatus(n.ownStatus)
	n.peers = newPeers(n.network, n.members)
	n.spawn(n.run)
	return n, nil
}

// run forms the cluster, or finds that it is formed, starts Raft, and keeps an
// eye on it.
func (n *Node) run() {
	id, err := bootstrap(n.ctx, bootstrapConfig{
		NodeID:         n.cfg.NodeID,
		InitialCluster: n.listed,
		AutoFloor:      n.cfg.AutoFloor,
		Now:            n.cfg.Now,
		Logger:         n.logger,
	}, n.stores, n.network)
	if n.ctx.Err() != nil {
		return
	}
	if err == nil {
		err = n.startRaft(id)
	}
	if err != nil {
		n.fail(err)
		return
	}
	n.network.onForward(n.serveForward)
	n.peers.start()
	n.spawn(n.takeSnapshots)
	n.watch()
}

func (n *Node) startRaft(id identity) error {
	logger := n.logger.Named("raft")
	conf := raft.DefaultConfig()
	conf.LocalID = id.ServerID()
	conf.ProtocolVersion = 3
	conf.HeartbeatTimeout = n.cfg.RaftTimeout
	conf.ElectionTimeout = n.cfg.RaftTimeout
	conf.LeaderLeaseTimeout = n.cfg.RaftTimeout
	conf.CommitTimeout = min(commitTimeout, n.cfg.RaftTimeout/2)
	conf.MaxAppendEntries = maxAppendEntries
	conf.ShutdownOnRemove = false
	conf.SnapshotThreshold = math.MaxUint64 // see takeSnapshots
	conf.TrailingLogs = trailingLogs
	conf.NoLegacyTelemetry = true
	conf.Logger = logger
	transport := newTransport(n.network, n.stores, logger)
	r, err := raft.NewRaft(conf, n.machine, n.stores.log, n.stores.stable, n.stores.snapshots, replicator{transport})
	if err != nil {
		transport.Close()
		return fmt.Errorf("--data-dir: %s: %w", n.cfg.DataDir, err)
	}
	n.raft.Store(r)
	return nil
}

// members is the current configuration; empty before there is one.
func (n *Node) members() []member {
	r := n.raft.Load()
	if r == nil {
		return nil
	}
	servers := r.GetConfiguration().Configuration().Servers
	members := make([]member, 0, len(servers))
	for _, s := range servers {
		id, instance := splitServerID(s.ID)
		members = append(members, member{ID: id, Instance: instance, ClusterAddr: string(s.Address)})
	}
	return members
}

// fail ends the node: it must not go on. It never blocks, for it is called from
// Raft's own goroutines.
func (n *Node) fail(err error) {
	n.failOnce.Do(func() {
		n.err = err
		close(n.done)
		n.cancel()
		n.logger.Error("the node cannot go on", "error", err)
	})
}

// Done is closed when the node must end; Err says why then. The owner closes the
// node, and the process ends.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err is nil until Done is closed.
func (n *Node) Err() error {
	select {
	case <-n.done:
		return n.err
	default:
		return nil
	}
}

// spawn starts a goroutine that Close waits for; false if that waits already.
func (n *Node) spawn(f func()) bool {
	n.spawnMu.Lock()
	defer n.spawnMu.Unlock()
	if n.closing {
		return false
	}
	n.working.Go(f)
	return true
}

// lookAgain makes watch look at Raft.
func (n *Node) lookAgain() {
	select {
	case n.look <- struct{}{}:
	default:
	}
}

// applied counts the bytes of entries towards the next snapshot. It runs where
// entries are applied.
func (n *Node) applied(_ fsm.Outcome, size int) {
	if n.unsaved.Add(int64(size)+entryWeight) < snapshotBytes {
		return
	}
	select {
	case n.snapshots <- struct{}{}:
	default:
	}
}

// takeSnapshots takes a snapshot whenever many entries, or many bytes of them,
// were added: one entry can hold a thousand requests. It is the only place that
// does. Raft's own trigger is off, since a snapshot of the node's own must not
// end after one that was received meanwhile: Raft would take the older one's
// index for its last, append nothing any more, and vote for a candidate that
// lacks what this node has acknowledged (raft v1.7.3, setLastSnapshot).
func (n *Node) takeSnapshots() {
	for {
		select {
		case <-n.snapshots:
		case <-n.ctx.Done():
			return
		}
		if n.unsaved.Load() < snapshotBytes {
			continue
		}
		n.unsaved.Store(0)
		n.stores.installs.exclusive.Lock()
		err := n.await(n.ctx, n.raft.Load().Snapshot())
		if n.ctx.Err() != nil {
			return // Raft may still be writing, so nothing may be installed either
		}
		n.stores.installs.exclusive.Unlock()
		if err != nil {
			// Raft has logged why. Not at once again: it may take a while until
			// it can (a change of configuration that is not committed yet).
			n.unsaved.Add(snapshotBytes * 3 / 4)
		}
	}
}

// await waits for a future of Raft's, or for the end of ctx or the node: Raft
// leaves some unanswered at its shutdown.
func (n *Node) await(ctx context.Context, f raft.Future) error {
	answered := make(chan error, 1)
	go func() { answered <- f.Error() }()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-n.ctx.Done():
		return errStopping
	}
}

// TransferLeadership hands leadership over to the most current of the other
// nodes, and returns when that one leads. On a node that does not lead it is
// refused.
func (n *Node) TransferLeadership(ctx context.Context) error {
	l := n.leader.Load()
	if !l.self {
		return &lease.Error{Code: lease.CodeRefused, Detail: "node " + n.cfg.NodeID + " does not lead", Leader: l.node}
	}
	r := n.raft.Load()
	var future raft.Future
	if to, ok := n.successor(); ok {
		future = r.LeadershipTransferToServer(serverID(to.ID, to.Instance), raft.ServerAddress(to.ClusterAddr))
	} else {
		future = r.LeadershipTransfer()
	}
	if err := n.await(ctx, future); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &lease.Error{Code: lease.CodeRefused, Detail: "leadership was not handed over: " + err.Error(), Leader: l.node}
	}
	for {
		l := n.leader.Load()
		if l.known() && !l.self {
			return nil
		}
		select {
		case <-l.changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-n.ctx.Done():
			return n.failure(ctx, errEnded, false)
		}
	}
}

// successor is the other node that has answered lately and has applied most.
// Raft's own choice does not ask whether the node is there.
func (n *Node) successor() (member, bool) {
	var best member
	var applied uint64
	for _, m := range n.members() {
		if serverID(m.ID, m.Instance) == n.serverID {
			continue
		}
		status, ago, ok := n.peers.latest(m.ID)
		if ok && ago < recentPeer && (best.ID == "" || status.AppliedIndex > applied) {
			best, applied = m, status.AppliedIndex
		}
	}
	return best, best.ID != ""
}

// Close hands leadership over if the node leads and another can, then stops it.
// Requests that are under way end as of unknown outcome. Idempotent.
func (n *Node) Close(ctx context.Context) error {
	n.closeOnce.Do(func() { n.closeErr = n.close(ctx) })
	return n.closeErr
}

func (n *Node) close(ctx context.Context) error {
	if n.leader.Load().self && len(n.members()) > 1 && n.ctx.Err() == nil {
		transfer, cancel := context.WithTimeout(ctx, transferTimeout)
		if err := n.TransferLeadership(transfer); err != nil {
			n.logger.Warn("leadership was not handed over", "error", err)
		}
		cancel()
	}
	return n.stop(ctx)
}

// stop ends the node, whoever leads.
func (n *Node) stop(ctx context.Context) error {
	n.cancel()
	n.spawnMu.Lock()
	n.closing = true
	n.spawnMu.Unlock()
	n.peers.stop()
	stopped := make(chan error, 1)
	go func() { stopped <- n.shutdown() }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the node did not stop in time: %w", ctx.Err())
	}
}

// shutdown stops everything and waits for it.
func (n *Node) shutdown() error {
	var down raft.Future
	if r := n.raft.Load(); r != nil {
		down = r.Shutdown()
	}
	n.network.Close() // what Raft waits for at other nodes ends with it
	n.working.Wait()
	if r := n.raft.Load(); r != nil && down == nil { // it has been started since
		down = r.Shutdown()
	}
	if down != nil {
		down.Error()
	}
	return n.stores.Close()
}

// Names returns the node's ID and the leader's, which is empty while none is
// known.
func (n *Node) Names() (node, leader string) { return n.cfg.NodeID, n.leader.Load().node }

// Ready says why the node is not ready to serve: it knows no leader, is not
// caught up, or the cluster may not grant anything yet.
func (n *Node) Ready() error {
	notReady := func(format string, args ...any) error {
		return &lease.Error{
			Code:       lease.CodeNoLeader,
			Detail:     fmt.Sprintf(format, args...),
			Leader:     n.leader.Load().node,
			Applied:    lease.AppliedNo,
			RetryAfter: time.Second,
		}
	}
	if err := n.Err(); err != nil {
		return notReady("the node cannot go on: %v", err)
	}
	if n.raft.Load() == nil {
		return notReady("the cluster is not formed yet")
	}
	l := n.leader.Load()
	if !l.known() {
		return notReady("no leader is known")
	}
	if l.self {
		if e := n.epoch.Load(); e == nil || !e.ready.Load() {
			return notReady("the node is taking over the leadership")
		}
	}
	if age := n.age(); age > max(readyAge, 4*n.cfg.RaftTimeout) {
		if age == unknownAge {
			return notReady("the node has not caught up with the leader yet")
		}
		return notReady("the node has not caught up with the leader since %v", age.Round(time.Millisecond))
	}
	if !n.machine.Info().FloorSet {
		return notReady("the cluster has no token floor yet")
	}
	return nil
}
