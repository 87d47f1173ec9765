package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// longStop is what a test waits for an event that must come.
const longStop = 20 * time.Second

// testPort is a network whose identity a test can change.
type testPort struct {
	*network
	id identity
}

// newPort opens the cluster port of a node that belongs to the given cluster.
func newPort(t testing.TB, nodeID, cluster string, change ...func(*networkConfig)) *testPort {
	t.Helper()
	p := &testPort{id: identity{NodeID: nodeID, Instance: newInstance(), ClusterID: cluster}}
	cfg := networkConfig{
		Listen:   "127.0.0.1:0",
		HTTPAddr: nodeID + ":8400",
		Version:  "test",
		Identity: func() identity { return p.id },
		Logger:   hclog.NewNullLogger(),
	}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if p.network, err = newNetwork(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// echo serves forwarded connections with what they send.
func echo(conn net.Conn, _ raft.ServerID) { io.Copy(conn, conn) }

func wantEcho(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetDeadline(time.Now().Add(longStop))
	if _, err := conn.Write([]byte("hi")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2)
	if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != "hi" {
		t.Fatalf("got %q, %v", buf, err)
	}
	conn.SetDeadline(time.Time{})
}

func TestForwardConnection(t *testing.T) {
	a, b := newPort(t, "n1", "c"), newPort(t, "n2", "c")
	from := make(chan raft.ServerID, 1)
	b.onForward(func(conn net.Conn, id raft.ServerID) { from <- id; echo(conn, id) })
	conn, err := a.dialForward(t.Context(), b.id.ServerID(), b.advertise())
	if err != nil {
		t.Fatal(err)
	}
	wantEcho(t, conn)
	if id := <-from; id != a.id.ServerID() {
		t.Fatalf("the acceptor was told %s", id)
	}
	// Close of a network breaks what is open, at both ends.
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	conn.SetReadDeadline(time.Now().Add(longStop))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the other end is still open: %v", err)
	}
}

func TestConnectionsAreRefused(t *testing.T) {
	var members []member
	b := newPort(t, "n2", "c", func(c *networkConfig) { c.Members = func() []member { return members } })
	b.onForward(echo)
	b.raftLayer()
	members = []member{{ID: "n1", Instance: newInstance()}, {ID: "n2", Instance: b.id.Instance}}
	self := b.id.ServerID()
	tests := []struct {
		name string
		from *testPort
		to   raft.ServerID
		want []string
	}{
		{"without a cluster", newPort(t, "n3", ""), self, []string{"n3 does not belong to a cluster yet"}},
		{"other cluster (C43)", newPort(t, "n3", "d"), self, []string{"refused", `belongs to cluster c, not to \"d\"`}},
		{"replaced disk at the other end (C60)", newPort(t, "n3", "c"), serverID("n2", newInstance()), []string{"refused", "this is " + string(self)}},
		{"another node at the address", newPort(t, "n3", "c"), serverID("n4", newInstance()), []string{"refused", "this is " + string(self)}},
		{"own disk replaced (C60)", newPort(t, "n1", "c"), self, []string{"refused", "node n1 is a member with instance " + members[0].Instance, "remove n1", "--join"}},
		{"two with one identity", func() *testPort { p := newPort(t, "n2", "c"); p.id = b.id; return p }(), self, []string{"refused", "this node itself"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.from.dialForward(t.Context(), tt.to, b.advertise())
			wantError(t, err, tt.want...)
			layer := tt.from.raftLayer()
			_, err = layer.Dial(dialAddress(tt.to, raft.ServerAddress(b.advertise())), longStop)
			wantError(t, err, tt.want...)
		})
	}
	t.Run("acceptor without a cluster", func(t *testing.T) {
		a, empty := newPort(t, "n1", "c"), newPort(t, "n3", "")
		empty.onForward(echo)
		_, err := a.dialForward(t.Context(), empty.id.ServerID(), empty.advertise())
		wantError(t, err, "refused", "n3 does not belong to a cluster yet")
	})
	t.Run("a name the configuration lacks", func(t *testing.T) {
		a := newPort(t, "n9", "c")
		conn, err := a.dialForward(t.Context(), self, b.advertise())
		if err != nil {
			t.Fatal(err)
		}
		wantEcho(t, conn)
	})
	t.Run("before Raft and forwarding have started", func(t *testing.T) {
		a, c := newPort(t, "n1", "c"), newPort(t, "n3", "c")
		_, err := a.dialForward(t.Context(), c.id.ServerID(), c.advertise())
		wantError(t, err, "refused", "does not take forwarded requests yet")
		_, err = a.raftLayer().Dial(dialAddress(c.id.ServerID(), raft.ServerAddress(c.advertise())), longStop)
		wantError(t, err, "refused", "has not started Raft")
		layer := c.raftLayer()
		layer.Close()
		_, err = a.raftLayer().Dial(dialAddress(c.id.ServerID(), raft.ServerAddress(c.advertise())), longStop)
		wantError(t, err, "refused", "has not started Raft")
	})
	t.Run("an address that names no server", func(t *testing.T) {
		_, err := newPort(t, "n1", "c").raftLayer().Dial(raft.ServerAddress(b.advertise()), longStop)
		wantError(t, err, "which server to expect")
	})
}

// TestDiallerChecksWhoAnswers has an acceptor that takes everybody, as one of a
// broken version would.
func TestDiallerChecksWhoAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var answers = make(chan welcome, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var h hello
			if kind, err := readHello(conn, &h); err == nil {
				writeHello(conn, kind, <-answers)
			}
		}
	}()
	a := newPort(t, "n1", "c")
	to := serverID("n2", newInstance())
	for _, tt := range []struct {
		w    welcome
		want string
	}{
		{welcome{peerStatus: peerStatus{ServerID: string(serverID("n2", newInstance())), ClusterID: "c"}}, "not " + string(to)},
		{welcome{peerStatus: peerStatus{ServerID: string(to), ClusterID: "d"}}, `belongs to cluster "d"`},
		{welcome{peerStatus: peerStatus{ServerID: string(to)}}, `belongs to cluster ""`},
		{welcome{Refused: "no\nway"}, `refused: "no\nway"`},
	} {
		answers <- tt.w
		_, err := a.dialForward(t.Context(), to, l.Addr().String())
		wantError(t, err, tt.want)
	}
	answers <- welcome{peerStatus: peerStatus{ServerID: "nonsense"}}
	_, err = a.status(t.Context(), l.Addr().String())
	wantError(t, err, "nonsense")
}

// rawDial opens a connection that says nothing yet.
func rawDial(t *testing.T, n *testPort) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", n.advertise())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(longStop))
	return conn
}

func TestBadHellos(t *testing.T) {
	t.Parallel() // one of them waits for helloTimeout
	b := newPort(t, "n2", "c")
	b.onForward(echo)
	frame := func(version, kind byte, size uint32, body string) []byte {
		f := binary.BigEndian.AppendUint32([]byte{'H', 'W', version, kind}, size)
		return append(f, body...)
	}
	good := `{"server_id":"n1.` + newInstance() + `","cluster_id":"c","to":"` + string(b.id.ServerID()) + `"}`
	for _, tt := range []struct {
		name string
		send []byte
		want string // of the refusal; empty: closed without a word
	}{
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), ""},
		{"newer version", frame(2, 'F', 2, "{}"), "version 2 of the cluster protocol is not known"},
		{"unknown kind", frame(1, 'Z', uint32(len(good)), good), "kind 'Z'"},
		{"too long", frame(1, 'F', maxHello+1, ""), "longer than"},
		{"not JSON", frame(1, 'F', 3, "{x}"), "invalid character"},
		{"a name twice", frame(1, 'F', 16, `{"to":1,"to":22}`), "to"},
		{"nobody", frame(1, 'F', uint32(len(`{"cluster_id":"c","to":"`+b.id.ServerID()+`"}`)), `{"cluster_id":"c","to":"`+string(b.id.ServerID())+`"}`), "no server ID"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := rawDial(t, b)
			if _, err := conn.Write(tt.send); err != nil {
				t.Fatal(err)
			}
			var w welcome
			_, err := readHello(conn, &w)
			if tt.want == "" {
				if err == nil {
					t.Fatalf("answered %+v", w)
				}
				return
			}
			if err != nil || !strings.Contains(w.Refused, tt.want) {
				t.Fatalf("refused %q (%v), want %q", w.Refused, err, tt.want)
			}
			if w.ServerID != "" || w.ClusterID != "" {
				t.Errorf("a refusal tells %+v", w)
			}
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Error("the connection is open")
			}
		})
	}
	t.Run("slow", func(t *testing.T) {
		t.Parallel()
		conn := rawDial(t, b)
		if _, err := conn.Write([]byte("HW")); err != nil {
			t.Fatal(err)
		}
		// The acceptor closes it; longStop would be this end's own deadline.
		_, err := io.ReadAll(conn)
		if err != nil && errors.Is(err, context.DeadlineExceeded) {
			t.Fatal("a hello may take for ever")
		}
	})
	t.Run("acceptor that never answers", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = b.status(ctx, l.Addr().String())
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
	})
	// After all of these the port still works.
	a := newPort(t, "n1", "c")
	conn, err := a.dialForward(t.Context(), b.id.ServerID(), b.advertise())
	if err != nil {
		t.Fatal(err)
	}
	wantEcho(t, conn)
}

// TestHelloTakesNoByteTooMany sends requests in one piece with the hello.
func TestHelloTakesNoByteTooMany(t *testing.T) {
	b := newPort(t, "n2", "c")
	b.onForward(echo)
	var out bytes.Buffer
	h := hello{To: string(b.id.ServerID()), peerStatus: peerStatus{ServerID: string(serverID("n1", newInstance())), ClusterID: "c"}}
	if err := writeHello(&out, kindForward, h); err != nil {
		t.Fatal(err)
	}
	out.WriteString("request")
	conn := rawDial(t, b)
	if _, err := conn.Write(out.Bytes()); err != nil {
		t.Fatal(err)
	}
	if _, err := readHello(conn, new(welcome)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("request"))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "request" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func FuzzReadHello(f *testing.F) {
	var good bytes.Buffer
	writeHello(&good, kindRaft, hello{To: "n1.x", peerStatus: peerStatus{Initial: []member{{ID: "n1"}}}})
	f.Add(good.Bytes())
	f.Add([]byte("HW\x01S\x00\x00\x00\x02{}"))
	f.Add([]byte("HW\x01S\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h hello
		r := bytes.NewReader(b)
		kind, err := readHello(r, &h)
		if err != nil {
			return
		}
		_ = h.refuse(kind, identity{}, nil)
		if used := len(b) - r.Len(); used != 8+int(binary.BigEndian.Uint32(b[4:])) {
			t.Fatalf("read %d bytes of a hello", used)
		}
	})
}

func TestStatus(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	list := []member{{ID: "n2", ClusterAddr: "b:1"}}
	b := newPort(t, "n2", "", func(c *networkConfig) {
		c.Now = func() time.Time { return now }
		c.InitialCluster = list
	})
	a := newPort(t, "n1", "")
	s, err := a.status(t.Context(), b.advertise())
	if err != nil {
		t.Fatal(err)
	}
	if s.ServerID != string(b.id.ServerID()) || s.HasState || s.HTTPAddr != "n2:8400" || s.Version != "test" ||
		s.WallMS != now.UnixMilli() || !sameList(s.Initial, list) {
		t.Fatalf("status is %+v", s)
	}
	b.serveStatus(func() peerStatus { return peerStatus{Term: 7, AppliedIndex: 9, Healthy: true, ServerID: "forged"} })
	b.id.ClusterID, b.id.Initial = "c", []member{{ID: "n2", Instance: b.id.Instance, ClusterAddr: "b:1"}}
	s, err = a.status(t.Context(), b.advertise())
	if err != nil {
		t.Fatal(err)
	}
	if s.ServerID != string(b.id.ServerID()) || !s.HasState || s.ClusterID != "c" || s.Term != 7 || s.AppliedIndex != 9 ||
		!s.Healthy || s.Initial[0].Instance != b.id.Instance {
		t.Fatalf("status is %+v", s)
	}
}

func TestPeersKeepTheLatestOfEachMember(t *testing.T) {
	a, b := newPort(t, "n1", "c"), newPort(t, "n2", "c")
	old := newPort(t, "n3", "c") // where another instance of n3 is a member
	b.serveStatus(func() peerStatus { return peerStatus{AppliedIndex: 5} })
	members := []member{
		{ID: "n1", Instance: a.id.Instance, ClusterAddr: a.advertise()},
		{ID: "n2", Instance: b.id.Instance, ClusterAddr: b.advertise()},
		{ID: "n3", Instance: newInstance(), ClusterAddr: old.advertise()},
	}
	p := newPeers(a.network, func() []member { return members })
	p.round(t.Context())
	s, ago, ok := p.latest("n2")
	if !ok || s.AppliedIndex != 5 || s.HTTPAddr != "n2:8400" || ago < 0 || ago > longStop {
		t.Fatalf("n2 is %+v, heard %v ago, %t", s, ago, ok)
	}
	if _, _, ok := p.latest("n3"); ok {
		t.Error("another instance passes for n3")
	}
	if _, _, ok := p.latest("n1"); ok {
		t.Error("it asks itself")
	}
	b.Close()
	p.round(t.Context())
	if s, _, ok := p.latest("n2"); !ok || s.AppliedIndex != 5 {
		t.Error("the last answer of a node that is down is gone")
	}
	members = members[:1]
	p.round(t.Context())
	if _, _, ok := p.latest("n2"); ok {
		t.Error("a removed member is kept")
	}
	p.start()
	p.stop()
	p.stop()
	newPeers(a.network, nil).stop()
}
