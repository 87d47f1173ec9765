package cluster

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hashicorp/raft"
)

// maxNodeID is the length limit of a node ID, in bytes.
const maxNodeID = 64

// identity says who a node is. The instance ID belongs to the data directory:
// it is drawn at the first start, so a node with a replaced disk is another
// instance under the old name, and neither votes nor appends as the old one.
type identity struct {
	NodeID    string
	Instance  string // 128 random bits in hex
	ClusterID string // empty before the bootstrap
	// Initial is the configuration that the cluster was bootstrapped with,
	// sorted by node ID. Empty on a node that joined later.
	Initial []member
	// Bootstrapped: the first configuration is in the log. From then on a node
	// whose log is gone does not start.
	Bootstrapped bool
}

// ServerID is the node's name in Raft: node ID and instance ID, "n1.INSTANCE".
func (i identity) ServerID() raft.ServerID { return serverID(i.NodeID, i.Instance) }

// member is one node of a cluster.
type member struct {
	ID          string `json:"id"`                 // the node ID, "n1"
	Instance    string `json:"instance,omitempty"` // empty while it is not known
	ClusterAddr string `json:"cluster_addr"`       // host:port as advertised
}

func serverID(nodeID, instance string) raft.ServerID {
	return raft.ServerID(nodeID + "." + instance)
}

// splitServerID takes a server ID apart; both parts are empty if it is none. A
// node ID has no dot, so the first one separates.
func splitServerID(id raft.ServerID) (nodeID, instance string) {
	nodeID, instance, ok := strings.Cut(string(id), ".")
	if !ok || !validNodeID(nodeID) || !validInstance(instance) {
		return "", ""
	}
	return nodeID, instance
}

// checkNodeID refuses what cannot name a node. flag is named in the error.
func checkNodeID(flag, id string) error {
	if !validNodeID(id) {
		return fmt.Errorf("%s: a node ID is 1 to %d letters, digits, '-' or '_', not %q", flag, maxNodeID, id)
	}
	return nil
}

func validNodeID(id string) bool {
	if id == "" || len(id) > maxNodeID {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

func validInstance(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 16 && s == strings.ToLower(s)
}

func newInstance() string {
	var b [16]byte
	// crypto/rand.Read never fails: since Go 1.24 it ends the process instead.
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// clusterID names the cluster that the given members make: a hash over all
// names and instance IDs. Each part is preceded by its length, so two different
// sets never give the same bytes.
func clusterID(members []member) string {
	h := sha256.New()
	part := func(s string) {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(s)))
		h.Write(n[:])
		io.WriteString(h, s)
	}
	part("highwater cluster 1")
	for _, m := range sortedMembers(members) {
		part(m.ID)
		part(m.Instance)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func sortedMembers(members []member) []member {
	sorted := slices.Clone(members)
	slices.SortFunc(sorted, func(a, b member) int { return strings.Compare(a.ID, b.ID) })
	return sorted
}
