package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// bootstrapInterval is how often the listed nodes are asked, and
	// bootstrapTimeout how long each has to answer.
	bootstrapInterval = 250 * time.Millisecond
	bootstrapTimeout  = 2 * time.Second
	// bootstrapLogInterval is how often it is said whom the node waits for.
	bootstrapLogInterval = 10 * time.Second
	// maxInitialCluster keeps a list of nodes within a hello.
	maxInitialCluster = 31
)

// raftTermKey is Raft's key of the current term.
var raftTermKey = []byte("CurrentTerm")

// bootstrapConfig is what the first start of a cluster needs.
type bootstrapConfig struct {
	NodeID         string
	InitialCluster []member         // from parseInitialCluster
	AutoFloor      bool             // --token-floor auto: the clocks are checked
	Now            func() time.Time // wall clock
	Logger         hclog.Logger
}

// bootstrap makes the node a part of a new cluster. It waits until every listed
// node has told its instance ID, and each is empty or already of the cluster
// that these make; then it writes identity and first configuration, the same on
// all nodes. On a node that has state the list is ignored and it returns at
// once. It is cancelled by ctx; any other error is one to exit with.
//
// The order makes a crash at any point harmless. First the decision: cluster ID
// and configuration, in one write. Other nodes may count on it from then on, so
// after a crash it is carried out and not made again. Then term 1 and the
// configuration entry; both are the same however often they are written. Last
// the mark that the log has begun. Raft is started after that only.
func bootstrap(ctx context.Context, cfg bootstrapConfig, st *stores, net *network) (identity, error) {
	id := st.identity()
	if id.Bootstrapped {
		return id, nil
	}
	if id.ClusterID == "" {
		members, err := agree(ctx, cfg, id, net)
		if err != nil {
			return identity{}, err
		}
		id.ClusterID, id.Initial = clusterID(members), members
	}
	for _, step := range bootstrapSteps(st, id) {
		if err := step(); err != nil {
			return identity{}, err
		}
	}
	return st.identity(), nil
}

// bootstrapSteps are the writes, in order; each may be done again.
func bootstrapSteps(st *stores, id identity) []func() error {
	entry := &raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: firstConfiguration(id.Initial)}
	return []func() error{
		func() error { return st.saveIdentity(id) },
		func() error {
			term, err := st.stable.GetUint64(raftTermKey)
			switch {
			case err == nil && term == 1:
				return nil
			case err == nil && term > 1:
				return fmt.Errorf("%s: term is %d before the first configuration was written", st.dir, term)
			case err != nil && !isNotFound(err):
				return err
			}
			return st.stable.SetUint64(raftTermKey, 1)
		},
		func() error {
			last, err := st.log.LastIndex()
			if err != nil {
				return err
			}
			if last == 0 {
				return st.log.StoreLog(entry)
			}
			var have raft.Log
			if err := st.log.GetLog(last, &have); err != nil {
				return err
			}
			if have.Index != 1 || have.Term != 1 || have.Type != raft.LogConfiguration || !bytes.Equal(have.Data, entry.Data) {
				return fmt.Errorf("%s: the log has entries from before the first configuration was written", st.dir)
			}
			return nil
		},
		func() error {
			id.Bootstrapped = true
			return st.saveIdentity(id)
		},
	}
}

// isNotFound matches the text as Raft does: its stores share no error value.
func isNotFound(err error) bool { return err.Error() == "not found" }

// firstConfiguration is the entry that all nodes write, byte for byte the same.
func firstConfiguration(members []member) []byte {
	var c raft.Configuration
	for _, m := range sortedMembers(members) {
		c.Servers = append(c.Servers, raft.Server{
			Suffrage: raft.Voter,
			ID:       serverID(m.ID, m.Instance),
			Address:  raft.ServerAddress(m.ClusterAddr),
		})
	}
	return raft.EncodeConfiguration(c)
}

// agree waits for the listed nodes and returns them with their instance IDs.
func agree(ctx context.Context, cfg bootstrapConfig, own identity, net *network) ([]member, error) {
	if len(cfg.InitialCluster) == 0 {
		return nil, errors.New("--initial-cluster: needed, because the data directory is empty; to add a node to a running cluster use --join")
	}
	if err := checkInitialCluster(cfg.InitialCluster); err != nil {
		return nil, err
	}
	listed := slices.ContainsFunc(cfg.InitialCluster, func(m member) bool { return m.ID == cfg.NodeID })
	if !listed || own.NodeID != cfg.NodeID {
		return nil, fmt.Errorf("--initial-cluster: the list lacks this node, --node-id %s", cfg.NodeID)
	}
	var lastLine time.Time
	retry := time.NewTicker(bootstrapInterval)
	defer retry.Stop()
	for {
		if cfg.AutoFloor {
			if err := checkClock(cfg.Now()); err != nil {
				return nil, err
			}
		}
		members, waiting, err := judge(cfg, own, ask(ctx, cfg, net))
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		if len(waiting) == 0 {
			return members, nil
		}
		if lastLine.IsZero() || time.Since(lastLine) >= bootstrapLogInterval {
			lastLine = time.Now()
			cfg.Logger.Info("waiting to form a cluster", "for", strings.Join(waiting, "; "))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-retry.C:
		}
	}
}

// told is what one listed node answered.
type told struct {
	member        member
	status        peerStatus
	before, after time.Time // this node's wall clock around the question
	err           error
}

// ask asks every listed node but this one, at the same time.
func ask(ctx context.Context, cfg bootstrapConfig, net *network) []told {
	ctx, cancel := context.WithTimeout(ctx, bootstrapTimeout)
	defer cancel()
	var asking sync.WaitGroup
	answers := make([]told, 0, len(cfg.InitialCluster))
	for _, m := range cfg.InitialCluster {
		if m.ID != cfg.NodeID {
			answers = append(answers, told{member: m})
		}
	}
	for i := range answers {
		asking.Go(func() {
			t := &answers[i]
			t.before = cfg.Now()
			t.status, t.err = net.status(ctx, t.member.ClusterAddr)
			t.after = cfg.Now()
		})
	}
	asking.Wait()
	return answers
}

// judge decides from one round of answers: the members, if all fits; else what
// is waited for; or an error that waiting does not cure.
func judge(cfg bootstrapConfig, own identity, answers []told) (members []member, waiting []string, err error) {
	wait := func(t told, format string, args ...any) {
		waiting = append(waiting, fmt.Sprintf("%s (%s): ", t.member.ID, t.member.ClusterAddr)+fmt.Sprintf(format, args...))
	}
	for _, m := range cfg.InitialCluster {
		if m.ID == cfg.NodeID {
			m.Instance = own.Instance
			members = append(members, m)
		}
	}
	for _, t := range answers {
		if t.err != nil {
			wait(t, "%v", t.err)
			continue
		}
		name, instance := splitServerID(raft.ServerID(t.status.ServerID))
		if name != t.member.ID {
			wait(t, "node %s answers there", name)
			continue
		}
		for _, m := range members {
			if m.Instance == instance {
				return nil, nil, fmt.Errorf("--data-dir: nodes %s and %s have the same instance ID: one data directory is a copy of the other; empty one of them", m.ID, name)
			}
		}
		t.member.Instance = instance
		members = append(members, t.member)
		if t.status.HasState {
			// Said even while others are missing: it will not get better.
			if err := foreign(cfg, own, t); err != nil {
				return nil, nil, err
			}
		} else if !sameList(t.status.Initial, cfg.InitialCluster) {
			wait(t, "its --initial-cluster is another list")
		}
		if difference := clockDifference(t.status, t.before, t.after); cfg.AutoFloor && difference > maxClockDifference {
			wait(t, "its clock is %s from this node's, and --token-floor auto allows %s; set the clocks, or give --token-floor a number",
				difference.Round(time.Second), maxClockDifference)
		}
	}
	if len(members) < len(cfg.InitialCluster) {
		return nil, waiting, nil
	}
	members = sortedMembers(members)
	made := clusterID(members)
	for _, t := range answers {
		if !t.status.HasState || t.status.ClusterID == made {
			continue
		}
		for _, m := range t.status.Initial {
			if !slices.Contains(members, m) {
				return nil, nil, fmt.Errorf("--initial-cluster: node %s belongs to cluster %s, which was made with %s as instance %s: "+
					"the data directory of %s was replaced since, so the listed nodes make another cluster; "+
					"if that cluster runs, remove this node and %s from it and start each with --join, else empty the data directory of %s",
					t.member.ID, t.status.ClusterID, m.ID, m.Instance, m.ID, m.ID, t.member.ID)
			}
		}
		return nil, nil, foreignCluster(cfg, t)
	}
	return members, waiting, nil
}

// foreign says why a node with state cannot be of the cluster that this one is
// to be part of; nil if it may be. The procedure is the one for what most likely
// happened: a replaced disk (C42), or a node of another cluster (C43).
func foreign(cfg bootstrapConfig, own identity, t told) error {
	at := slices.IndexFunc(t.status.Initial, func(m member) bool { return m.ID == cfg.NodeID })
	switch {
	case at < 0:
		return foreignCluster(cfg, t)
	case t.status.Initial[at].Instance != own.Instance:
		return fmt.Errorf("--initial-cluster: node %s belongs to cluster %s, which knows %s with another data directory (instance %s, not %s); "+
			"this node must not take its place: remove %s from the cluster, then start it with --join",
			t.member.ID, t.status.ClusterID, cfg.NodeID, t.status.Initial[at].Instance, own.Instance, cfg.NodeID)
	case !sameList(t.status.Initial, cfg.InitialCluster):
		return fmt.Errorf("--initial-cluster: node %s belongs to cluster %s, which was made with another list: %s",
			t.member.ID, t.status.ClusterID, formatMembers(t.status.Initial))
	}
	return nil
}

func foreignCluster(cfg bootstrapConfig, t told) error {
	return fmt.Errorf("--initial-cluster: node %s belongs to another cluster already, %s; "+
		"if this node is to be a part of that one: remove %s from it where it is still a member, then start it with --join; "+
		"if not, correct the list, or empty the data directory of %s",
		t.member.ID, t.status.ClusterID, cfg.NodeID, t.member.ID)
}

// sameList compares names and addresses; the order does not matter.
func sameList(a, b []member) bool {
	return slices.EqualFunc(sortedMembers(a), sortedMembers(b), func(a, b member) bool {
		return a.ID == b.ID && a.ClusterAddr == b.ClusterAddr
	})
}

func formatMembers(members []member) string {
	var parts []string
	for _, m := range sortedMembers(members) {
		parts = append(parts, m.ID+"="+m.ClusterAddr)
	}
	return strings.Join(parts, ",")
}

// parseInitialCluster reads --initial-cluster, "n1=host:port,n2=host:port".
func parseInitialCluster(s string) ([]member, error) {
	var members []member
	for part := range strings.SplitSeq(s, ",") {
		id, addr, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("--initial-cluster: must be NODE=HOST:PORT,NODE=HOST:PORT,..., and %q is not NODE=HOST:PORT", part)
		}
		members = append(members, member{ID: id, ClusterAddr: addr})
	}
	if err := checkInitialCluster(members); err != nil {
		return nil, err
	}
	return members, nil
}

// checkInitialCluster refuses a list that no cluster can be made of. All nodes
// use one list, so a loopback address in it is for lists on loopback only.
func checkInitialCluster(members []member) error {
	if len(members) > maxInitialCluster {
		return fmt.Errorf("--initial-cluster: at most %d nodes, not %d", maxInitialCluster, len(members))
	}
	var addrs []string
	for _, m := range members {
		addrs = append(addrs, m.ClusterAddr)
	}
	ids, seen := make(map[string]bool), make(map[string]bool)
	for _, m := range members {
		if err := checkNodeID("--initial-cluster", m.ID); err != nil {
			return err
		}
		if err := checkAdvertised("--initial-cluster", m.ClusterAddr, addrs); err != nil {
			return err
		}
		if ids[m.ID] {
			return fmt.Errorf("--initial-cluster: node %s is listed twice", m.ID)
		}
		if seen[m.ClusterAddr] {
			return fmt.Errorf("--initial-cluster: address %s is listed twice", m.ClusterAddr)
		}
		ids[m.ID], seen[m.ClusterAddr] = true, true
	}
	return nil
}
