package cluster

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/highwater/highwater/fsm"
	"github.com/highwater/highwater/lease"
)

// Reads are linearizable, or stale where that is asked for: then they are
// answered from this node's state at once, without a leader too, together with
// its age.

// GetLease returns the live lease of a resource.
func (n *Node) GetLease(ctx context.Context, resource string, stale bool) (lease.Lease, time.Duration, error) {
	if err := lease.CheckName("resource", resource); err != nil {
		return lease.Lease{}, 0, err
	}
	answer, age, err := n.ask(ctx, fsm.GetLease{Resource: resource}, stale)
	if err != nil {
		return lease.Lease{}, age, err
	}
	return answer.Leases[0], age, nil
}

// ListLeases returns a page of live leases, and whether more follow it.
func (n *Node) ListLeases(ctx context.Context, p lease.Page, stale bool) ([]lease.Lease, bool, time.Duration, error) {
	if err := p.Check(); err != nil {
		return nil, false, 0, err
	}
	answer, age, err := n.ask(ctx, fsm.ListLeases{Page: p}, stale)
	return answer.Leases, answer.More, age, err
}

// GetToken tells what became of a token.
func (n *Node) GetToken(ctx context.Context, t lease.Token, stale bool) (lease.TokenInfo, time.Duration, error) {
	if err := lease.CheckToken("token", t); err != nil {
		return lease.TokenInfo{}, 0, err
	}
	answer, age, err := n.ask(ctx, fsm.GetToken{Token: t}, stale)
	return answer.Token, age, err
}

// GetSequence returns a sequence.
func (n *Node) GetSequence(ctx context.Context, name string, stale bool) (lease.Sequence, time.Duration, error) {
	if err := lease.CheckName("sequence", name); err != nil {
		return lease.Sequence{}, 0, err
	}
	answer, age, err := n.ask(ctx, fsm.GetSequence{Name: name}, stale)
	if err != nil {
		return lease.Sequence{}, age, err
	}
	return answer.Sequences[0], age, nil
}

// ListSequences returns a page of sequences, and whether more follow it.
func (n *Node) ListSequences(ctx context.Context, p lease.Page, stale bool) ([]lease.Sequence, bool, time.Duration, error) {
	if err := p.Check(); err != nil {
		return nil, false, 0, err
	}
	answer, age, err := n.ask(ctx, fsm.ListSequences{Page: p}, stale)
	return answer.Sequences, answer.More, age, err
}

// ask answers a query; the age is of a stale answer, and of a refusal too.
func (n *Node) ask(ctx context.Context, q fsm.Query, stale bool) (answer fsm.Answer, age time.Duration, err error) {
	if !stale {
		answer, err = n.read(ctx, q)
		if err != nil {
			return fsm.Answer{}, 0, err
		}
	} else {
		// The age first: the state can only be younger than it was then.
		age = n.age()
		if age == unknownAge {
			return fsm.Answer{}, unknownAge, errNeverCurrent
		}
		answer = n.machine.Query(q)
		if answer.Err != nil {
			return fsm.Answer{}, age, answer.Err
		}
	}
	// What is indexed below is there in every answer of this version's; a
	// leader of another one is not believed.
	switch q.(type) {
	case fsm.GetLease:
		if len(answer.Leases) != 1 {
			return fsm.Answer{}, age, errShape
		}
	case fsm.GetSequence:
		if len(answer.Sequences) != 1 {
			return fsm.Answer{}, age, errShape
		}
	}
	return answer, age, nil
}

var errShape = &lease.Error{Code: lease.CodeInternal, Detail: "the leader's answer is to another question", Applied: lease.AppliedNo}

// errNeverCurrent: the log of a node that has just started is not executed
// before a leader says how far it is committed, so its state is not an old one
// but any, and "nobody holds it" would be made up.
var errNeverCurrent = &lease.Error{
	Code:       lease.CodeNoLeader,
	Detail:     "this node has not heard from a leader since it started, so the age of its state is not known",
	Applied:    lease.AppliedNo,
	RetryAfter: time.Second,
}

// unknownAge is the age of a state that the node has not yet been able to
// compare with anybody's since it started.
const unknownAge = time.Duration(math.MaxInt64)

// age is an upper bound of how old the node's state is: all that was
// acknowledged before that much time ago is in it.
func (n *Node) age() time.Duration {
	if n.alone() {
		return 0
	}
	return n.currency.age(n.machine.Info().Index)
}

// alone says whether this node leads a cluster of one, which nobody else can.
func (n *Node) alone() bool {
	e := n.epoch.Load()
	return e != nil && e.ready.Load() && n.raft.Load().State() == raft.Leader && len(n.members()) == 1
}

// currency is what the node knows of how current its state is. A leader learns
// it from the commit of its own entries; the others ask it, and count from when
// they asked, for clocks are not compared between nodes.
type currency struct {
	mu sync.Mutex
	at time.Time // all that was acknowledged before is in the state
	// A claim: the same of claimAt, as soon as claimIndex has been applied here.
	claimAt    time.Time
	claimIndex uint64
}

// mark notes that the state has all that was acknowledged before t.
func (c *currency) mark(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.After(c.at) {
		c.at = t
	}
}

// claim notes that the leader had all that was acknowledged before t, with index
// its last entry; applied is this node's. A claim that has not been met yet is
// kept in favour of a new one, which would be met later still.
func (c *currency) claim(t time.Time, index, applied uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle(applied)
	if c.claimAt.IsZero() {
		c.claimAt, c.claimIndex = t, index
		c.settle(applied)
	}
}

func (c *currency) settle(applied uint64) {
	if c.claimAt.IsZero() || applied < c.claimIndex {
		return
	}
	if c.claimAt.After(c.at) {
		c.at = c.claimAt
	}
	c.claimAt = time.Time{}
}

func (c *currency) age(applied uint64) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle(applied)
	if c.at.IsZero() {
		return unknownAge
	}
	return time.Since(c.at)
}
