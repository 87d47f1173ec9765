package cluster

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/highwater/highwater/lease"
)

// BenchmarkCycle acquires a free lease and releases it, from clients spread over
// three nodes, all durable. Below HTTP and JSON: what the cluster itself carries.
func BenchmarkCycle(b *testing.B) {
	for _, clients := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			c := startCluster(b, 3, direct)
			benchmark(b, c, clients, func(n *Node, name string) error {
				l, err := n.Acquire(b.Context(), acquire(name, "h", time.Minute))
				if err != nil {
					return err
				}
				return n.Release(b.Context(), lease.ReleaseRequest{Resource: name, Token: l.Token})
			})
		})
	}
}

// BenchmarkNext takes the next value of one sequence.
func BenchmarkNext(b *testing.B) {
	for _, clients := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			c := startCluster(b, 3, direct)
			benchmark(b, c, clients, func(n *Node, _ string) error {
				_, err := n.Next(b.Context(), lease.NextRequest{Name: "s", Count: 1})
				return err
			})
		})
	}
}

// BenchmarkGet reads a lease, linearizable.
func BenchmarkGet(b *testing.B) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			c := startCluster(b, 3, direct)
			c.mustAcquire(c.leader(), "a", time.Hour)
			benchmark(b, c, clients, func(n *Node, _ string) error {
				_, _, err := n.GetLease(b.Context(), "a", false)
				return err
			})
		})
	}
}

func benchmark(b *testing.B, c *testCluster, clients int, do func(n *Node, name string) error) {
	nodes := c.running()
	elections := c.leader().raft.Load().CurrentTerm()
	var left atomic.Int64
	left.Store(int64(b.N))
	latencies := make([][]time.Duration, clients)
	var working sync.WaitGroup
	b.ResetTimer()
	b.ReportAllocs()
	for i := range clients {
		n, name := nodes[i%len(nodes)], fmt.Sprintf("bench/%d", i)
		working.Go(func() {
			for left.Add(-1) >= 0 {
				start := time.Now()
				if err := do(n, name); err != nil {
					b.Error(err)
					return
				}
				latencies[i] = append(latencies[i], time.Since(start))
			}
		})
	}
	working.Wait()
	b.StopTimer()
	all := slices.Concat(latencies...)
	slices.Sort(all)
	if len(all) > 0 {
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
		b.ReportMetric(float64(all[len(all)-1].Microseconds())/1000, "max-ms")
	}
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "ops/s")
	if now := c.leader().raft.Load().CurrentTerm(); now != elections {
		b.Logf("%d elections", now-elections)
	}
}

// direct leaves out the net that faults are put into.
func direct(_ int, c *Config) { c.Dial = nil }

// BenchmarkFailover kills the leader and measures until another node's next
// acquire is answered.
func BenchmarkFailover(b *testing.B) {
	c := startCluster(b, 3, direct)
	var took []time.Duration
	b.ResetTimer()
	for i := range b.N {
		leader := c.leader().cfg.NodeID
		n := c.node(c.others(leader)[i%2])
		b.StopTimer()
		c.mustAcquire(n, fmt.Sprintf("before/%d", i), time.Hour)
		b.StartTimer()
		start := time.Now()
		killed := make(chan struct{})
		go func() {
			c.kill(leader)
			close(killed)
		}()
		c.mustAcquire(n, fmt.Sprintf("after/%d", i), time.Hour)
		took = append(took, time.Since(start))
		b.StopTimer()
		<-killed
		c.start(leader)
		c.waitReady(leader)
		b.StartTimer()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "p50-ms")
	b.ReportMetric(float64(took[len(took)-1].Milliseconds()), "max-ms")
}
