package cluster

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/highwater/highwater/fsm"
	"github.com/highwater/highwater/lease"
)

// Requests travel to the leader, and outcomes back, in frames over one kept
// connection; what waits together travels together. A frame is its length
// (uint32, big endian) and, in varints and bytes,
//
//	requests: term, count, then of each: id, kind, length, data
//	outcomes: of each: id, fate, length, data
//
// The term is that of the leader that the requests are meant for; any other
// refuses them. Nothing is passed on further.
const (
	// fullFrame is the size in bytes at which what follows waits for the next
	// frame; maxFrame is the limit, which leaves room for the largest answer, a
	// page of leases with their metadata.
	fullFrame = 1 << 20
	maxFrame  = 16 << 20
	// frameTimeout is how long a frame may take to be written.
	frameTimeout = 10 * time.Second
	// probeInterval is how often the leader is asked how current it is, and
	// probeTimeout how long it may take before the connection counts as dead.
	probeInterval = 250 * time.Millisecond
	probeTimeout  = 3 * time.Second
	// maxSent is how many requests may be without an answer on a connection.
	maxSent = 200_000
	// oldLinkTime is how long a connection to an earlier leader is kept for the
	// answers that are still to come.
	oldLinkTime = 2 * time.Second
)

// outbound is this node's connection to one leader. It is used until it breaks, and
// then replaced by another.
type outbound struct {
	node *Node
	to   raft.ServerID
	addr string
	wake chan struct{} // holds one

	mu     sync.Mutex
	broken bool
	conn   net.Conn // nil before it is open
	queue  []*call
	sent   map[uint64]*call // by id; partly written ones included
	lastID uint64

	probe   *call     // the one under way
	probeAt time.Time // when it was sent
}

// linkTo returns the connection to l, opening one if there is none; nil for the
// node itself and at the node's end.
func (n *Node) linkTo(l *leaderView) *outbound {
	if !l.known() || l.self || n.ctx.Err() != nil {
		return nil
	}
	n.linkMu.Lock()
	defer n.linkMu.Unlock()
	old := n.link
	if old != nil && !old.isBroken() {
		if old.to == l.id && old.addr == l.addr {
			return old
		}
		time.AfterFunc(oldLinkTime, old.close)
	}
	n.link = &outbound{node: n, to: l.id, addr: l.addr, wake: make(chan struct{}, 1), sent: make(map[uint64]*call)}
	if !n.spawn(n.link.run) {
		n.link.close()
	}
	return n.link
}

// keepLink has a connection to l ready before it is needed, so that this node
// knows how current it is.
func (n *Node) keepLink(l *leaderView) {
	if l.known() && !l.self {
		n.linkTo(l)
	}
}

func (o *outbound) isBroken() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.broken
}

// add queues a call; false if the connection is broken or overfull, and the
// call has not been sent then.
func (o *outbound) add(c *call) bool {
	o.mu.Lock()
	if o.broken || len(o.queue)+len(o.sent) >= maxSent {
		o.mu.Unlock()
		return false
	}
	c.link = o
	o.queue = append(o.queue, c)
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return true
}

// forget gives up waiting for the outcome of a call.
func (o *outbound) forget(c *call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sent[c.id] == c {
		delete(o.sent, c.id)
	}
}

// close breaks the connection. What was not written is not applied, the fate of
// the rest is unknown.
func (o *outbound) close() {
	o.mu.Lock()
	o.broken = true
	conn, queue, sent := o.conn, o.queue, o.sent
	o.queue, o.sent = nil, nil
	o.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
	for _, c := range queue {
		c.finish(fateNotApplied)
	}
	for _, c := range sent {
		c.finish(fateUnknown)
	}
}

// run opens the connection and writes frames until it breaks.
func (o *outbound) run() {
	defer o.close()
	conn, err := o.node.network.dialForward(o.node.ctx, o.to, o.addr)
	if err != nil {
		o.node.logger.Debug("no connection to the leader", "leader", o.to, "error", err)
		return
	}
	o.mu.Lock()
	o.conn = conn
	broken := o.broken
	o.mu.Unlock()
	if broken {
		conn.Close()
		return
	}
	if !o.node.spawn(func() {
		defer o.close()
		o.read(conn)
	}) {
		return
	}
	o.write(conn)
}

func (o *outbound) write(conn net.Conn) {
	probe := time.NewTicker(probeInterval)
	defer probe.Stop()
	var batch []*call
	var frame []byte
	for first := true; ; first = false {
		if first {
			o.ask()
		}
		select {
		case <-o.wake:
		case <-probe.C:
			if !o.ask() {
				return
			}
		case <-o.node.ctx.Done():
			return
		}
		for {
			var ok bool
			if batch, ok = o.take(batch[:0]); !ok {
				return
			}
			if len(batch) == 0 {
				break
			}
			frame = appendRequests(frame[:0], batch)
			// Until here the calls can be told from those that were sent; from
			// the first byte on they cannot.
			conn.SetWriteDeadline(time.Now().Add(frameTimeout))
			if _, err := conn.Write(frame); err != nil {
				return
			}
			if cap(frame) > 2*fullFrame {
				frame = nil
			}
		}
	}
}

// take moves what waits, up to a full frame for one term, to what is sent. It
// returns false if the connection is broken.
func (o *outbound) take(batch []*call) ([]*call, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken {
		return batch, false
	}
	size, n := 0, 0
	for _, c := range o.queue {
		if len(batch) > 0 && (size >= fullFrame || c.term != batch[0].term) {
			break
		}
		n++
		if !c.take() {
			continue
		}
		size += len(c.data)
		o.lastID++
		c.id = o.lastID
		o.sent[c.id] = c
		batch = append(batch, c)
	}
	rest := copy(o.queue, o.queue[n:])
	clear(o.queue[rest:])
	o.queue = o.queue[:rest]
	return batch, true
}

// ask sends a probe, unless one is under way. It returns false if that one has
// been for too long.
func (o *outbound) ask() bool {
	o.mu.Lock()
	busy, since := o.probe != nil, o.probeAt
	if !busy {
		o.probe = &call{kind: callProbe, done: make(chan struct{}, 1), term: o.node.leader.Load().term, link: o}
		o.probeAt = time.Now()
		o.queue = append(o.queue, o.probe)
	}
	o.mu.Unlock()
	if busy {
		return time.Since(since) < probeTimeout
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return true
}

// read takes outcomes until the connection breaks, or says something that no
// leader would say.
func (o *outbound) read(conn net.Conn) {
	r := bufio.NewReaderSize(conn, 64<<10)
	for {
		frame, err := readFrame(r)
		if err != nil {
			return
		}
		if err := o.outcomes(frame); err != nil {
			o.node.logger.Error("closed the connection to the leader: an outcome cannot be read", "leader", o.to, "error", err)
			return
		}
	}
}

func (o *outbound) outcomes(frame []byte) error {
	f := frameReader{b: frame}
	for f.more() {
		id, what, data := f.uvarint(), fate(f.byte()), f.bytes()
		if f.err != nil {
			break
		}
		if what < fateDone || what > fateRefused {
			return fmt.Errorf("fate %d", what)
		}
		o.mu.Lock()
		c := o.sent[id]
		delete(o.sent, id)
		isProbe := c != nil && c == o.probe
		at := o.probeAt
		if isProbe {
			o.probe = nil
		}
		o.mu.Unlock()
		switch {
		case c == nil: // nobody waits for it any more
		case isProbe:
			if what == fateDone {
				if err := o.node.current(at, data); err != nil {
					return err
				}
			}
		default:
			if what == fateDone || what == fateRefused {
				c.raw = data
			}
			c.finish(what)
		}
	}
	return f.finish()
}

// current takes the answer to a probe that was sent at the given time.
func (n *Node) current(asked time.Time, data []byte) error {
	f := frameReader{b: data}
	index, age := f.uvarint(), f.uvarint()
	if err := f.finish(); err != nil {
		return err
	}
	if age < uint64(unknownAge/time.Millisecond) {
		n.currency.claim(asked.Add(-time.Duration(age)*time.Millisecond), index, n.machine.Info().Index)
	}
	return nil
}

func appendRequests(dst []byte, calls []*call) []byte {
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.AppendUvarint(dst, calls[0].term)
	dst = binary.AppendUvarint(dst, uint64(len(calls)))
	for _, c := range calls {
		dst = binary.AppendUvarint(dst, c.id)
		dst = append(dst, byte(c.kind))
		dst = binary.AppendUvarint(dst, uint64(len(c.data)))
		dst = append(dst, c.data...)
	}
	binary.BigEndian.PutUint32(dst, uint32(len(dst)-4))
	return dst
}

// inbound is another node's connection to this one as the leader.
type inbound struct {
	node *Node
	conn net.Conn
	from raft.ServerID
	wake chan struct{} // holds one
	// read is closed when no request of this connection can reach the queue any
	// more.
	read chan struct{}

	mu      sync.Mutex
	settled []*call

	body []byte // the writer's own
}

// serveForward takes requests from another node until the connection breaks.
//
// One connection of a node is served at a time, and a new one only after the last
// request of the old one: a request that was sent again over the new one must
// not be overtaken by its first sending. An acquire would else be granted,
// released, and granted once more to nobody.
func (n *Node) serveForward(conn net.Conn, from raft.ServerID) {
	in := &inbound{node: n, conn: conn, from: from, wake: make(chan struct{}, 1), read: make(chan struct{})}
	n.inboundMu.Lock()
	old := n.inbound[from]
	n.inbound[from] = in
	n.inboundMu.Unlock()
	if old != nil {
		old.conn.Close()
		<-old.read
	}
	writing := make(chan struct{})
	go func() {
		defer close(writing)
		in.write()
	}()
	err := in.receive()
	close(in.read)
	conn.Close()
	in.signal()
	<-writing
	n.inboundMu.Lock()
	if n.inbound[from] == in {
		delete(n.inbound, from)
	}
	n.inboundMu.Unlock()
	if err != nil {
		n.network.warn("closed a connection for forwarded requests", "from", from, "error", err)
	}
}

// receive reads frames of requests. It returns nil when the connection breaks.
func (in *inbound) receive() error {
	r := bufio.NewReaderSize(in.conn, 64<<10)
	for {
		frame, err := readFrame(r)
		if errors.Is(err, errFrame) {
			return err
		}
		if err != nil {
			return nil
		}
		if err := in.requests(frame); err != nil {
			return err
		}
	}
}

// requests queues the requests of a frame. The calls keep the frame's bytes.
func (in *inbound) requests(frame []byte) error {
	f := frameReader{b: frame}
	term := f.uvarint()
	count := f.count()
	if count > maxSent {
		return fmt.Errorf("%w: %d requests, where at most %d may wait", errFrame, count, maxSent)
	}
	made := make([]call, count)
	queued := make([]*call, 0, count)
	for i := range made {
		c := &made[i]
		c.from = in
		c.id, c.kind, c.data = f.uvarint(), callKind(f.byte()), f.bytes()
		if f.err != nil {
			break
		}
		if c.kind == callProbe {
			in.probe(c, term)
			continue
		}
		if c.refused = c.decode(); c.refused != nil {
			c.finish(fateRefused)
			continue
		}
		queued = append(queued, c)
	}
	if err := f.finish(); err != nil {
		// Those that could be read are not queued either; their sender, who
		// cannot be one of this version, takes them for unknown.
		return err
	}
	if len(queued) == 0 {
		return nil
	}
	if e := in.node.leads(term); e == nil || !e.add(queued...) {
		for _, c := range queued {
			c.fate = fateNotApplied
			in.add(c)
		}
		in.signal()
	}
	return nil
}

// decode reads what another node sent, so that nothing that a state machine
// could not read ever reaches the log.
func (c *call) decode() *lease.Error {
	var err error
	switch c.kind {
	case callWrite:
		var command fsm.Command
		command, err = fsm.DecodeCommand(c.data)
		switch command.(type) {
		case fsm.Acquire, fsm.Next:
			c.grants = true
		case fsm.Renew, fsm.Release:
		case nil:
		default:
			err = fmt.Errorf("a %T is not for other nodes to ask for", command)
		}
	case callRead:
		c.query, err = fsm.DecodeQuery(c.data)
	default:
		err = fmt.Errorf("requests of kind %d are not known to this version of highwater", c.kind)
	}
	if err == nil {
		return nil
	}
	return &lease.Error{
		Code:    lease.CodeInternal,
		Detail:  fmt.Sprintf("the leader cannot read the request: %v", err),
		Applied: lease.AppliedNo,
	}
}

// probe answers how current this node is, if it leads in that term.
func (in *inbound) probe(c *call, term uint64) {
	n := in.node
	c.data = nil
	if e := n.leads(term); e == nil || !e.ready.Load() {
		c.finish(fateNotApplied)
		return
	}
	// First the age: what has been applied by the time that it speaks of has
	// been by now.
	age := n.age()
	c.data = binary.AppendUvarint(c.data, n.machine.Info().Index)
	c.data = binary.AppendUvarint(c.data, uint64((age+time.Millisecond-1)/time.Millisecond))
	c.finish(fateDone)
}

// add takes a call whose fate is known.
func (in *inbound) add(c *call) {
	in.mu.Lock()
	in.settled = append(in.settled, c)
	in.mu.Unlock()
}

func (in *inbound) signal() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// write sends outcomes until the connection breaks.
func (in *inbound) write() {
	defer in.conn.Close()
	var batch, spare []*call
	var frame []byte
	for {
		select {
		case <-in.wake:
		case <-in.read:
			return
		case <-in.node.ctx.Done():
			return
		}
		in.mu.Lock()
		batch, in.settled = in.settled, spare[:0]
		in.mu.Unlock()
		for next := 0; next < len(batch); {
			frame, next = in.frame(frame[:0], batch, next)
			in.conn.SetWriteDeadline(time.Now().Add(frameTimeout))
			if _, err := in.conn.Write(frame); err != nil {
				return
			}
			if cap(frame) > 2*fullFrame {
				frame = nil
			}
		}
		clear(batch)
		spare = batch
	}
}

// frame encodes the outcomes of calls from next on, until the frame is full.
func (in *inbound) frame(dst []byte, calls []*call, next int) ([]byte, int) {
	dst = append(dst, 0, 0, 0, 0)
	for next < len(calls) && len(dst) < fullFrame {
		c := calls[next]
		next++
		in.body = in.body[:0]
		if c.fate == fateDone || c.fate == fateRefused {
			in.body = in.node.appendOutcome(in.body, c)
		}
		dst = binary.AppendUvarint(dst, c.id)
		dst = append(dst, byte(c.fate))
		dst = binary.AppendUvarint(dst, uint64(len(in.body)))
		dst = append(dst, in.body...)
	}
	if cap(in.body) > fullFrame {
		in.body = nil
	}
	binary.BigEndian.PutUint32(dst, uint32(len(dst)-4))
	return dst, next
}

// appendOutcome encodes what a call that is done gave. A query is answered here,
// from the state that its entry left or a later one.
func (n *Node) appendOutcome(dst []byte, c *call) []byte {
	switch {
	case c.kind == callProbe:
		return append(dst, c.data...)
	case c.kind == callRead && c.refused != nil:
		return fsm.AppendAnswer(dst, fsm.Answer{Err: c.refused})
	case c.kind == callRead:
		return fsm.AppendAnswer(dst, n.machine.Query(c.query))
	case c.refused != nil:
		return fsm.AppendResult(dst, fsm.Result{Err: c.refused})
	}
	return fsm.AppendResult(dst, c.result)
}

// errFrame is wrapped by what is wrong with a frame.
var errFrame = errors.New("malformed frame")

// readFrame reads a frame into memory of its own, without its length.
func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxFrame {
		return nil, fmt.Errorf("%w: %d bytes, where %d are allowed", errFrame, size, maxFrame)
	}
	frame := make([]byte, size)
	_, err := io.ReadFull(r, frame)
	return frame, err
}

// frameReader takes a frame apart. After the first error everything is zero.
type frameReader struct {
	b   []byte
	err error
}

func (f *frameReader) more() bool { return f.err == nil && len(f.b) > 0 }

func (f *frameReader) finish() error {
	if f.err == nil && len(f.b) > 0 {
		f.err = fmt.Errorf("%w: %d bytes too many", errFrame, len(f.b))
	}
	return f.err
}

func (f *frameReader) uvarint() uint64 {
	v, n := binary.Uvarint(f.b)
	if n <= 0 {
		f.fail()
		return 0
	}
	f.b = f.b[n:]
	return v
}

func (f *frameReader) byte() byte {
	if len(f.b) == 0 {
		f.fail()
		return 0
	}
	v := f.b[0]
	f.b = f.b[1:]
	return v
}

// bytes reads a length and that many bytes, which belong to the frame.
func (f *frameReader) bytes() []byte {
	n := f.uvarint()
	if n > uint64(len(f.b)) {
		f.fail()
		return nil
	}
	v := f.b[:n:n]
	f.b = f.b[n:]
	return v
}

// count reads how many requests follow; each takes three bytes or more.
func (f *frameReader) count() int {
	n := f.uvarint()
	if n > uint64(len(f.b)/3) {
		f.fail()
		return 0
	}
	return int(n)
}

func (f *frameReader) fail() {
	if f.err == nil {
		f.err = fmt.Errorf("%w: it is cut off", errFrame)
	}
	f.b = nil
}
