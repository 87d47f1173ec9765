package cluster

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/highwater/highwater/fsm"
	"github.com/highwater/highwater/lease"
)

const (
	// maxEntry is how many bytes of commands an entry takes before the next
	// request waits for the next entry; the request that reaches it still fits.
	maxEntry = 1 << 20
	// maxWaiting is how many bytes of requests wait for a proposer before more
	// are refused.
	maxWaiting = 64 << 20
	// enqueueTimeout bounds the handing of an entry to Raft, which is stuck for
	// as long as a write of its log is.
	enqueueTimeout = 5 * time.Second
	// transferPause is how long a proposer waits before it tries again while
	// leadership is being handed over.
	transferPause = 5 * time.Millisecond
)

// fate is what became of one sending of a request.
type fate byte

const (
	// fateDone: it was executed; there is a result, which may be a refusal.
	fateDone fate = 1
	// fateNotApplied: it changed nothing and will change nothing.
	fateNotApplied fate = 2
	// fateUnknown: it may have been executed, or may yet be.
	fateUnknown fate = 3
	// fateRefused: the leader refused it before the log and says why. This
	// sending changed nothing; an earlier one of the same request may have.
	fateRefused fate = 4
)

// fateOf sorts the errors of raft.Apply. Only the three that Raft gives before
// it has stored the entry anywhere are certain: ErrNotLeader and
// ErrLeadershipTransferInProgress from its main loop in place of the append,
// ErrEnqueueTimeout when the main loop never took it. ErrLeadershipLost is given
// to all entries in flight at the step down, and a later leader may commit those,
// or a majority may have them already; ErrRaftShutdown also to entries that are
// committed; an error of the log store leaves open what is on the disk.
func fateOf(err error) fate {
	switch {
	case err == nil:
		return fateDone
	case errors.Is(err, raft.ErrNotLeader),
		errors.Is(err, raft.ErrLeadershipTransferInProgress),
		errors.Is(err, raft.ErrEnqueueTimeout):
		return fateNotApplied
	}
	return fateUnknown
}

// callKind says what a call asks for.
type callKind byte

const (
	callWrite callKind = 1 // data is a command
	callRead  callKind = 2 // data is a query
	callProbe callKind = 3 // is answered at once with how current the leader is
)

// States of a call.
const (
	callWaiting   = 0
	callTaken     = 1
	callWithdrawn = 2
)

// take says whether the call may be sent or proposed now: nobody has withdrawn it.
func (c *call) take() bool { return c.state.CompareAndSwap(callWaiting, callTaken) }

// withdraw makes sure that the call is never sent nor proposed; false if that
// cannot be said any more.
func (c *call) withdraw() bool { return c.state.CompareAndSwap(callWaiting, callWithdrawn) }

// call is one sending of one request to one leader. It is finished exactly once,
// unless nobody can tell any more what became of it.
type call struct {
	kind callKind
	// grants: an acquire or a next, held until grants may start.
	grants bool
	data   []byte
	// state is decided once: by who is about to send or propose the call
	// (callTaken), or by who waits for it and gives up before (callWithdrawn).
	state atomic.Int32

	// The outcome, valid when done has been received from.
	fate    fate
	refused *lease.Error  // done, by a refusal before the log
	result  fsm.Result    // done, a write on this node
	raw     []byte        // done or refused, by another node: the encoded result or answer
	doubted bool          // done, after a sending whose fate is unknown
	done    chan struct{} // holds one

	// Of a call that another node sent here: where the outcome goes.
	from  *inbound
	query fsm.Query

	id uint64 // on the connection between the two nodes

	// Of a call that is sent to another node.
	link *outbound
	term uint64 // of the leader that it is meant for
}

// finish tells the outcome. The call must not be touched afterwards: on this
// node it may be in use for another request already.
func (c *call) finish(f fate) {
	c.fate = f
	if in := c.from; in != nil {
		in.add(c)
		in.signal()
		return
	}
	c.done <- struct{}{}
}

// weight is about the memory that a waiting call takes, in bytes.
func (c *call) weight() int { return len(c.data) + 256 }

// add queues calls for the proposer, in order. It returns false, and has queued
// none, if the epoch is over.
func (e *epoch) add(calls ...*call) bool {
	var refused []*call
	e.mu.Lock()
	if e.over {
		e.mu.Unlock()
		return false
	}
	for _, c := range calls {
		if e.waiting+c.weight() > maxWaiting {
			refused = append(refused, c)
			continue
		}
		e.waiting += c.weight()
		if c.grants && !e.granting {
			e.held = append(e.held, c)
		} else {
			e.queue = append(e.queue, c)
		}
	}
	e.mu.Unlock()
	e.signal()
	for _, c := range refused {
		c.refused = errWaiting
		c.finish(fateRefused)
	}
	return true
}

// errWaiting refuses a call that was never proposed.
var errWaiting = &lease.Error{
	Code:       lease.CodeTooBusy,
	Detail:     fmt.Sprintf("the limit of %d MiB of requests that wait for the leader is reached", maxWaiting>>20),
	RetryAfter: time.Second,
}

// take returns what waits, up to maxEntry bytes and one call more. The returned
// slice is good until the next call.
func (e *epoch) take() []*call {
	e.mu.Lock()
	defer e.mu.Unlock()
	n, size := 0, 0
	for n < len(e.queue) && size < maxEntry {
		if e.queue[n].kind == callWrite {
			size += len(e.queue[n].data)
		}
		e.waiting -= e.queue[n].weight()
		n++
	}
	if n == len(e.queue) {
		e.queue, e.batch = e.batch[:0], e.queue
		return e.batch
	}
	e.batch = append(e.batch[:0], e.queue[:n]...)
	e.queue = append(e.queue[:0], e.queue[n:]...)
	return e.batch
}

// release lets the held calls into the queue, before those that came later.
func (e *epoch) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.granting = true
	e.queue = append(e.held, e.queue...)
	e.held = nil
}

// propose makes one entry of the calls, none for a tick, and answers them when
// it is committed. It returns false if the epoch is over with it.
func (e *epoch) propose(calls []*call) bool {
	n := e.node
	live := calls[:0]
	for _, c := range calls {
		if c.take() {
			live = append(live, c)
		}
	}
	if len(live) == 0 && len(calls) > 0 {
		return true
	}
	outcome, f := e.commit(live)
	if f == fateDone && outcome.Void {
		f = fateNotApplied
	}
	writes := 0
	for _, c := range live {
		if c.kind == callWrite {
			writes++
		}
	}
	if f == fateDone && len(outcome.Results) != writes {
		n.fail(fmt.Errorf("an entry of %d commands gave %d results", writes, len(outcome.Results)))
		f = fateUnknown
	}
	if f != fateDone {
		for _, c := range live {
			c.finish(f)
		}
		return false
	}
	// The clock that the entry was stamped with: the state has all that was
	// acknowledged before.
	n.currency.mark(e.lastStamp)
	e.lastEntry = time.Now()
	e.info = n.machine.Info()
	i := 0
	e.answering = e.answering[:0]
	for _, c := range live {
		if c.kind == callWrite {
			c.result = outcome.Results[i]
			i++
		}
		in := c.from
		if in == nil {
			c.finish(fateDone)
			continue
		}
		// What goes to one node travels together.
		c.fate = fateDone
		in.add(c)
		if !slices.Contains(e.answering, in) {
			e.answering = append(e.answering, in)
		}
	}
	for _, in := range e.answering {
		in.signal()
	}
	return true
}

// commit stamps and proposes an entry, and waits for what becomes of it. While
// leadership is being handed over it holds the calls and tries again: they may
// still be the first of this leader's if the other does not take over.
func (e *epoch) commit(calls []*call) (fsm.Outcome, fate) {
	size := 0
	e.commands = e.commands[:0]
	for _, c := range calls {
		if c.kind == callWrite {
			e.commands = append(e.commands, c.data)
			size += len(c.data)
		}
	}
	for {
		// Raft keeps the entry's bytes, so they are not reused.
		entry := make([]byte, 0, size+3*len(e.commands)+entryOverhead)
		// The clock is read after the last call was taken: what an entry ends
		// or grants, it ends or grants as of a time when all of them were here.
		e.lastStamp = time.Now()
		entry = fsm.AppendEntry(entry, e.term, e.at(e.lastStamp), e.node.cfg.Now().UnixMilli(), e.commands...)
		if hook := e.node.cfg.hooks.stamped; hook != nil {
			hook(len(e.commands))
		}
		outcome, err := e.node.apply(entry)
		if errors.Is(err, raft.ErrLeadershipTransferInProgress) && e.pause(transferPause) {
			continue
		}
		return outcome, fateOf(err)
	}
}

// entryOverhead is more than an entry has beside its commands and their lengths.
const entryOverhead = 48

// errStopping is for an entry that the node cannot wait for any longer.
var errStopping = errors.New("the node is stopping")

// apply proposes an entry to Raft and waits for its outcome, or for the end of
// the node: Raft leaves a future unanswered if it is shut down between the
// commit of an entry and its execution.
func (n *Node) apply(entry []byte) (fsm.Outcome, error) {
	future := n.raft.Load().Apply(entry, enqueueTimeout)
	answered := make(chan error, 1)
	go func() { answered <- future.Error() }()
	select {
	case err := <-answered:
		if err != nil {
			return fsm.Outcome{}, err
		}
	case <-n.ctx.Done():
		return fsm.Outcome{}, errStopping
	}
	if hook := n.cfg.hooks.committed; hook != nil {
		hook()
	}
	switch response := future.Response().(type) {
	case fsm.Outcome:
		return response, nil
	case error: // the state machine has stopped, and with it the node
		return fsm.Outcome{}, response
	default:
		return fsm.Outcome{}, fmt.Errorf("the state machine answered with a %T", response)
	}
}
