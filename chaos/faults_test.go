package chaos

import (
	"context"
	"testing"
	"time"
)

// eightClients is the load under which nodes are killed, frozen and restarted.
func eightClients(c *Cluster) Load {
	return Load{Clients: 8, Endpoints: c.Endpoints(), Shared: 4, TTL: 2 * time.Second, Timeout: 3 * time.Second}
}

// somethingHappened is far below what the slowest machine does in one round.
func somethingHappened(rounds int) Rules {
	return Rules{
		Least: Least{Grants: 20 * rounds, Renewals: 10 * rounds, Releases: 10 * rounds, Reads: 10 * rounds, Ranges: 20 * rounds},
		// A lease of two seconds meets one election, at times two. This is for
		// leases that never end; C18 and C25 measure.
		Late: 20 * time.Second,
	}
}

// TestKillLeader kills the leader under load, again and again.
func TestKillLeader(t *testing.T) {
	bothStores(t, func(t *testing.T, store string) {
		c := startCluster(t, ClusterConfig{LogStore: store})
		h := NewHistory()
		rounds := size(2, 20)
		underLoad(t, eightClients(c), h, func() {
			for range rounds {
				awaitSuccesses(t, h, 300)
				old := awaitLeader(t, c, -1)
				must(t, c.Kill(old))
				awaitLeader(t, c, old)
				awaitSuccesses(t, h, 300)
				must(t, c.Start(old))
				awaitReady(t, c, old)
			}
		})
		judge(t, h, somethingHappened(rounds))
	})
}

// TestFreezeLeader stops the leader under load, has another elected, and wakes
// the first (C10).
func TestFreezeLeader(t *testing.T) {
	bothStores(t, func(t *testing.T, store string) {
		c := startCluster(t, ClusterConfig{LogStore: store})
		h := NewHistory()
		rounds := size(2, 20)
		underLoad(t, eightClients(c), h, func() {
			for range rounds {
				awaitSuccesses(t, h, 300)
				old := awaitLeader(t, c, -1)
				must(t, c.Pause(old))
				awaitLeader(t, c, old)
				awaitSuccesses(t, h, 300)
				must(t, c.Resume(old))
				awaitReady(t, c, old)
			}
		})
		judge(t, h, somethingHappened(rounds))
	})
}

// TestKillAll cuts the power of all nodes at once under load. A lease that was
// held is held afterwards, with its token.
func TestKillAll(t *testing.T) {
	bothStores(t, func(t *testing.T, store string) {
		c := startCluster(t, ClusterConfig{LogStore: store})
		h := NewHistory()
		holder := newCaller(t, "holder", h)
		held := wantOK(t, holder.Acquire(t.Context(), c.Endpoint(0), "long/held", time.Hour))
		rounds := size(2, 20)
		underLoad(t, eightClients(c), h, func() {
			for range rounds {
				awaitSuccesses(t, h, 300)
				for i := range c.Size() {
					must(t, c.Kill(i))
				}
				must(t, c.StartAll())
				awaitReady(t, c, all(c)...)
				got := wantOK(t, holder.Get(t.Context(), c.Endpoint(0), "long/held"))
				if got.Token != held.Token || got.Holder != held.Holder {
					t.Errorf("the lease was token %d of %s, and is token %d of %s", held.Token, held.Holder, got.Token, got.Holder)
				}
			}
		})
		judge(t, h, somethingHappened(rounds))
	})
}

// TestRollingRestart ends one node after the other as an upgrade does. Each
// must end by itself, with code 0.
func TestRollingRestart(t *testing.T) {
	bothStores(t, func(t *testing.T, store string) {
		c := startCluster(t, ClusterConfig{LogStore: store})
		h := NewHistory()
		rounds := size(1, 7)
		underLoad(t, eightClients(c), h, func() {
			for range rounds {
				for i := range c.Size() {
					awaitSuccesses(t, h, 200)
					stop(t, c, i)
					awaitLeader(t, c, i)
					awaitSuccesses(t, h, 200)
					must(t, c.Start(i))
					awaitReady(t, c, i)
				}
			}
		})
		judge(t, h, somethingHappened(rounds))
	})
}

func stop(t *testing.T, c *Cluster, i int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longStop)
	defer cancel()
	code, err := c.Stop(ctx, i)
	must(t, err)
	if code != 0 {
		t.Errorf("n%d ended on SIGTERM with code %d", i+1, code)
	}
}
