package cluster

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/highwater/highwater/fsm"
	"github.com/highwater/highwater/lease"
)

// An acquire is granted, its answer is lost, and its next sending is refused
// before the log, since too much waits there. The refusal must not become the
// answer: 429 would say that nothing was changed (I6).
func TestRefusalAfterALostAnswer(t *testing.T) {
	c := startCluster(t, 3, nil)
	leader, follower := c.leader(), c.follower()
	e := leader.epoch.Load()
	fill := func(bytes int) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.waiting += bytes
	}
	broken := make(chan struct{})
	leader.cfg.hooks.committed = func() {
		select {
		case <-broken:
			return
		default:
		}
		if leader.machine.Info().Leases == 1 {
			fill(maxWaiting)
			follower.linkMu.Lock()
			link := follower.link
			follower.linkMu.Unlock()
			link.close()
			close(broken)
		}
	}
	type answer struct {
		lease lease.Lease
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		l, err := follower.Acquire(t.Context(), acquire("a", "h", time.Minute))
		answers <- answer{l, err}
	}()
	<-broken
	var got answer
	select {
	case got = <-answers: // still refused: the outcome is unknown
	case <-time.After(longStop):
		t.Fatal("no answer")
	}
	fill(-maxWaiting)
	held, _, err := leader.GetLease(c.context(), "a", false)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case got.err == nil && got.lease.Token == held.Token:
	case errors.Is(got.err, lease.ErrOutcomeUnknown) && applied(got.err) == lease.AppliedUnknown:
	default:
		t.Errorf("%q is held with token %d, and its acquire was answered %+v, %v", "a", held.Token, got.lease, got.err)
	}
}

// The floor is set in the end, however much waits for it.
func TestFloorIsNotGivenUp(t *testing.T) {
	n := &Node{logger: hclog.NewNullLogger(), machine: fsm.NewMachine(func(error) {}, nil)}
	n.cfg.TokenFloor = 5
	n.leader.Store(&leaderView{changed: make(chan struct{})})
	n.ctx, n.cancel = t.Context(), func() {}
	e := &epoch{node: n, term: 1, wake: make(chan struct{}, 1), stopped: make(chan struct{}), waiting: maxWaiting}
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.setFloor()
	}()
	<-e.wake // it was refused
	e.mu.Lock()
	e.waiting = 0
	e.mu.Unlock()
	select {
	case <-e.wake:
	case <-done:
	case <-time.After(longStop):
	}
	if calls := e.take(); len(calls) != 1 {
		t.Errorf("%d calls wait, and the floor is not among them", len(calls))
	} else {
		calls[0].finish(fateDone)
		<-done
	}
}

// A snapshot that is received while the node takes one of its own is sent
// again; were both made at once, Raft would go back to the older one.
func TestSnapshotsAreMadeOneAtATime(t *testing.T) {
	eachKind(t, func(t *testing.T, kind LogStore) {
		f, leader := newFollower(t, kind)
		leader.entries(1, 2, 4, 5, 1)
		f.st.installs.exclusive.Lock()
		if resp, err := leader.snapshot(100, 5, 5); err == nil {
			t.Errorf("installed beside another: %+v", resp)
		}
		f.st.installs.exclusive.Unlock()
		eventually(t, "the snapshot is installed", func() bool {
			resp, err := leader.snapshot(100, 5, 5)
			return err == nil && resp.Success
		})
		if !f.st.installs.exclusive.TryLock() {
			t.Error("still locked after the installation")
		}
	})
}
