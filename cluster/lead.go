package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/highwater/highwater/fsm"
	"github.com/highwater/highwater/lease"
)

const (
	// tickInterval is how old the last entry becomes, at most, while something
	// in the state has a deadline. An election takes back no more time than that.
	tickInterval = 500 * time.Millisecond
	// In the first earlyTicks of its leadership a leader writes them more often,
	// so that time goes on even if no leader lasts (C18).
	earlyTicks        = 500 * time.Millisecond
	earlyTickInterval = 100 * time.Millisecond
	// holdTime is how long acquire and next are held for grants to start. After
	// that the state machine says why they have not.
	holdTime = 5 * time.Second
	// observeInterval is how often a node looks at Raft unasked, in case a hint
	// was lost.
	observeInterval = 100 * time.Millisecond
	// verifyInterval is how often an idle leader makes sure that it is one.
	verifyInterval = 100 * time.Millisecond

	floorTimeout  = 2 * time.Second  // for the other nodes to tell their clocks
	floorRetry    = time.Second      // after the floor could not be chosen
	floorLogEvery = 10 * time.Second // that it could not
	// autoFloorDelay is the second, in ms of authority time, until grants above an
	// automatic floor, and one more for rounding.
	autoFloorDelay = 1001
)

// leaderView is who leads as far as this node knows. It is never changed, only
// replaced.
type leaderView struct {
	id      raft.ServerID // empty: nobody is known
	node    string        // its node ID
	addr    string        // its cluster port
	term    uint64
	self    bool
	changed chan struct{} // closed when another leader, or another term, is known
}

func (l *leaderView) known() bool { return l.id != "" }

func (l *leaderView) same(o *leaderView) bool { return l.id == o.id && l.term == o.term }

// watch keeps what the node knows of the leader up to date until the node ends.
func (n *Node) watch() {
	r := n.raft.Load()
	hints := make(chan raft.Observation, 1)
	observer := raft.NewObserver(hints, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState:
			return true
		}
		return false
	})
	r.RegisterObserver(observer)
	defer r.DeregisterObserver(observer)
	look := time.NewTicker(observeInterval)
	defer look.Stop()
	for {
		n.observe()
		select {
		case <-hints:
		case <-r.LeaderCh():
		case <-n.look:
		case <-look.C:
		case <-n.ctx.Done():
			return
		}
	}
}

// observe looks at Raft and draws the conclusions: who leads, and whether this
// node begins or ends an epoch. It may be called from any goroutine.
func (n *Node) observe() {
	n.observing.Lock()
	defer n.observing.Unlock()
	r := n.raft.Load()
	if r == nil || n.ctx.Err() != nil {
		return
	}
	// The three are read one after another. A mixture of two moments does no
	// harm: a request goes to a node that does not lead in that term, which
	// refuses it, or a lead entry tells that the term is another one. It is
	// corrected at the next look.
	state, term := r.State(), r.CurrentTerm()
	addr, id := r.LeaderWithID()
	self := n.serverID
	now := &leaderView{id: id, addr: string(addr), term: term}
	switch {
	case state == raft.Leader:
		now.id, now.self = self, true
	case id == self, state == raft.Shutdown:
		now.id = ""
	}
	before := n.leader.Load()
	if !before.same(now) {
		now.node, _ = splitServerID(now.id)
		now.changed = make(chan struct{})
		for _, m := range n.members() {
			if serverID(m.ID, m.Instance) == now.id {
				now.addr = m.ClusterAddr // dialled by the name that it has in the configuration
			}
		}
		n.leader.Store(now)
		close(before.changed)
	}
	if e := n.epoch.Load(); e != nil && (!now.self || e.term != term || e.isOver()) {
		n.epoch.Store(nil)
		e.stop()
	}
	if now.self && n.epoch.Load() == nil && n.Err() == nil {
		e := &epoch{node: n, term: term, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
		if n.spawn(e.run) {
			n.epoch.Store(e)
		}
	}
	n.keepLink(n.leader.Load())
}

// leads returns the epoch of this node's leadership in the given term, or nil
// if it does not lead in it. A node can be asked, as the leader, before it has
// seen itself that it is.
func (n *Node) leads(term uint64) *epoch {
	e := n.epoch.Load()
	if e == nil || e.term != term {
		n.observe()
		e = n.epoch.Load()
	}
	if e == nil || e.term != term {
		return nil
	}
	return e
}

// epoch is a stretch of this node's leadership in one Raft term, with one base
// of authority time and one proposer. It takes requests from its beginning, and
// proposes them after its lead entry has told the base. It ends with the first
// entry that did not become what it was proposed as; if the node leads all the
// same, a new epoch begins.
type epoch struct {
	node *Node
	term uint64

	stopped chan struct{} // closed by stop
	wake    chan struct{} // holds one
	ready   atomic.Bool   // the lead entry is there

	mu       sync.Mutex
	over     bool // nothing is taken any more
	queue    []*call
	held     []*call // acquire and next, until grants start
	granting bool
	waiting  int // bytes in queue and held

	// The proposer's own.
	baseNow   int64     // authority time, ms, as the lead entry found it
	baseAt    time.Time // this node's monotonic clock, read after that
	info      fsm.Info  // as of the last entry
	lastEntry time.Time
	lastStamp time.Time
	holdUntil time.Time
	batch     []*call
	commands  [][]byte
	answering []*inbound
}

// at is authority time, ms, at a reading of the monotonic clock.
func (e *epoch) at(t time.Time) int64 { return e.baseNow + t.Sub(e.baseAt).Milliseconds() }

// until is how long it is from t to an authority time.
func (e *epoch) until(now int64, t time.Time) time.Duration {
	return e.baseAt.Add(time.Duration(now-e.baseNow) * time.Millisecond).Sub(t)
}

func (e *epoch) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *epoch) isOver() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.over
}

// stop ends the epoch: what waits is not applied, and nothing is proposed any
// more, but for an entry that is on its way to Raft. That one is fenced by its
// term.
func (e *epoch) stop() {
	e.mu.Lock()
	first := !e.over
	e.over = true
	waiting := append(e.held, e.queue...)
	e.held, e.queue = nil, nil
	e.mu.Unlock()
	if first {
		close(e.stopped)
	}
	for _, c := range waiting {
		c.finish(fateNotApplied)
	}
}

// pause waits, and returns false if the epoch has ended.
func (e *epoch) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-e.stopped:
	case <-e.node.ctx.Done():
	}
	return false
}

// run is the proposer.
func (e *epoch) run() {
	defer func() {
		e.stop()
		e.node.lookAgain()
	}()
	if !e.lead() {
		return
	}
	if !e.info.FloorSet {
		e.node.spawn(e.setFloor)
	}
	e.node.spawn(e.verify)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-e.stopped:
			return
		case <-e.node.ctx.Done():
			return
		default:
		}
		now := time.Now()
		if !e.granting && (e.info.FloorSet && e.at(now) >= e.info.GrantsFrom || !now.Before(e.holdUntil)) {
			e.release()
		}
		calls := e.take()
		next := e.nextTick(now)
		if len(calls) > 0 || next <= 0 {
			if !e.propose(calls) {
				return
			}
			continue
		}
		if !e.granting {
			next = min(next, e.holdUntil.Sub(now))
		}
		timer.Reset(next)
		select {
		case <-e.wake:
		case <-timer.C:
		case <-e.stopped:
			return
		case <-e.node.ctx.Done():
			return
		}
	}
}

// nextTick is how long the proposer may wait for requests before time must go
// on without any. While nothing in the state has a deadline that is for ever.
func (e *epoch) nextTick(now time.Time) time.Duration {
	if !e.info.Live {
		return time.Hour
	}
	interval := tickInterval
	if now.Sub(e.baseAt) < earlyTicks {
		interval = earlyTickInterval
	}
	return min(e.lastEntry.Add(interval).Sub(now), e.until(e.info.Deadline, now))
}

// lead begins authority time: the lead entry's outcome tells the state's time
// behind everything that earlier leaders have written, and whether the entry was
// stored under the term that this epoch is for.
func (e *epoch) lead() bool {
	n := e.node
	for {
		asked := time.Now()
		outcome, err := n.apply(fsm.LeadEntry(n.cfg.Now().UnixMilli()))
		switch {
		case fateOf(err) == fateNotApplied && e.pause(transferPause):
			continue
		case err != nil || outcome.Term != e.term:
			return false
		}
		e.baseNow, e.baseAt = outcome.Now, time.Now()
		e.info = n.machine.Info()
		e.lastEntry = e.baseAt
		e.holdUntil = e.baseAt.Add(holdTime)
		n.currency.mark(asked)
		e.ready.Store(true)
		n.logger.Info("leads", "term", e.term, "authority_time_ms", e.baseNow, "leases", e.info.Leases)
		return true
	}
}

// setFloor gives a new cluster its token floor. Until that is done nothing is
// granted.
func (e *epoch) setFloor() {
	n := e.node
	var logged time.Time
	for {
		command, err := n.chooseFloor()
		if err == nil {
			c := &call{kind: callWrite, data: fsm.AppendCommand(nil, command), done: make(chan struct{}, 1)}
			if !e.add(c) {
				return
			}
			select {
			case <-c.done:
			case <-n.ctx.Done():
				return
			}
			switch {
			case c.fate == fateRefused: // too much waits, for the floor perhaps
				if !e.pause(floorRetry) {
					return
				}
				continue
			case c.fate != fateDone:
				return // and so is the epoch over
			}
			if err := c.result.Err; err != nil {
				n.fail(fmt.Errorf("--token-floor: %w", err))
				return
			}
			n.logger.Info("set the token floor", "floor", int64(command.Floor))
			return
		}
		if logged.IsZero() || time.Since(logged) >= floorLogEvery {
			logged = time.Now()
			n.logger.Error("nothing can be granted: the cluster has no token floor", "error", err)
		}
		if !e.pause(floorRetry) {
			return
		}
	}
}

// chooseFloor is the floor as --token-floor says. The automatic one is read from
// this node's clock, if that agrees with a majority's and is contradicted by
// none. A floor that is read and then late is only lower than it could be, and a
// later life of the cluster reads a higher one all the same.
func (n *Node) chooseFloor() (fsm.SetFloor, error) {
	if !n.cfg.AutoFloor {
		return fsm.SetFloor{Floor: n.cfg.TokenFloor}, nil
	}
	if err := checkClock(n.cfg.Now()); err != nil {
		return fsm.SetFloor{}, err
	}
	members := n.members()
	agree, err := n.clocksAgree(members)
	if err != nil {
		return fsm.SetFloor{}, err
	}
	if agree <= len(members)/2 {
		return fsm.SetFloor{}, fmt.Errorf("--token-floor: auto needs the clocks of a majority, and %d of %d nodes have told theirs", agree, len(members))
	}
	floor := lease.AutoFloor(n.cfg.Now().Unix())
	if floor > lease.MaxToken {
		return fsm.SetFloor{}, fmt.Errorf("--token-floor: auto gives %d at this node's clock, %s, and tokens end at %d",
			floor, n.cfg.Now().UTC().Format(time.RFC3339), int64(lease.MaxToken))
	}
	return fsm.SetFloor{Floor: floor, Delay: autoFloorDelay}, nil
}

// clocksAgree counts the members whose wall clock is near this node's, itself
// included. One that is not near is an error.
func (n *Node) clocksAgree(members []member) (int, error) {
	ctx, cancel := context.WithTimeout(n.ctx, floorTimeout)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	var wrong error
	agree := 1
	for _, m := range members {
		if serverID(m.ID, m.Instance) == n.serverID {
			continue
		}
		asking.Go(func() {
			before := n.cfg.Now()
			status, err := n.network.status(ctx, m.ClusterAddr)
			after := n.cfg.Now()
			mu.Lock()
			defer mu.Unlock()
			if err != nil || status.ServerID != string(serverID(m.ID, m.Instance)) {
				return
			}
			if difference := clockDifference(status, before, after); difference > maxClockDifference {
				wrong = fmt.Errorf("--token-floor: auto needs clocks that agree to %v, and node %s is %v away; set the clocks",
					maxClockDifference, m.ID, difference.Round(time.Second))
				return
			}
			agree++
		})
	}
	asking.Wait()
	return agree, wrong
}

// verify keeps an idle leader's knowledge of being one fresh, for the age of
// stale reads and nothing else: Raft can count a follower's word that was sent
// before the question. So a success vouches only for the time of the one before,
// and a node that was stopped does not take itself for current when it wakes.
func (e *epoch) verify() {
	var before time.Time // when the last successful question was asked
	for e.pause(verifyInterval) {
		if e.node.currency.age(0) < verifyInterval {
			before = time.Time{}
			continue
		}
		asked := time.Now()
		future := e.node.raft.Load().VerifyLeader()
		answered := make(chan error, 1)
		go func() { answered <- future.Error() }()
		select {
		case err := <-answered:
			if err != nil {
				before = time.Time{}
				continue
			}
		case <-e.stopped:
			return
		case <-e.node.ctx.Done():
			return
		}
		if !before.IsZero() {
			e.node.currency.mark(before)
		}
		before = asked
	}
}
