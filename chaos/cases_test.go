package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/highwater/highwater/lease"
)

// TestCases takes one cluster through the cases that need one, the quiet ones
// first. Each leaves all nodes running.
func TestCases(t *testing.T) {
	bothStores(t, func(t *testing.T, store string) {
		c := startCluster(t, ClusterConfig{LogStore: store})
		h := NewHistory()
		for _, one := range []struct {
			name string
			test func(*testing.T, *Cluster, *History)
		}{
			{"C47", secondProcess},
			{"C13", renewAgain},
			{"C20", expiryWithoutTraffic},
			{"C25", measuredLives},
			{"C27", noExpiredInLists},
			{"C06", grantThenKill},
			{"C39", readAfterKill},
			{"C03", oneNameManyClients},
			{"C16", forwardedThenKill},
			{"C62", readsOfAFrozenLeader},
			{"C26", renewalsThroughKills},
			{"C18", electionsEndNothingLate},
		} {
			t.Run(one.name, func(t *testing.T) { one.test(t, c, h) })
		}
		judge(t, h, Rules{Least: Least{Grants: 100, Renewals: 10, Releases: 1, Reads: 10}})
	})
}

// secondProcess starts a second process on a data directory in use: it is
// refused within seconds, with the path (C47).
func secondProcess(t *testing.T, c *Cluster, _ *History) {
	spare, err := NewCluster(ClusterConfig{Binary: program(t), Dir: t.TempDir()})
	must(t, err)
	args := append(spare.args(0), "--data-dir", c.DataDir(0))
	log := filepath.Join(t.TempDir(), "second.log")
	p, err := StartProcess(program(t), log, args...)
	must(t, err)
	defer func() { must(t, p.Signal(9)) }()
	eventually(t, "the second process ends", func() error {
		if p.Running() {
			return fmt.Errorf("process %d still runs", p.Pid())
		}
		return nil
	})
	printed, err := os.ReadFile(log)
	must(t, err)
	if p.ExitCode() <= 0 || !strings.Contains(string(printed), c.DataDir(0)) {
		t.Errorf("exit code %d, and it does not name %s:\n%s", p.ExitCode(), c.DataDir(0), printed)
	}
	must(t, c.Ready(t.Context(), 0))
}

// renewAgain loses the answer to a renewal and renews again (C13).
func renewAgain(t *testing.T, c *Cluster, h *History) {
	caller := newCaller(t, "C13", h)
	for i := range c.Size() {
		name := fmt.Sprintf("C13/%d", i)
		grant := wantOK(t, caller.Acquire(t.Context(), c.Endpoint(i), name, lease.MaxTTL))
		sendRaw(t, c.Addr(i), http.MethodPut, LeasePath(name), fmt.Sprintf(`{"token":%d}`, grant.Token)).drop(t)
		wantOK(t, caller.Renew(t.Context(), c.Endpoint(i), name, grant.Token, 0))
	}
}

// stale reads the leases of one node's own state below a prefix, which brings
// no traffic to the log.
func stale(t *testing.T, c *Cluster, i int, prefix string) map[string]bool {
	t.Helper()
	return list(t, c, i, prefix, "stale")
}

func list(t *testing.T, c *Cluster, i int, prefix, consistency string) map[string]bool {
	t.Helper()
	query := url.Values{"prefix": {prefix}, "limit": {"1000"}, "consistency": {consistency}}
	body, status, err := c.get(t.Context(), c.Endpoint(i)+"/v1/leases?"+query.Encode())
	must(t, err)
	var page struct {
		Leases []struct {
			Resource    string `json:"resource"`
			RemainingMs int64  `json:"remaining_ms"`
		} `json:"leases"`
	}
	if err := json.Unmarshal(body, &page); err != nil || status != http.StatusOK {
		t.Fatalf("list of n%d: status %d, %v: %s", i+1, status, err, body)
	}
	names := map[string]bool{}
	for _, l := range page.Leases {
		names[l.Resource] = true
		if l.RemainingMs < 0 {
			t.Errorf("n%d lists %q with %d ms left (C27)", i+1, l.Resource, l.RemainingMs)
		}
	}
	return names
}

// tick is the longest time between two entries while anything is live, and
// latency allows for the disk and for the processor that all nodes share here.
const (
	tick    = 500 * time.Millisecond
	latency = 500 * time.Millisecond
)

// expiryWithoutTraffic has a lease end with no client traffic: within one tick
// of its deadline, in every node's state (C20).
func expiryWithoutTraffic(t *testing.T, c *Cluster, h *History) {
	caller := newCaller(t, "C20", h)
	grant := wantOK(t, caller.Acquire(t.Context(), c.Endpoint(0), "C20/a", time.Second))
	deadline := grant.Return + grant.TTLMs*int64(time.Millisecond)
	for _, i := range all(c) {
		var ended int64
		eventually(t, "the lease ends", func() error {
			sent := h.Now()
			if stale(t, c, i, "C20/")["C20/a"] {
				return fmt.Errorf("n%d still has it", i+1)
			}
			ended = sent
			return nil
		})
		// The bound is on the first node only: the others were asked later.
		if late := time.Duration(ended - deadline); i == 0 && late > tick+latency {
			t.Errorf("it was there %v after its deadline", late)
		}
	}
}

// measuredLives measures 200 unrenewed leases: each lives within
// [TTL, TTL + 1 s] (C25).
func measuredLives(t *testing.T, c *Cluster, h *History) {
	const leases, ttl = 200, time.Second
	callers := 8
	grants := make(chan Record, leases)
	var sending sync.WaitGroup
	for k := range callers {
		caller := newCaller(t, fmt.Sprintf("C25-%d", k), h)
		sending.Go(func() {
			for n := range leases / callers {
				grants <- caller.Acquire(t.Context(), c.Endpoint(n%c.Size()), fmt.Sprintf("C25/%d/%d", k, n), ttl)
			}
		})
	}
	go func() {
		sending.Wait()
		close(grants)
	}()

	// While they are made, all that is read is one node's own state. A lease
	// that a reading does not show has ended, if it was granted before.
	live := map[string]Record{}
	lastSeen := map[string]int64{}
	var shortest, longest time.Duration
	measured := 0
	open := true
	eventually(t, "all leases end", func() error {
		for more := true; more && open; {
			select {
			case g, ok := <-grants:
				if !ok {
					open = false
					break
				}
				wantOK(t, g)
				live[g.Name], lastSeen[g.Name] = g, g.Return
			default:
				more = false
			}
		}
		sent := h.Now()
		names := stale(t, c, awaitLeader(t, c, -1), "C25/")
		answered := h.Now()
		for name, g := range live {
			if names[name] {
				lastSeen[name] = sent
				continue
			}
			atMost, atLeast := time.Duration(answered-g.Invoke), time.Duration(lastSeen[name]-g.Return)
			if atMost < ttl {
				t.Errorf("%q lived for %v at most, with a TTL of %v", name, atMost, ttl)
			}
			if atLeast > ttl+time.Second {
				t.Errorf("%q lived for %v at least, with a TTL of %v", name, atLeast, ttl)
			}
			if measured == 0 || atMost < shortest {
				shortest = atMost
			}
			longest = max(longest, atLeast)
			measured++
			delete(live, name)
		}
		if open || len(live) > 0 {
			return fmt.Errorf("%d live", len(live))
		}
		return nil
	})
	if measured != leases {
		t.Errorf("measured %d of %d lives", measured, leases)
	}
	t.Logf("lives of %d leases of %v: shortest at most %v, longest at least %v", measured, ttl, shortest, longest)
}

// noExpiredInLists lists leases on every node while they end, and finds none
// whose end has come (C27).
func noExpiredInLists(t *testing.T, c *Cluster, h *History) {
	caller := newCaller(t, "C27", h)
	ends := map[string]int64{}
	for n := range 60 {
		name := fmt.Sprintf("C27/%02d", n)
		g := wantOK(t, caller.Acquire(t.Context(), c.Endpoint(n%c.Size()), name, time.Second))
		ends[name] = g.Return + g.TTLMs*int64(time.Millisecond)
	}
	// Authority time is whole milliseconds.
	const rounding = int64(time.Millisecond)
	readings := 0
	for left := len(ends); left > 0; readings++ {
		left = 0
		for _, i := range all(c) {
			sent := h.Now()
			names := list(t, c, i, "C27/", "linearizable")
			for name := range names {
				if sent > ends[name]+rounding {
					t.Errorf("n%d lists %q %v after its end", i+1, name, time.Duration(sent-ends[name]))
				}
			}
			left = max(left, len(names))
		}
	}
	if readings < 10 {
		t.Errorf("only %d readings", readings)
	}
}

// grantThenKill kills the leader straight after a 201: the grant is there
// after the election, with its token (C06).
func grantThenKill(t *testing.T, c *Cluster, h *History) {
	caller := newCaller(t, "C06", h)
	leader := awaitLeader(t, c, -1)
	grant := wantOK(t, caller.Acquire(t.Context(), c.Endpoint(leader), "C06", time.Hour))
	must(t, c.Kill(leader))
	for _, i := range others(c, leader) {
		got := wantOK(t, caller.Get(t.Context(), c.Endpoint(i), "C06"))
		if got.Token != grant.Token || got.Holder != grant.Holder {
			t.Errorf("n%d has token %d of %s, not token %d of %s", i+1, got.Token, got.Holder, grant.Token, grant.Holder)
		}
	}
	must(t, c.Start(leader))
	awaitReady(t, c, leader)
}

// readAfterKill has the first read on a fresh leader see the last acknowledged
// write (C39), while writes go on through both of the others.
func readAfterKill(t *testing.T, c *Cluster, h *History) {
	caller := newCaller(t, "C39", h)
	for round := range size(2, 10) {
		name := fmt.Sprintf("C39/%d", round)
		leader := awaitLeader(t, c, -1)
		last := wantOK(t, caller.Acquire(t.Context(), c.Endpoint(leader), name, time.Hour))
		for range 5 {
			wantOK(t, caller.Release(t.Context(), c.Endpoint(leader), name, last.Token))
			last = wantOK(t, caller.Acquire(t.Context(), c.Endpoint(leader), name, time.Hour))
		}
		must(t, c.Kill(leader))
		var reads sync.WaitGroup
		for _, i := range others(c, leader) {
			reader := newCaller(t, fmt.Sprintf("C39-n%d", i+1), h)
			reads.Go(func() {
				if got := reader.Get(t.Context(), c.Endpoint(i), name); got.Outcome != OK || got.Token != last.Token {
					t.Errorf("want token %d, got %v", last.Token, got)
				}
			})
		}
		reads.Wait()
		must(t, c.Start(leader))
		awaitReady(t, c, leader)
	}
}

// oneNameManyClients has 32 clients acquire one free name while the leader is
// killed: exactly one grant; the others are told that it is held, or that
// their outcome is unknown (C03).
func oneNameManyClients(t *testing.T, c *Cluster, h *History) {
	const clients = 32
	for round, after := range []int{0, 1, 8} {
		name := fmt.Sprintf("C03/%d", round)
		leader := awaitLeader(t, c, -1)
		answers := make(chan Record, clients)
		ready := make(chan struct{})
		for k := range clients {
			caller := newCaller(t, fmt.Sprintf("C03-%d", k), h)
			go func() {
				<-ready
				answers <- caller.Acquire(context.WithoutCancel(t.Context()), c.Endpoint(k%c.Size()), name, time.Hour)
			}()
		}
		close(ready)
		var got []Record
		for range after {
			got = append(got, <-answers)
		}
		must(t, c.Kill(leader))
		for len(got) < clients {
			got = append(got, <-answers)
		}
		var winners []Record
		for _, r := range got {
			switch {
			case r.Outcome == OK:
				winners = append(winners, r)
			case r.Code == lease.CodeLeaseHeld, r.Outcome == Unknown:
			case r.Status == 0 && r.Endpoint == c.Endpoint(leader): // it was dead already
			default:
				t.Errorf("round %d: an answer that says neither: %v", round, r)
			}
		}
		if len(winners) > 1 {
			t.Errorf("round %d: %d grants: %v", round, len(winners), winners)
		}
		survivor := others(c, leader)[0]
		holder := wantOK(t, newCaller(t, "C03", h).Get(t.Context(), c.Endpoint(survivor), name))
		if len(winners) == 1 && winners[0].Token != holder.Token {
			t.Errorf("round %d: token %d was granted, and %d holds", round, winners[0].Token, holder.Token)
		}
		must(t, c.Start(leader))
		awaitReady(t, c, leader)
	}
}

// forwardedThenKill has followers take writes that their leader never answers,
// since it is stopped and then killed: each client sees one delayed answer
// (C16).
func forwardedThenKill(t *testing.T, c *Cluster, h *History) {
	leader := awaitLeader(t, c, -1)
	must(t, c.Pause(leader))
	var calls sync.WaitGroup
	for _, i := range others(c, leader) {
		for k := range 4 {
			caller := newCaller(t, fmt.Sprintf("C16-n%d-%d", i+1, k), h)
			name := fmt.Sprintf("C16/%d/%d", i, k)
			calls.Go(func() {
				grant := caller.Acquire(context.WithoutCancel(t.Context()), c.Endpoint(i), name, time.Hour)
				if grant.Outcome != OK {
					t.Errorf("want a grant, late, got %v", grant)
				}
				if next := caller.Next(context.WithoutCancel(t.Context()), c.Endpoint(i), "C16", 1); next.Outcome != OK {
					t.Errorf("want a value, got %v", next)
				}
			})
		}
	}
	awaitLeader(t, c, leader)
	must(t, c.Kill(leader))
	calls.Wait()
	must(t, c.Start(leader))
	awaitReady(t, c, leader)
}

// readsOfAFrozenLeader stops the leader, has the resource change hands under
// another, and wakes the first with requests in its socket: it answers with the
// new holder or an error, never with the old one, and it grants, renews and
// ends nothing (C10, C62).
func readsOfAFrozenLeader(t *testing.T, c *Cluster, h *History) {
	caller := newCaller(t, "C62", h)
	for round := range size(3, 20) {
		old := awaitLeader(t, c, -1)
		name, bystander := fmt.Sprintf("C62/%d", round), fmt.Sprintf("C62/bystander/%d", round)
		first := wantOK(t, caller.Acquire(t.Context(), c.Endpoint(old), name, time.Hour))
		kept := wantOK(t, caller.Acquire(t.Context(), c.Endpoint(old), bystander, time.Hour))
		must(t, c.Pause(old))
		leader := awaitLeader(t, c, old)
		wantOK(t, caller.Release(t.Context(), c.Endpoint(leader), name, first.Token))
		second := wantOK(t, caller.Acquire(t.Context(), c.Endpoint(leader), name, time.Hour))

		var reads, writes []*rawRequest
		for range 8 {
			reads = append(reads, sendRaw(t, c.Addr(old), http.MethodGet, LeasePath(name), ""))
		}
		writes = append(writes,
			sendRaw(t, c.Addr(old), http.MethodPut, LeasePath(name), fmt.Sprintf(`{"token":%d}`, first.Token)),
			sendRaw(t, c.Addr(old), http.MethodDelete, LeasePath(name)+"?token="+first.Token.String(), ""),
			sendRaw(t, c.Addr(old), http.MethodPost, LeasePath(name), `{"holder":"C62-woken"}`),
		)
		must(t, c.Resume(old))
		for _, r := range reads {
			resp, body := r.read(t)
			var got struct {
				Token lease.Token `json:"token"`
			}
			must(t, json.Unmarshal(body, &got))
			if resp.StatusCode < 500 && got.Token != second.Token {
				t.Errorf("round %d: the woken leader answers %d %s; token %d holds", round, resp.StatusCode, body, second.Token)
			}
		}
		for _, r := range writes {
			if resp, body := r.read(t); resp.StatusCode < 400 {
				t.Errorf("round %d: the woken leader applied a stale write: %d %s", round, resp.StatusCode, body)
			}
		}
		for _, want := range []Record{second, kept} {
			if got := wantOK(t, caller.Get(t.Context(), c.Endpoint(leader), want.Name)); got.Token != want.Token {
				t.Errorf("round %d: %q is held with token %d, not %d", round, want.Name, got.Token, want.Token)
			}
		}
		awaitReady(t, c, old)
	}
}

// renewalsThroughKills kills one node of three, a follower and then the leader,
// while holders renew at a third of their TTL: nobody loses a lease (C26).
func renewalsThroughKills(t *testing.T, c *Cluster, h *History) {
	const holders, ttl = 8, 6 * time.Second
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var kept sync.WaitGroup
	for k := range holders {
		caller := newCaller(t, fmt.Sprintf("C26-%d", k), h)
		caller.Timeout = time.Second
		name := fmt.Sprintf("C26/%d", k)
		grant := wantOK(t, caller.Acquire(t.Context(), c.Endpoint(k%c.Size()), name, ttl))
		kept.Add(1)
		go func() {
			defer kept.Done()
			third := time.NewTicker(ttl / 3)
			defer third.Stop()
			for at := k; ; {
				select {
				case <-ctx.Done():
					return
				case <-third.C:
				}
				// A renewal repeats by nature: on, until one is answered.
				for {
					r := caller.Renew(context.WithoutCancel(ctx), c.Endpoint(at%c.Size()), name, grant.Token, 0)
					if r.Outcome == OK {
						break
					}
					if r.Status != 0 && r.Status < 500 {
						t.Errorf("a holder that renews in time lost its lease: %v", r)
						return
					}
					at++
				}
			}
		}()
	}
	for _, leads := range []bool{false, true} {
		victim := awaitLeader(t, c, -1)
		if !leads {
			victim = others(c, victim)[0]
		}
		must(t, c.Kill(victim))
		awaitRenewals(t, h, "C26/", 2*holders)
		must(t, c.Start(victim))
		awaitReady(t, c, victim)
	}
	stop()
	kept.Wait()
}

// awaitRenewals waits for n further renewals of resources below a prefix.
func awaitRenewals(t *testing.T, h *History, prefix string, n int) {
	t.Helper()
	from := len(h.Records())
	eventually(t, fmt.Sprintf("%d renewals", n), func() error {
		got := 0
		for _, r := range h.Records()[from:] {
			if r.Op == OpRenew && r.Outcome == OK && strings.HasPrefix(r.Name, prefix) {
				got++
			}
		}
		if got < n {
			return fmt.Errorf("%d of %d", got, n)
		}
		return nil
	})
}

// electionsEndNothingLate has an election every half TTL while the holder is
// dead: the lease still ends, later by no more than the time without a leader
// and a tick for each election (C18).
func electionsEndNothingLate(t *testing.T, c *Cluster, h *History) {
	const ttl = 4 * time.Second
	caller := newCaller(t, "C18", h)
	grant := wantOK(t, caller.Acquire(t.Context(), c.Endpoint(0), "C18", ttl))
	deadline := grant.Return + int64(ttl)
	without, elections := time.Duration(0), 0
	half := time.NewTicker(ttl / 2)
	defer half.Stop()
	for {
		old := awaitLeader(t, c, -1)
		killed := h.Now()
		must(t, c.Kill(old))
		got := caller.Get(t.Context(), c.Endpoint(others(c, old)[0]), "C18")
		without += time.Duration(h.Now() - killed)
		elections++
		must(t, c.Start(old))
		awaitReady(t, c, old)
		if got.Code == lease.CodeNotHeld {
			break
		}
		wantOK(t, got)
		if got.RemainingMs > got.TTLMs || got.RemainingMs < 0 {
			t.Errorf("straight after an election %d ms are left of %d (C19)", got.RemainingMs, got.TTLMs)
		}
		if late := time.Duration(h.Now() - deadline); late > without+time.Duration(elections)*tick+latency+ttl/2 {
			t.Fatalf("it is there %v after its deadline, with %v without a leader in %d elections", late, without, elections)
		}
		<-half.C
	}
	t.Logf("ended after %d elections, %v without a leader", elections, without)
}
