package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/highwater/highwater/lease"
)

// TestStartOrder starts three empty nodes in every order, the next one only
// when the one before answers: one cluster (C41).
func TestStartOrder(t *testing.T) {
	orders := [][]int{{2, 0, 1}, {1, 2, 0}}
	for _, order := range orders {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			c := newCluster(t, ClusterConfig{})
			for _, i := range order {
				must(t, c.Start(i))
				eventually(t, fmt.Sprintf("n%d is live", i+1), func() error { return c.Live(t.Context(), i) })
				if i != order[len(order)-1] && c.Ready(t.Context(), i) == nil {
					t.Errorf("n%d is ready before all are there", i+1)
				}
			}
			awaitReady(t, c, all(c)...)
			ids := map[string]bool{}
			for _, i := range all(c) {
				v, err := c.View(t.Context(), i)
				must(t, err)
				ids[v.ClusterID] = true
				if len(v.Nodes) != 3 {
					t.Errorf("n%d knows %d nodes", i+1, len(v.Nodes))
				}
			}
			if len(ids) != 1 || ids[""] {
				t.Errorf("the nodes are of the clusters %v", ids)
			}
		})
	}
}

// TestRebuild wipes all nodes and bootstraps anew, at once: with the automatic
// floor every token and every value of a sequence is larger than those of the
// earlier life (C29, C67).
func TestRebuild(t *testing.T) {
	c := startCluster(t, ClusterConfig{})
	h := NewHistory()
	caller := newCaller(t, "C67", h)
	for round := range size(2, 10) {
		for n := range 50 {
			// Names of the round's own: what was held is gone with the disks.
			wantOK(t, caller.Acquire(t.Context(), c.Endpoint(n%3), fmt.Sprintf("C67/%d/%d", round, n), time.Hour))
			wantOK(t, caller.Next(t.Context(), c.Endpoint(n%3), "C67", 1000))
		}
		for i := range c.Size() {
			must(t, c.Kill(i))
			must(t, c.Wipe(i))
		}
		must(t, c.StartAll())
		awaitReady(t, c, all(c)...)
	}
	wantOK(t, caller.Acquire(t.Context(), c.Endpoint(0), "C67/last", time.Hour))
	wantOK(t, caller.Next(t.Context(), c.Endpoint(0), "C67", 1))
	judge(t, h, Rules{Least: Least{Grants: 100, Ranges: 100}})
}

// TestFastSequence asks a sequence for more than the rate rule allows, is told
// too-busy, and rebuilds at once: it starts above all it ever issued (C66).
func TestFastSequence(t *testing.T) {
	c := startCluster(t, ClusterConfig{})
	h := NewHistory()
	caller := newCaller(t, "C66", h)
	hurry := func() {
		t.Helper()
		eventually(t, "the rate rule answers", func() error {
			for range 50 {
				r := caller.Next(t.Context(), c.Endpoint(0), "C66", lease.MaxCount)
				if r.Code == lease.CodeTooBusy {
					if r.Status != http.StatusTooManyRequests {
						t.Errorf("too-busy with status %d", r.Status)
					}
					return nil
				}
				wantOK(t, r)
			}
			return errors.New("no too-busy in 50 requests")
		})
	}
	hurry()
	// Time makes room again.
	eventually(t, "there is room again", func() error {
		if r := caller.Next(t.Context(), c.Endpoint(1), "C66", lease.MaxCount); r.Outcome != OK {
			return errors.New(r.Detail)
		}
		return nil
	})
	hurry()
	for i := range c.Size() {
		must(t, c.Kill(i))
		must(t, c.Wipe(i))
	}
	must(t, c.StartAll())
	awaitReady(t, c, all(c)...)
	wantOK(t, caller.Next(t.Context(), c.Endpoint(2), "C66", lease.MaxCount))
	judge(t, h, Rules{Least: Least{Ranges: 5}})
}

// TestWipedDisk wipes one disk of three and starts the node under its old name
// (C42, C60). A grant is committed on n1 and the old n2 only; the new n2 says
// the procedure and does not vote, so that n1's death leaves no quorum; with
// n1 back, no token is issued again.
func TestWipedDisk(t *testing.T) {
	bothStores(t, func(t *testing.T, store string) {
		c := startCluster(t, ClusterConfig{LogStore: store, Args: []string{"--leader-wait", "3s"}})
		h := NewHistory()
		caller := newCaller(t, "C60", h)
		leader := awaitLeader(t, c, -1)
		wiped, behind := others(c, leader)[0], others(c, leader)[1]
		clusterID := view(t, c, leader).ClusterID

		must(t, c.Kill(behind))
		grant := wantOK(t, caller.Acquire(t.Context(), c.Endpoint(leader), "C60", time.Hour))
		must(t, c.Kill(wiped))
		must(t, c.Wipe(wiped))
		must(t, c.Kill(leader))
		must(t, c.Start(behind))
		must(t, c.Start(wiped))

		// The new one has met the node behind once it says what to do. The two
		// cannot form a quorum.
		eventually(t, "the node behind is live", func() error { return c.Live(t.Context(), behind) })
		procedure := regexp.MustCompile(`(?is)remove.*join`)
		eventually(t, "the wiped node says what to do", func() error {
			if !procedure.MatchString(c.Log(wiped)) {
				return errors.New("neither remove nor join in its log")
			}
			return nil
		})
		if r := caller.Acquire(t.Context(), c.Endpoint(behind), "C60/other", time.Hour); r.Status < 500 {
			t.Errorf("without a quorum: %v", r)
		}
		must(t, c.Start(leader))
		awaitReady(t, c, leader, behind)
		if p := c.Process(wiped); p.Running() {
			if c.Ready(t.Context(), wiped) == nil {
				t.Error("the wiped node calls itself ready")
			}
		} else if p.ExitCode() == 0 {
			t.Error("the wiped node ended with code 0")
		}
		if got := view(t, c, leader).ClusterID; got != clusterID {
			t.Errorf("the cluster was %s and is %s", clusterID, got)
		}
		got := wantOK(t, caller.Get(t.Context(), c.Endpoint(behind), "C60"))
		if got.Token != grant.Token {
			t.Errorf("token %d was granted, and %d holds", grant.Token, got.Token)
		}
		wantOK(t, caller.Acquire(t.Context(), c.Endpoint(behind), "C60/after", time.Hour))
		judge(t, h, Rules{Least: Least{Grants: 2}})
		must(t, c.Kill(wiped)) // it is no member that could agree at the end
	})
}

func view(t *testing.T, c *Cluster, i int) View {
	t.Helper()
	v, err := c.View(t.Context(), i)
	must(t, err)
	return v
}

// TestNoQuorum kills two of three: every write is a 503 problem with
// Retry-After within bounded time, and stale reads still answer (C35).
func TestNoQuorum(t *testing.T) {
	// A leader has its first requests in its log already when it finds out; a
	// follower has none there.
	t.Run("the leader survives", func(t *testing.T) { noQuorum(t, true) })
	t.Run("a follower survives", func(t *testing.T) { noQuorum(t, false) })
}

func noQuorum(t *testing.T, leads bool) {
	c := startCluster(t, ClusterConfig{Args: []string{"--leader-wait", "3s"}})
	h := NewHistory()
	caller := newCaller(t, "C35", h)
	survivor := awaitLeader(t, c, -1)
	if !leads {
		survivor = others(c, survivor)[0]
	}
	held := wantOK(t, caller.Acquire(t.Context(), c.Endpoint(survivor), "C35", time.Hour))
	eventually(t, "the survivor's own state has it", func() error {
		if !stale(t, c, survivor, "C35")["C35"] {
			return errors.New("not yet")
		}
		return nil
	})
	for _, i := range others(c, survivor) {
		must(t, c.Kill(i))
	}
	// A node says that an outcome is unknown 10 s after a request's wait.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, first := range []bool{true, false} {
		var requests []*rawRequest
		addr := c.Addr(survivor)
		requests = append(requests,
			sendRaw(t, addr, http.MethodPost, LeasePath("C35/new"), `{"holder":"C35"}`),
			sendRaw(t, addr, http.MethodPut, LeasePath("C35"), fmt.Sprintf(`{"token":%d}`, held.Token)),
			sendRaw(t, addr, http.MethodDelete, LeasePath("C35")+"?token="+held.Token.String(), ""),
			sendRaw(t, addr, http.MethodPost, "/v1/sequences/C35", ""),
			sendRaw(t, addr, http.MethodGet, LeasePath("C35"), ""),
		)
		for _, r := range requests {
			resp, body := r.read(t)
			var p struct {
				Type    string `json:"type"`
				Status  int    `json:"status"`
				Applied string `json:"applied"`
			}
			must(t, json.Unmarshal(body, &p))
			kind := strings.TrimPrefix(p.Type, "urn:highwater:problem:")
			if resp.StatusCode != http.StatusServiceUnavailable || p.Status != resp.StatusCode ||
				resp.Header.Get("Content-Type") != "application/problem+json" || resp.Header.Get("Retry-After") == "" ||
				!(kind == "no-leader" && p.Applied == "no" || kind == "outcome-unknown" && p.Applied == "unknown") {
				t.Errorf("without a quorum: %d %v %s", resp.StatusCode, resp.Header, body)
			}
			// A second time there is no leader to begin with.
			if !first && kind != "no-leader" {
				t.Errorf("with no leader known: %s", body)
			}
		}
	}
	if ctx.Err() != nil {
		t.Error("the answers took longer than the times that a node documents")
	}
	resp, body := sendRaw(t, c.Addr(survivor), http.MethodGet, LeasePath("C35")+"?consistency=stale", "").read(t)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Highwater-Age-Ms") == "" || !strings.Contains(string(body), held.Token.String()) {
		t.Errorf("a stale read: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	for _, i := range others(c, survivor) {
		must(t, c.Start(i))
	}
	awaitReady(t, c, all(c)...)
}
