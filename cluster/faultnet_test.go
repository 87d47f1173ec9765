package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// faultNet puts faults between nodes of one process. Give each node
// dial(NAME) as its networkConfig.Dial and register its address; what it dials
// then passes through here. Links are directed and named.
//
// A dropped direction behaves like a network that loses packets: what was
// written waits in buffers, writers block when these are full, deadlines pass,
// a close is not noticed, dialling hangs, and after heal all that waited arrives
// in order. To break connections as a dead machine's kernel would, sever them.
type faultNet struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change of a link
	names   map[string]string
	links   map[link]*linkState
	pipes   map[*faultPipe]struct{}
}

type link struct{ from, to string }

type linkState struct {
	dropped bool
	delay   time.Duration
}

// newFaultNet closes all that passes through it when the test ends.
func newFaultNet(t testing.TB) *faultNet {
	f := &faultNet{
		changed: make(chan struct{}),
		names:   make(map[string]string),
		links:   make(map[link]*linkState),
		pipes:   make(map[*faultPipe]struct{}),
	}
	t.Cleanup(func() { f.severIf(func(*faultPipe) bool { return true }) })
	return f
}

// register says which node listens on an address. An address that is not
// registered has no faults.
func (f *faultNet) register(name, addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.names[addr] = name
}

// drop stops what goes from one node to another, in this direction only.
func (f *faultNet) drop(from, to string) { f.set(from, to, func(l *linkState) { l.dropped = true }) }

// cut stops both directions between two nodes.
func (f *faultNet) cut(a, b string) {
	f.drop(a, b)
	f.drop(b, a)
}

// isolate cuts a node from each of the others.
func (f *faultNet) isolate(name string, others ...string) {
	for _, other := range others {
		f.cut(name, other)
	}
}

// heal undoes drop and cut between two nodes, in both directions.
func (f *faultNet) heal(a, b string) {
	f.set(a, b, func(l *linkState) { l.dropped = false })
	f.set(b, a, func(l *linkState) { l.dropped = false })
}

// healAll undoes every drop, cut and delay.
func (f *faultNet) healAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.links)
	f.wake()
}

// delay holds back each piece of what goes from one node to another.
func (f *faultNet) delay(from, to string, d time.Duration) {
	f.set(from, to, func(l *linkState) { l.delay = d })
}

// sever closes the open connections between two nodes, whoever dialled them,
// with what is under way in them.
func (f *faultNet) sever(a, b string) {
	f.severIf(func(p *faultPipe) bool {
		return p.from == a && p.to == b || p.from == b && p.to == a
	})
}

func (f *faultNet) severIf(hit func(*faultPipe) bool) {
	f.mu.Lock()
	var hits []*faultPipe
	for p := range f.pipes {
		if hit(p) {
			hits = append(hits, p)
		}
	}
	f.mu.Unlock()
	for _, p := range hits {
		p.close()
	}
}

func (f *faultNet) set(from, to string, change func(*linkState)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.links[link{from, to}]
	if l == nil {
		l = &linkState{}
		f.links[link{from, to}] = l
	}
	change(l)
	f.wake()
}

// wake must be called with mu held.
func (f *faultNet) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// open waits until nothing is dropped on a link, and for its delay.
func (f *faultNet) open(done <-chan struct{}, from, to string) error {
	for {
		f.mu.Lock()
		var state linkState
		if l := f.links[link{from, to}]; l != nil {
			state = *l
		}
		changed := f.changed
		f.mu.Unlock()
		if !state.dropped {
			if state.delay == 0 {
				return nil
			}
			timer := time.NewTimer(state.delay)
			select {
			case <-timer.C:
				return nil
			case <-changed: // begin anew, with what holds now
			case <-done:
				timer.Stop()
				return net.ErrClosed
			}
			timer.Stop()
			continue
		}
		select {
		case <-changed:
		case <-done:
			return net.ErrClosed
		}
	}
}

// dial is the networkConfig.Dial of the named node.
func (f *faultNet) dial(from string) func(ctx context.Context, addr string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		f.mu.Lock()
		to, known := f.names[addr]
		f.mu.Unlock()
		var dialer net.Dialer
		if !known {
			return dialer.DialContext(ctx, "tcp", addr)
		}
		// A handshake takes both directions.
		for _, l := range []link{{from, to}, {to, from}} {
			if err := f.open(ctx.Done(), l.from, l.to); err != nil {
				return nil, fmt.Errorf("dial %s to %s: %w", from, to, ctx.Err())
			}
		}
		far, err := dialer.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		near, inner, err := socketPair()
		if err != nil {
			far.Close()
			return nil, err
		}
		p := &faultPipe{net: f, from: from, to: to, near: inner, far: far, done: make(chan struct{})}
		f.mu.Lock()
		f.pipes[p] = struct{}{}
		f.mu.Unlock()
		go p.pump(inner, far, from, to)
		go p.pump(far, inner, to, from)
		return near, nil
	}
}

// faultPipe carries one connection over a pair of links.
type faultPipe struct {
	net       *faultNet
	from, to  string // who dialled, who was dialled
	near, far net.Conn
	done      chan struct{}
	once      sync.Once
}

// pump carries one direction until its source ends, or the pipe is severed. The
// end of the source travels like data: it passes when the link is open.
func (p *faultPipe) pump(source, sink net.Conn, from, to string) {
	defer p.close()
	buf := make([]byte, 64<<10)
	for {
		n, err := source.Read(buf)
		if p.net.open(p.done, from, to) != nil {
			return
		}
		if n > 0 {
			if _, err := sink.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *faultPipe) close() {
	p.once.Do(func() {
		close(p.done)
		p.near.Close()
		p.far.Close()
		p.net.mu.Lock()
		delete(p.net.pipes, p)
		p.net.mu.Unlock()
	})
}

// socketPair makes two connected sockets, with buffers and deadlines as those of
// a TCP connection.
func socketPair() (a, b net.Conn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, err
	}
	conns := make([]net.Conn, 2)
	for i, fd := range fds {
		syscall.CloseOnExec(fd)
		file := os.NewFile(uintptr(fd), "faultnet")
		c, cerr := net.FileConn(file)
		file.Close()
		if cerr != nil {
			err = cerr
			continue
		}
		conns[i] = c
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}

func TestFaultNet(t *testing.T) {
	f := newFaultNet(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f.register("b", l.Addr().String())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // echo
				buf := make([]byte, 16)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					c.Write(buf[:n])
				}
			}()
		}
	}()
	a, err := f.dial("a")(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	echo := func() error {
		buf := make([]byte, 16)
		_, err := a.Read(buf)
		return err
	}
	a.Write([]byte("1"))
	if err := echo(); err != nil {
		t.Fatal("an open link does not carry:", err)
	}
	for _, l := range []link{{"a", "b"}, {"b", "a"}} {
		f.drop(l.from, l.to)
		a.Write([]byte("2"))
		a.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if echo() == nil {
			t.Fatalf("the dropped link %v carries", l)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if _, err := f.dial("a")(ctx, l2addr(f, "b")); err == nil {
			t.Fatalf("dialled over the dropped link %v", l)
		}
		cancel()
		f.heal("a", "b")
		a.SetReadDeadline(time.Now().Add(10 * time.Second))
		if err := echo(); err != nil {
			t.Fatal("what waited did not arrive after heal:", err)
		}
	}
	f.delay("a", "b", time.Hour)
	a.Write([]byte("3"))
	a.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if echo() == nil {
		t.Fatal("it arrived an hour early")
	}
	f.healAll()
	a.SetReadDeadline(time.Now().Add(10 * time.Second))
	if err := echo(); err != nil {
		t.Fatal("what was delayed did not arrive after healAll:", err)
	}
	f.sever("b", "a")
	if echo() == nil {
		t.Fatal("a severed connection carries")
	}
}

func l2addr(f *faultNet, name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for addr, n := range f.names {
		if n == name {
			return addr
		}
	}
	return ""
}
