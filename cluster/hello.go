package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/hashicorp/raft"
)

// Every connection to the cluster port begins with a hello from the node that
// dialled, answered by a welcome: the acceptor's own status, or why it refuses.
// Both are a header, a length and JSON:
//
//	'H' 'W' version kind   length (uint32, big endian)   JSON
//
// Only after the welcome do Raft or forwarded requests follow, so both ends know
// with whom they speak before any vote or append. Members that a node does not
// know are ignored in both, so that later versions can add some.

// connKind says what a connection is for.
type connKind byte

const (
	kindRaft    connKind = 'R'
	kindForward connKind = 'F'
	kindStatus  connKind = 'S' // the welcome is all
)

const (
	helloVersion = 1
	// helloTimeout bounds dialling, hello and welcome together, on both ends.
	helloTimeout = 5 * time.Second
	// maxHello is the size limit of hello and welcome, in bytes of JSON.
	maxHello = 64 << 10
)

// hello is what the node that dialled says of itself.
type hello struct {
	// To is the server ID that it expects; empty if it asks who is there.
	To         string `json:"to,omitempty"`
	peerStatus `json:",inline"`
}

// welcome is the answer: the acceptor's status, unless Refused says why not.
type welcome struct {
	Refused    string `json:"refused,omitempty"`
	peerStatus `json:",inline"`
}

// errNoHello is for what does not begin like a node of ours.
var errNoHello = errors.New("not a highwater cluster connection")

func writeHello(w io.Writer, kind connKind, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > maxHello {
		return fmt.Errorf("hello of %d bytes is longer than %d", len(body), maxHello)
	}
	frame := append(make([]byte, 0, 8+len(body)), 'H', 'W', helloVersion, byte(kind))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(body)))
	_, err = w.Write(append(frame, body...))
	return err
}

// readHello reads exactly one hello or welcome, and not a byte behind it.
func readHello(r io.Reader, v any) (connKind, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:4]); err != nil {
		return 0, err
	}
	if head[0] != 'H' || head[1] != 'W' {
		return 0, errNoHello
	}
	if head[2] != helloVersion {
		return 0, fmt.Errorf("version %d of the cluster protocol is not known to this version of highwater", head[2])
	}
	if _, err := io.ReadFull(r, head[4:]); err != nil {
		return 0, err
	}
	size := binary.BigEndian.Uint32(head[4:])
	if size > maxHello {
		return 0, fmt.Errorf("hello of %d bytes is longer than %d", size, maxHello)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, err
	}
	return connKind(head[3]), json.Unmarshal(body, v)
}

// refuse says why a connection of this kind, with this hello, must not go on;
// nil if it may. own is the acceptor, members the configuration it knows.
//
// The name check is for a name that a configuration gives to another instance:
// the disk was replaced, or an old one came back (C60).
func (h hello) refuse(kind connKind, own identity, members []member) error {
	self := string(own.ServerID())
	if h.To != self && (h.To != "" || kind != kindStatus) {
		return fmt.Errorf("this is %s, not %q", self, h.To)
	}
	if kind == kindStatus {
		return nil
	}
	name, instance := splitServerID(raft.ServerID(h.ServerID))
	if name == "" {
		return fmt.Errorf("%q is no server ID", h.ServerID)
	}
	if h.ServerID == self {
		return fmt.Errorf("%s is this node itself: two processes run with one identity, or an address leads to the wrong node", self)
	}
	if own.ClusterID == "" {
		return fmt.Errorf("node %s does not belong to a cluster yet", own.NodeID)
	}
	if h.ClusterID != own.ClusterID {
		return fmt.Errorf("node %s belongs to cluster %s, not to %q", own.NodeID, own.ClusterID, h.ClusterID)
	}
	for _, m := range members {
		if m.ID == name && m.Instance != instance {
			return fmt.Errorf("node %s is a member with instance %s, not %s: its data directory was replaced; "+
				"remove %s from the cluster, then start it with --join", name, m.Instance, instance, name)
		}
	}
	return nil
}

// refuse says why the node that dialled must not go on with who answered.
func (w welcome) refuse(kind connKind, own identity, to raft.ServerID) error {
	if w.Refused != "" {
		return fmt.Errorf("refused: %q", w.Refused)
	}
	if to != "" && w.ServerID != string(to) {
		return fmt.Errorf("it is %q, not %s", w.ServerID, to)
	}
	if kind == kindStatus {
		if name, _ := splitServerID(raft.ServerID(w.ServerID)); name == "" {
			return fmt.Errorf("%q is no server ID", w.ServerID)
		}
		return nil
	}
	if own.ClusterID == "" || w.ClusterID != own.ClusterID {
		return fmt.Errorf("it belongs to cluster %q, not to %q", w.ClusterID, own.ClusterID)
	}
	return nil
}

// greet speaks the dialler's half. The caller bounds it in time.
func greet(conn net.Conn, kind connKind, h hello, own identity) (peerStatus, error) {
	if err := writeHello(conn, kind, h); err != nil {
		return peerStatus{}, err
	}
	var w welcome
	answered, err := readHello(conn, &w)
	if err != nil {
		return peerStatus{}, err
	}
	// A refusal may not even have understood the kind.
	if answered != kind && w.Refused == "" {
		return peerStatus{}, errNoHello
	}
	if err := w.refuse(kind, own, raft.ServerID(h.To)); err != nil {
		return peerStatus{}, err
	}
	return w.peerStatus, nil
}
