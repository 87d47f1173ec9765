package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/highwater/highwater/fsm"
	"github.com/highwater/highwater/lease"
)

// quiet keeps a node from connecting to the leader by itself, in place of the
// connections that a test makes in its name.
func (c *testCluster) quiet(n *Node) {
	n.observing.Lock()
	c.Cleanup(n.observing.Unlock)
}

// forwarder is the other end of a leader's connection, by hand.
func (c *testCluster) forwarder(from, to *Node) net.Conn {
	c.Helper()
	conn, err := from.network.dialForward(c.context(), to.serverID, to.network.advertise())
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(longStop))
	return conn
}

// outcome is one outcome in a frame.
type frameOutcome struct {
	id   uint64
	fate fate
	data []byte
}

func readOutcomes(t testing.TB, conn net.Conn) (outcomes []frameOutcome) {
	t.Helper()
	frame, err := readFrame(conn)
	if err != nil {
		t.Fatal(err)
	}
	f := frameReader{b: frame}
	for f.more() {
		outcomes = append(outcomes, frameOutcome{f.uvarint(), fate(f.byte()), f.bytes()})
	}
	if err := f.finish(); err != nil {
		t.Fatal(err)
	}
	return outcomes
}

func acquireBytes(resource string, id byte) []byte {
	return fsm.AppendCommand(nil, fsm.Acquire{Resource: resource, Holder: "h", TTL: 60_000, Request: lease.RequestID{id}})
}

// What is forwarded is looked at before it can reach the log, where no node could
// read it.
func TestForwardedRequestsAreDecodedBeforeTheLog(t *testing.T) {
	c := startCluster(t, 3, nil)
	leader, follower := c.leader(), c.follower()
	c.quiet(follower)
	term := leader.leader.Load().term
	conn := c.forwarder(follower, leader)
	before := leader.machine.Info().Index
	for what, sent := range map[string]*call{
		"unknown command":     {kind: callWrite, data: []byte{77}},
		"empty command":       {kind: callWrite},
		"trailing byte":       {kind: callWrite, data: append(acquireBytes("a", 1), 0)},
		"cut command":         {kind: callWrite, data: acquireBytes("a", 1)[:20]},
		"token floor":         {kind: callWrite, data: fsm.AppendCommand(nil, fsm.SetFloor{Floor: 1})},
		"unknown query":       {kind: callRead, data: []byte{77}},
		"unknown request":     {kind: 9, data: acquireBytes("a", 1)},
		"command as query":    {kind: callRead, data: acquireBytes("a", 1)},
		"query as a command":  {kind: callWrite, data: fsm.AppendQuery(nil, fsm.ListLeases{Page: lease.Page{Limit: 1}})},
		"overlong everything": {kind: callWrite, data: bytes.Repeat([]byte{2}, 5000)},
	} {
		sent.id, sent.term = 7, term
		if _, err := conn.Write(appendRequests(nil, []*call{sent})); err != nil {
			t.Fatal(what, err)
		}
		o := readOutcomes(t, conn)
		if len(o) != 1 || o[0].id != 7 || o[0].fate != fateRefused {
			t.Fatalf("%s: %+v", what, o)
		}
		var refused *lease.Error
		if sent.kind == callRead {
			a, err := fsm.DecodeAnswer(o[0].data)
			if err != nil {
				t.Fatal(what, err)
			}
			refused = a.Err
		} else {
			r, err := fsm.DecodeResult(o[0].data)
			if err != nil {
				t.Fatal(what, err)
			}
			refused = r.Err
		}
		if refused == nil || refused.Code != lease.CodeInternal || refused.Applied != lease.AppliedNo {
			t.Errorf("%s: %v", what, refused)
		}
	}
	if after := leader.machine.Info().Index; after != before {
		t.Errorf("entries %d to %d were written", before+1, after)
	}
	// Of another term: dropped.
	for _, wrong := range []uint64{0, term - 1, term + 1, math.MaxUint64} {
		conn.Write(appendRequests(nil, []*call{{kind: callWrite, id: 8, term: wrong, data: acquireBytes("a", 1)}}))
		if o := readOutcomes(t, conn); len(o) != 1 || o[0].fate != fateNotApplied {
			t.Errorf("for term %d: %+v", wrong, o)
		}
	}
	// And a good one.
	conn.Write(appendRequests(nil, []*call{{kind: callWrite, id: 9, term: term, data: acquireBytes("a", 1)}}))
	if r, err := fsm.DecodeResult(readOutcomes(t, conn)[0].data); err != nil || r.Lease.Token != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestMalformedFramesCloseTheConnection(t *testing.T) {
	c := startCluster(t, 3, nil)
	leader, follower := c.leader(), c.follower()
	c.quiet(follower)
	term := leader.leader.Load().term
	good := appendRequests(nil, []*call{{kind: callWrite, id: 1, term: term, data: acquireBytes("a", 1)}})
	before := leader.machine.Info().Index
	for what, frame := range map[string][]byte{
		"too long":      binary.BigEndian.AppendUint32(nil, maxFrame+1),
		"empty":         {0, 0, 0, 0},
		"no request":    {0, 0, 0, 1, 1},
		"trailing byte": withLength(append(good[4:len(good):len(good)], 0)),
		"cut request":   withLength(good[4 : len(good)-1]),
		"count":         withLength(append(binary.AppendUvarint(nil, term), 0xff, 0xff, 0xff, 0x7f)),
		"length":        withLength(append(binary.AppendUvarint(nil, term), 1, 1, 1, 0xff, 0x7f, 0)),
	} {
		conn := c.forwarder(follower, leader)
		conn.Write(frame)
		if _, err := readFrame(conn); err == nil {
			t.Errorf("%s: answered", what)
		} else if errors.Is(err, errFrame) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if after := leader.machine.Info().Index; after != before {
		t.Errorf("entries %d to %d were written", before+1, after)
	}
}

func withLength(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// A new connection of a node is served only when no request of its old one can
// come any more.
func TestNewConnectionEndsTheOldOne(t *testing.T) {
	c := startCluster(t, 3, nil)
	leader, follower := c.leader(), c.follower()
	c.quiet(follower)
	term := leader.leader.Load().term
	old := c.forwarder(follower, leader)
	old.Write(appendRequests(nil, []*call{{kind: callWrite, id: 1, term: term, data: acquireBytes("a", 1)}}))
	readOutcomes(t, old)
	fresh := c.forwarder(follower, leader)
	fresh.Write(appendRequests(nil, []*call{{kind: callWrite, id: 1, term: term, data: acquireBytes("a", 1)}}))
	if r, err := fsm.DecodeResult(readOutcomes(t, fresh)[0].data); err != nil || r.Lease.Token != 1 {
		t.Errorf("the same request again: %+v, %v", r, err)
	}
	if _, err := readFrame(old); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the old connection is served beside the new one: %v", err)
	}
}

// What was not written when a connection broke is not applied; the fate of the
// rest is unknown.
func TestBrokenConnection(t *testing.T) {
	o := &outbound{node: &Node{}, wake: make(chan struct{}, 1), sent: make(map[uint64]*call)}
	written, queued, other := newCall(request{kind: callWrite}), newCall(request{kind: callWrite}), newCall(request{kind: callWrite})
	written.term, queued.term, other.term = 1, 1, 1
	if !o.add(written) {
		t.Fatal("refused")
	}
	batch, ok := o.take(nil)
	if !ok || len(batch) != 1 || batch[0] != written {
		t.Fatal(batch, ok)
	}
	o.add(queued)
	o.close()
	<-written.done
	<-queued.done
	if written.fate != fateUnknown || queued.fate != fateNotApplied {
		t.Errorf("written %d, queued %d", written.fate, queued.fate)
	}
	if o.add(other) {
		t.Error("taken by a broken connection")
	}
	if _, ok := o.take(nil); ok {
		t.Error("written to a broken connection")
	}
}

// One frame is for one term, and no longer than it has to be.
func TestFramesAreOfOneTermAndBounded(t *testing.T) {
	o := &outbound{node: &Node{}, wake: make(chan struct{}, 1), sent: make(map[uint64]*call)}
	gone := &call{kind: callWrite, term: 1, done: make(chan struct{}, 1)}
	gone.withdraw()
	o.add(gone)
	if gone.withdraw() || gone.take() {
		t.Error("a call has two fates")
	}
	big := bytes.Repeat([]byte{1}, fullFrame/4)
	for _, term := range []uint64{1, 1, 1, 1, 1, 1, 2, 1} {
		o.add(&call{kind: callWrite, term: term, data: big})
	}
	var sizes []int
	for {
		batch, _ := o.take(nil)
		if len(batch) == 0 {
			break
		}
		for _, c := range batch {
			if c.term != batch[0].term || c == gone {
				t.Errorf("a call of term %d in a frame of term %d", c.term, batch[0].term)
			}
		}
		sizes = append(sizes, len(batch))
	}
	if len(sizes) != 4 || sizes[0] != 4 || sizes[1] != 2 || sizes[2] != 1 || sizes[3] != 1 {
		t.Errorf("frames of %v", sizes)
	}
}

// An entry takes what waits up to its limit, and what is held until grants start
// comes first then.
func TestTake(t *testing.T) {
	e := &epoch{wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	size := maxEntry / 4
	var added []*call
	for i := range 10 {
		c := &call{kind: callWrite, grants: i%2 == 0, data: make([]byte, size), done: make(chan struct{}, 1)}
		added = append(added, c)
		e.add(c)
	}
	if got := e.take(); len(got) != 4 || got[0] != added[1] || got[3] != added[7] {
		t.Fatalf("%d calls", len(got))
	}
	e.release()
	later := &call{kind: callWrite, grants: true, done: make(chan struct{}, 1)}
	e.add(later)
	if got := e.take(); len(got) != 4 || got[0] != added[0] || got[3] != added[6] {
		t.Fatalf("%d calls after the release", len(got))
	}
	if got := e.take(); len(got) != 3 || got[0] != added[8] || got[1] != added[9] || got[2] != later {
		t.Fatalf("%d calls at the end", len(got))
	}
	if e.waiting != 0 {
		t.Errorf("%d bytes wait", e.waiting)
	}
	// Beyond the limit of what waits: refused, and certainly not applied.
	for range maxWaiting / size {
		e.add(&call{kind: callWrite, data: make([]byte, 0, 1)[:0], done: make(chan struct{}, 1)})
	}
	full := &call{kind: callWrite, data: make([]byte, maxWaiting+1), done: make(chan struct{}, 1)}
	e.add(full)
	<-full.done
	if full.fate != fateRefused || full.refused == nil || full.refused.Code != lease.CodeTooBusy || !strings.Contains(full.refused.Detail, "64 MiB") {
		t.Errorf("%d, %v", full.fate, full.refused)
	}
	// The end: not applied.
	waits := &call{kind: callWrite, done: make(chan struct{}, 1)}
	e.add(waits)
	e.stop()
	<-waits.done
	if waits.fate != fateNotApplied || e.add(waits) {
		t.Error("an epoch that is over")
	}
}

func FuzzRequestFrame(f *testing.F) {
	f.Add(appendRequests(nil, []*call{{kind: callWrite, id: 1, term: 3, data: acquireBytes("a", 1)}, {kind: callRead, id: 300}})[4:])
	f.Add([]byte{1, 1, 1, 3, 0})
	f.Add([]byte{})
	n := &Node{}
	n.machine = fsm.NewMachine(func(error) {}, nil)
	n.leader.Store(&leaderView{})
	n.ctx, n.cancel = f.Context(), func() {}
	f.Fuzz(func(t *testing.T, frame []byte) {
		in := &inbound{node: n, wake: make(chan struct{}, 1)}
		err := in.requests(bytes.Clone(frame))
		if err != nil && !errors.Is(err, errFrame) {
			t.Error(err)
		}
		// No leader: nothing can have been done, but for what was refused.
		for _, c := range in.settled {
			if c.fate != fateNotApplied && c.refused == nil {
				t.Errorf("%+v", c)
			}
		}
	})
}

func FuzzOutcomeFrame(f *testing.F) {
	f.Add([]byte{1, 1, 2, 3, 4, 2, 3, 0})
	f.Add([]byte{1, 9, 0})
	n := &Node{}
	n.machine = fsm.NewMachine(func(error) {}, nil)
	f.Fuzz(func(t *testing.T, frame []byte) {
		o := &outbound{node: n, wake: make(chan struct{}, 1), sent: make(map[uint64]*call)}
		for range 3 {
			o.add(newCall(request{kind: callWrite}))
		}
		o.probe = newCall(request{kind: callProbe})
		o.add(o.probe)
		batch, _ := o.take(nil)
		o.outcomes(frame)
		o.close()
		// Whatever it says, each call is finished once.
		for _, c := range batch[:3] {
			select {
			case <-c.done:
			default:
				t.Error("a call without a fate")
			}
		}
	})
}
