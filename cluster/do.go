package cluster

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/highwater/highwater/fsm"
	"github.com/highwater/highwater/lease"
)

const (
	// answerTimeout is how long a known leader may take to answer.
	answerTimeout = 10 * time.Second
	// releaseGrace is how long the answer to a request that cannot be repeated
	// is still waited for after another leader is known.
	releaseGrace = time.Second
	// minBackoff and maxBackoff are the pauses before a leader that did not
	// take a request is asked again, unless another one becomes known.
	minBackoff = 5 * time.Millisecond
	maxBackoff = 100 * time.Millisecond
)

// Acquire grants a free resource.
func (n *Node) Acquire(ctx context.Context, r lease.AcquireRequest) (lease.Lease, error) {
	if err := r.Check(); err != nil {
		return lease.Lease{}, err
	}
	command := fsm.Acquire{Resource: r.Resource, Holder: r.Holder, TTL: r.TTL.Milliseconds(), Metadata: r.Metadata}
	// One id for all sendings, so that a later one finds the lease that an
	// earlier one made. Read never fails.
	rand.Read(command.Request[:])
	result, err := n.write(ctx, request{kind: callWrite, grants: true, repeatable: true}, command)
	return result.Lease, err
}

// Renew keeps a lease.
func (n *Node) Renew(ctx context.Context, r lease.RenewRequest) (lease.Lease, error) {
	if err := r.Check(); err != nil {
		return lease.Lease{}, err
	}
	command := fsm.Renew{Resource: r.Resource, Token: r.Token, TTL: r.TTL.Milliseconds()}
	result, err := n.write(ctx, request{kind: callWrite, repeatable: true}, command)
	return result.Lease, err
}

// Release ends a lease. It is not sent again after an unknown outcome: a second
// one would find the lease gone, and could not tell by whom.
func (n *Node) Release(ctx context.Context, r lease.ReleaseRequest) error {
	if err := r.Check(); err != nil {
		return err
	}
	_, err := n.write(ctx, request{kind: callWrite}, fsm.Release{Resource: r.Resource, Token: r.Token})
	return err
}

// Next takes the next values of a sequence. Sent again after an unknown outcome
// it leaves a gap, which sequences may have.
func (n *Node) Next(ctx context.Context, r lease.NextRequest) (lease.Range, error) {
	if err := r.Check(); err != nil {
		return lease.Range{}, err
	}
	command := fsm.Next{Sequence: r.Name, Count: int64(r.Count)}
	result, err := n.write(ctx, request{kind: callWrite, grants: true, repeatable: true}, command)
	return result.Range, err
}

// request is what a node does for a caller, in as many sendings as it takes.
type request struct {
	kind       callKind
	grants     bool
	repeatable bool
}

func (n *Node) write(ctx context.Context, r request, command fsm.Command) (fsm.Result, error) {
	c := newCall(r)
	c.data = fsm.AppendCommand(c.data, command)
	c, err := n.do(ctx, r, c)
	if err != nil {
		return fsm.Result{}, err
	}
	defer c.free()
	result := c.result
	switch {
	case c.refused != nil:
		return fsm.Result{}, c.refused
	case c.raw != nil:
		if result, err = fsm.DecodeResult(c.raw); err != nil {
			return fsm.Result{}, malformed(err)
		}
	}
	switch {
	case result.Err == nil:
		return result, nil
	case c.doubted && result.Err.Applied == lease.AppliedNo:
		// True of the last sending, and not of those before.
		return fsm.Result{}, n.failure(ctx, &waitError{result.Err.Error()}, true)
	}
	return fsm.Result{}, result.Err
}

// read asks the state that the next entry leaves.
func (n *Node) read(ctx context.Context, query fsm.Query) (fsm.Answer, error) {
	r := request{kind: callRead, repeatable: true}
	c := newCall(r)
	c.data = fsm.AppendQuery(c.data, query)
	c, err := n.do(ctx, r, c)
	if err != nil {
		return fsm.Answer{}, err
	}
	defer c.free()
	var answer fsm.Answer
	switch {
	case c.refused != nil:
		return fsm.Answer{}, c.refused
	case c.raw != nil:
		if answer, err = fsm.DecodeAnswer(c.raw); err != nil {
			return fsm.Answer{}, malformed(err)
		}
	default:
		// The entry has been applied here. A state of later than that is right
		// as well.
		answer = n.machine.Query(query)
	}
	if answer.Err != nil {
		return fsm.Answer{}, answer.Err
	}
	return answer, nil
}

// malformed is for an answer of the leader's that this node cannot read.
func malformed(err error) *lease.Error {
	return &lease.Error{Code: lease.CodeInternal, Detail: err.Error(), Applied: lease.AppliedUnknown}
}

var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

func newCall(r request) *call {
	c := calls.Get().(*call)
	c.kind, c.grants = r.kind, r.grants
	return c
}

// free gives back a call whose outcome has been received. No other call may be:
// somebody could still finish it.
func (c *call) free() {
	const keep = 8 << 10
	data, done := c.data[:0], c.done
	if cap(data) > keep {
		data = nil
	}
	*c = call{data: data, done: done}
	calls.Put(c)
}

// again is a call for the next sending. The one before may still be in somebody's
// hands, with its bytes.
func (c *call) again(r request) *call {
	next := newCall(r)
	next.data = append(next.data, c.data...)
	return next
}

// do sends a request to the leader until its fate is known, and returns the call
// that was answered. The error is a *lease.Error or the context's. It takes at
// most the leader wait and answerTimeout together.
func (n *Node) do(ctx context.Context, r request, c *call) (*call, error) {
	w := waiting{node: n, ctx: ctx, end: time.Now().Add(n.cfg.LeaderWait + answerTimeout)}
	defer w.stop()
	var (
		unknown bool        // some sending may have been applied
		none    time.Time   // since when no leader is known, or none takes the request
		refused *leaderView // the last leader that did not take it
		backoff = minBackoff
	)
	for {
		if !time.Now().Before(w.end) {
			return nil, n.failure(ctx, errNoLeader, unknown)
		}
		l := n.leader.Load()
		if !l.known() {
			if none.IsZero() {
				none = time.Now()
			}
			if err := w.wait(l, none.Add(n.cfg.LeaderWait)); err != nil {
				return nil, n.failure(ctx, err, unknown)
			}
			continue
		}
		if refused != nil && !refused.same(l) {
			none, backoff = time.Time{}, minBackoff
		}
		sent := time.Now()
		n.dispatch(l, c)
		what, err := w.answer(l, c, r.repeatable)
		switch {
		case err != nil:
		case what == fateDone, what == fateRefused && !unknown:
			c.doubted = unknown
			return c, nil
		case what == fateRefused:
			// An earlier sending may have been applied all the same, so the
			// refusal is not the answer.
			c.refused, c.raw = nil, nil
		}
		unknown = unknown || what == fateUnknown
		if err == errMoved {
			c = c.again(r)
			continue
		}
		if err != nil {
			return nil, n.failure(ctx, err, unknown)
		}
		if unknown && !r.repeatable {
			return nil, n.failure(ctx, errNoAnswer, true)
		}
		if what == fateUnknown {
			// Whoever was sending it may still be reading it.
			c = c.again(r)
		} else {
			c.state.Store(callWaiting)
		}
		refused = l
		if none.IsZero() {
			none = sent
		}
		until := time.Now().Add(backoff)
		if last := none.Add(n.cfg.LeaderWait); until.After(last) {
			if !time.Now().Before(last) {
				return nil, n.failure(ctx, errNoLeader, unknown)
			}
			until = last
		}
		backoff = min(2*backoff, maxBackoff)
		if err := w.wait(l, until); err != nil && err != errNoLeader {
			return nil, n.failure(ctx, err, unknown)
		}
	}
}

// dispatch sends a call to the leader. A call that cannot be sent is finished at
// once, as not applied.
func (n *Node) dispatch(l *leaderView, c *call) {
	if l.self {
		if e := n.leads(l.term); e == nil || !e.add(c) {
			c.finish(fateNotApplied)
		}
		return
	}
	c.term = l.term
	if link := n.linkTo(l); link == nil || !link.add(c) {
		c.finish(fateNotApplied)
	}
}

// Reasons why a request is not, or not yet, answered.
var (
	errNoLeader = &waitError{"no leader is known"}
	errNoAnswer = &waitError{"the leader did not answer"}
	errMoved    = &waitError{"another node leads"}
	errEnded    = &waitError{"the node is stopping"}
)

type waitError struct{ detail string }

func (e *waitError) Error() string { return e.detail }

// failure is what the caller is told after the last sending.
func (n *Node) failure(ctx context.Context, err error, unknown bool) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e := &lease.Error{
		Code:       lease.CodeNoLeader,
		Detail:     err.Error(),
		Leader:     n.leader.Load().node,
		Applied:    lease.AppliedNo,
		RetryAfter: time.Second,
	}
	if unknown {
		e.Code, e.Applied = lease.CodeOutcomeUnknown, lease.AppliedUnknown
		e.Detail += "; the request may have been applied, or may yet be"
	}
	return e
}

// waiting is a request's one timer, and what can end its waiting.
type waiting struct {
	node  *Node
	ctx   context.Context
	end   time.Time // of all waiting
	timer *time.Timer
}

func (w *waiting) until(t time.Time) <-chan time.Time {
	if t.After(w.end) {
		t = w.end
	}
	if w.timer == nil {
		w.timer = time.NewTimer(time.Until(t))
	} else {
		w.timer.Reset(time.Until(t))
	}
	return w.timer.C
}

func (w *waiting) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// wait returns nil when another leader than l is known, or none any more, and
// errNoLeader at t.
func (w *waiting) wait(l *leaderView, t time.Time) error {
	select {
	case <-l.changed:
		return nil
	case <-w.until(t):
		return errNoLeader
	case <-w.ctx.Done():
		return w.ctx.Err()
	case <-w.node.ctx.Done():
		return errEnded
	}
}

// answer waits for the outcome of a call that was sent to l. With any error the
// call is not to be used again; the fate tells whether it can still become
// anything.
//
// If another leader becomes known, a request that is repeatable, or has not left
// yet, goes on to it at once (errMoved). Others wait a little longer for their
// answer. That nobody leads for a while is no reason to send again, since the
// same leader may be back.
func (w *waiting) answer(l *leaderView, c *call, repeatable bool) (fate, error) {
	changed := l.changed
	limit := time.Now().Add(answerTimeout)
	timer := w.until(limit)
	for {
		var reason error
		select {
		case <-c.done:
			return c.fate, nil
		case <-changed:
			now := w.node.leader.Load()
			changed = now.changed
			switch {
			case !now.known():
				timer = w.until(earlier(limit, time.Now().Add(w.node.cfg.LeaderWait)))
			case now.same(l):
				timer = w.until(limit)
			case repeatable:
				reason = errMoved
			case c.withdraw():
				return fateNotApplied, errMoved
			default:
				changed = nil
				timer = w.until(earlier(limit, time.Now().Add(releaseGrace)))
			}
		case <-timer:
			reason = errNoAnswer
		case <-w.ctx.Done():
			reason = w.ctx.Err()
		case <-w.node.ctx.Done():
			reason = errEnded
		}
		if reason == nil {
			continue
		}
		if c.withdraw() {
			return fateNotApplied, reason
		}
		select {
		case <-c.done: // at the last moment
			return c.fate, nil
		default:
		}
		if c.link != nil {
			c.link.forget(c)
		}
		return fateUnknown, reason
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
