package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// networkConfig is what a node's cluster port needs to know.
type networkConfig struct {
	// Listener is the open cluster port; if nil, Listen is listened on.
	Listener net.Listener
	Listen   string // host:port
	// Advertise is the host:port that others dial. Empty: the listener's address.
	Advertise string
	HTTPAddr  string // advertised API address, told to others
	Version   string // of this binary, told to others
	// Identity is asked for every connection.
	Identity func() identity
	// Members is the current configuration; nil or empty before there is one.
	Members func() []member
	// InitialCluster is the parsed --initial-cluster, told to others while the
	// node has no state.
	InitialCluster []member
	// Dial opens a connection; nil means a net.Dialer, which resolves names
	// each time, so that changed addresses under old names heal (C45).
	Dial   func(ctx context.Context, addr string) (net.Conn, error)
	Now    func() time.Time // wall clock; nil means time.Now
	Logger hclog.Logger
}

// keepAlive finds out within about ten seconds that the other machine is gone.
// A follower reads a snapshot with no deadline of its own.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 5}

// network is a node's end of the cluster port: it accepts and dials
// connections, and lets none pass before both ends have said who they are.
type network struct {
	cfg      networkConfig
	listener net.Listener
	closed   chan struct{}
	working  sync.WaitGroup // accepting and greeting

	mu       sync.Mutex
	closing  bool
	open     map[*trackedConn]struct{}
	layer    *streamLayer
	forward  func(net.Conn, raft.ServerID)
	own      func() peerStatus
	lastWarn time.Time
}

// newNetwork starts to accept connections. Until raftLayer, onForward and
// serveStatus have been called it refuses Raft and forwarding, and answers
// status questions with the identity alone.
func newNetwork(cfg networkConfig) (*network, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Dial == nil {
		dialer := &net.Dialer{KeepAliveConfig: keepAlive}
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", addr)
		}
	}
	if cfg.Listener == nil {
		listen := net.ListenConfig{KeepAliveConfig: keepAlive}
		l, err := listen.Listen(context.Background(), "tcp", cfg.Listen)
		if err != nil {
			return nil, fmt.Errorf("--cluster-addr: %w", err)
		}
		cfg.Listener = l
	}
	if cfg.Advertise == "" {
		cfg.Advertise = cfg.Listener.Addr().String()
	}
	n := &network{
		cfg:      cfg,
		listener: cfg.Listener,
		closed:   make(chan struct{}),
		open:     make(map[*trackedConn]struct{}),
	}
	n.working.Go(n.accept)
	return n, nil
}

// advertise is the host:port that others dial.
func (n *network) advertise() string { return n.cfg.Advertise }

// accept takes connections until the listener is closed.
func (n *network) accept() {
	const maxDelay = time.Second
	var delay time.Duration
	for {
		raw, err := n.listener.Accept()
		if err != nil {
			// No file descriptors left, say: this passes, and trying again at
			// once would only burn the processor.
			delay = min(max(2*delay, 5*time.Millisecond), maxDelay)
			select {
			case <-n.closed:
				return
			case <-time.After(delay):
			}
			n.warn("cannot accept a connection on the cluster port", "error", err)
			continue
		}
		delay = 0
		if conn := n.track(raw); conn != nil {
			n.working.Go(func() { n.welcome(conn) })
		}
	}
}

// welcome hears a hello, answers it, and hands the connection to whom it is for.
func (n *network) welcome(conn *trackedConn) {
	handed := false
	defer func() {
		if !handed {
			conn.Close()
		}
	}()
	conn.SetDeadline(time.Now().Add(helloTimeout))
	var h hello
	kind, err := readHello(conn, &h)
	if errors.Is(err, io.EOF) {
		return // somebody looked whether the port is open
	}
	if errors.Is(err, errNoHello) {
		n.warn("closed a connection that is not from a node", "from", conn.RemoteAddr())
		return
	}
	var layer *streamLayer
	var forward func(net.Conn, raft.ServerID)
	own := n.cfg.Identity()
	if err == nil {
		layer, forward, err = n.check(kind, h, own)
	}
	answer := welcome{peerStatus: n.self(own)}
	if kind == kindStatus {
		answer.peerStatus = n.fullStatus(own)
	}
	if err != nil {
		n.warn("refused a connection on the cluster port", "from", conn.RemoteAddr(), "server", h.ServerID, "reason", err)
		// A node that cannot be understood gets an answer as well, so that its
		// operator reads the reason; it is closed either way.
		answer = welcome{Refused: err.Error()}
	}
	if writeHello(conn, kind, answer) != nil || err != nil {
		return
	}
	conn.SetDeadline(time.Time{})
	switch kind {
	case kindRaft:
		handed = layer.hand(conn)
	case kindForward:
		handed = true
		go func() {
			defer conn.Close()
			forward(conn, raft.ServerID(h.ServerID))
		}()
	}
}

// check decides whether a connection may go on, and who takes it.
func (n *network) check(kind connKind, h hello, own identity) (*streamLayer, func(net.Conn, raft.ServerID), error) {
	var members []member
	if n.cfg.Members != nil {
		members = n.cfg.Members()
	}
	n.mu.Lock()
	layer, forward := n.layer, n.forward
	n.mu.Unlock()
	switch {
	case kind != kindRaft && kind != kindForward && kind != kindStatus:
		return nil, nil, fmt.Errorf("connections of kind %q are not known to this version of highwater", kind)
	case kind == kindRaft && layer == nil:
		return nil, nil, fmt.Errorf("node %s has not started Raft", own.NodeID)
	case kind == kindForward && forward == nil:
		return nil, nil, fmt.Errorf("node %s does not take forwarded requests yet", own.NodeID)
	}
	return layer, forward, h.refuse(kind, own, members)
}

// self is what the node says of itself in every hello and welcome.
func (n *network) self(own identity) peerStatus {
	s := peerStatus{
		ServerID:  string(own.ServerID()),
		ClusterID: own.ClusterID,
		HTTPAddr:  n.cfg.HTTPAddr,
		Version:   n.cfg.Version,
		WallMS:    n.cfg.Now().UnixMilli(),
		HasState:  own.ClusterID != "",
		Initial:   own.Initial,
	}
	if !s.HasState {
		s.Initial = n.cfg.InitialCluster
	}
	return s
}

// fullStatus adds what serveStatus gave to it.
func (n *network) fullStatus(own identity) peerStatus {
	n.mu.Lock()
	status := n.own
	n.mu.Unlock()
	self := n.self(own)
	if status == nil {
		return self
	}
	s := status()
	s.ServerID, s.ClusterID, s.HTTPAddr, s.Version = self.ServerID, self.ClusterID, self.HTTPAddr, self.Version
	s.WallMS, s.HasState, s.Initial = self.WallMS, self.HasState, self.Initial
	return s
}

// dial opens a connection and greets. An empty to takes whoever answers. All of
// it takes at most helloTimeout.
func (n *network) dial(ctx context.Context, kind connKind, to raft.ServerID, addr string) (_ *trackedConn, _ peerStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	own := n.cfg.Identity()
	if kind != kindStatus && own.ClusterID == "" {
		return nil, peerStatus{}, fmt.Errorf("node %s does not belong to a cluster yet", own.NodeID)
	}
	raw, err := n.cfg.Dial(ctx, addr)
	if err != nil {
		return nil, peerStatus{}, err
	}
	conn := n.track(raw)
	if conn == nil {
		return nil, peerStatus{}, net.ErrClosed
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	// The context covers the greeting, too: its end breaks the connection.
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	status, err := greet(conn, kind, hello{To: string(to), peerStatus: n.self(own)}, own)
	if !stop() {
		return nil, peerStatus{}, fmt.Errorf("%s: %w", addr, context.Cause(ctx))
	}
	if err != nil {
		return nil, peerStatus{}, fmt.Errorf("%s: %w", addr, err)
	}
	return conn, status, nil
}

// dialForward opens a connection for forwarded requests to the node of that
// server ID, and to no other. An error means that nothing was sent.
func (n *network) dialForward(ctx context.Context, to raft.ServerID, addr string) (net.Conn, error) {
	if to == "" {
		return nil, errors.New("no server to forward to")
	}
	conn, _, err := n.dial(ctx, kindForward, to, addr)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// onForward sets what serves accepted connections for forwarded requests. Each
// call has its own goroutine, and the connection is closed when it returns.
func (n *network) onForward(serve func(conn net.Conn, from raft.ServerID)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forward = serve
}

// serveStatus sets what a status question is answered with. Identity, version,
// addresses and clock are filled in by the network. status must not block.
func (n *network) serveStatus(status func() peerStatus) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.own = status
}

// status asks the node at addr who and how it is, of whatever cluster it may be.
func (n *network) status(ctx context.Context, addr string) (peerStatus, error) {
	conn, status, err := n.dial(ctx, kindStatus, "", addr)
	if err != nil {
		return peerStatus{}, err
	}
	conn.Close()
	return status, nil
}

// warn logs what another node, or a stranger, can cause as often as it likes:
// at most one line a second.
func (n *network) warn(msg string, args ...any) {
	n.mu.Lock()
	quiet := time.Since(n.lastWarn) < time.Second
	if !quiet {
		n.lastWarn = time.Now()
	}
	n.mu.Unlock()
	if !quiet {
		n.cfg.Logger.Warn(msg, args...)
	}
}

// Close closes the listener and every open connection, and waits for what is
// being greeted, not for what serves forwarded requests. Idempotent.
func (n *network) Close() error {
	n.mu.Lock()
	if n.closing {
		n.mu.Unlock()
		return nil
	}
	n.closing = true
	open := make([]*trackedConn, 0, len(n.open))
	for conn := range n.open {
		open = append(open, conn)
	}
	n.mu.Unlock()
	close(n.closed)
	err := n.listener.Close()
	for _, conn := range open {
		conn.Close()
	}
	n.working.Wait()
	return err
}

// trackedConn is an open connection, which Close of the network closes.
type trackedConn struct {
	net.Conn
	network *network
}

// track takes charge of a connection; nil if the network is closed.
func (n *network) track(raw net.Conn) *trackedConn {
	conn := &trackedConn{Conn: raw, network: n}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		raw.Close()
		return nil
	}
	n.open[conn] = struct{}{}
	return conn
}

func (c *trackedConn) Close() error {
	c.network.mu.Lock()
	delete(c.network.open, c)
	c.network.mu.Unlock()
	return c.Conn.Close()
}

// raftLayer is the stream layer for newTransport. Raft connections are refused
// before this call and after the layer's Close.
func (n *network) raftLayer() raft.StreamLayer {
	layer := &streamLayer{network: n, conns: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.layer = layer
	return layer
}

// streamLayer is Raft's share of the cluster port.
type streamLayer struct {
	network *network
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

// hand passes an accepted connection on to Raft.
func (l *streamLayer) hand(conn net.Conn) bool {
	select {
	case l.conns <- conn:
		return true
	case <-l.closed:
	case <-l.network.closed:
	}
	return false
}

// Accept implements net.Listener.
func (l *streamLayer) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
	case <-l.network.closed:
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener. It leaves the cluster port open.
func (l *streamLayer) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.network.mu.Lock()
		defer l.network.mu.Unlock()
		if l.network.layer == l {
			l.network.layer = nil
		}
	})
	return nil
}

// Addr implements net.Listener: the advertised name, not an address that it
// resolved to once.
func (l *streamLayer) Addr() net.Addr { return nameAddr(l.network.cfg.Advertise) }

// Dial implements raft.StreamLayer; addr is as dialAddress made it.
func (l *streamLayer) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	to, hostport, ok := strings.Cut(string(addr), "@")
	if !ok || to == "" {
		return nil, fmt.Errorf("%q does not say which server to expect", addr)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, _, err := l.network.dial(ctx, kindRaft, raft.ServerID(to), hostport)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// nameAddr is a host:port that is not resolved.
type nameAddr string

func (nameAddr) Network() string  { return "tcp" }
func (a nameAddr) String() string { return string(a) }
