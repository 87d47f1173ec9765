package cluster

import (
	"context"
	"sync"
	"time"
)

// peerInterval is how often each other member is asked, and how long it has to
// answer.
const peerInterval = time.Second

// peerStatus is what a node tells others of itself. The first part is known
// before there is a cluster, and the network fills it in.
type peerStatus struct {
	ServerID  string `json:"server_id"`
	ClusterID string `json:"cluster_id,omitempty"` // empty before the bootstrap
	HTTPAddr  string `json:"http_addr,omitempty"`
	Version   string `json:"version,omitempty"`
	WallMS    int64  `json:"wall_ms"` // the node's wall clock, Unix milliseconds
	HasState  bool   `json:"has_state"`
	// Initial is the configuration that the cluster was bootstrapped with; of a
	// node without state, what its --initial-cluster says.
	Initial []member `json:"initial,omitempty"`

	Role         string `json:"role,omitempty"` // leader, follower, nonvoter
	Leader       string `json:"leader,omitempty"`
	Term         uint64 `json:"term,omitempty"`
	LastIndex    uint64 `json:"last_index,omitempty"`
	CommitIndex  uint64 `json:"commit_index,omitempty"`
	AppliedIndex uint64 `json:"applied_index,omitempty"`
	Digest       uint64 `json:"digest,omitempty"` // of the state at AppliedIndex
	Healthy      bool   `json:"healthy,omitempty"`
}

// peers asks every other member once a second how it is, and keeps the latest
// answer of each. It is for people and for hints; nothing relies on it.
type peers struct {
	network *network
	members func() []member
	cancel  context.CancelFunc
	done    chan struct{}

	mu     sync.Mutex
	heard  map[string]heardPeer // by node ID
	closed bool
}

type heardPeer struct {
	status peerStatus
	at     time.Time // monotonic
}

// newPeers asks nobody before start. members is the current configuration, this
// node included.
func newPeers(n *network, members func() []member) *peers {
	return &peers{network: n, members: members, heard: make(map[string]heardPeer)}
}

func (p *peers) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.done = cancel, make(chan struct{})
	go p.run(ctx)
}

// stop ends the asking and waits for it. Idempotent.
func (p *peers) stop() {
	p.mu.Lock()
	p.closed = true
	cancel, done := p.cancel, p.done
	p.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
}

// latest is the last status that a member gave, and how long ago.
func (p *peers) latest(nodeID string) (status peerStatus, heardAgo time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, ok := p.heard[nodeID]
	if !ok {
		return peerStatus{}, 0, false
	}
	return h.status, time.Since(h.at), true
}

func (p *peers) run(ctx context.Context) {
	defer close(p.done)
	ticker := time.NewTicker(peerInterval)
	defer ticker.Stop()
	for {
		p.round(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// round asks all members at the same time. A node that does not answer keeps
// its last answer, which grows old.
func (p *peers) round(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, peerInterval)
	defer cancel()
	self := p.network.cfg.Identity().NodeID
	members := p.members()
	var asking sync.WaitGroup
	current := make(map[string]bool, len(members))
	for _, m := range members {
		if m.ID == self {
			continue
		}
		current[m.ID] = true
		asking.Go(func() {
			status, err := p.network.status(ctx, m.ClusterAddr)
			if err != nil || status.ServerID != string(serverID(m.ID, m.Instance)) {
				return
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.heard[m.ID] = heardPeer{status: status, at: time.Now()}
		})
	}
	asking.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.heard {
		if !current[id] {
			delete(p.heard, id)
		}
	}
}
