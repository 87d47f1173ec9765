package cluster

import (
	"errors"
	"testing"
	"time"

	"github.com/highwater/highwater/lease"
)

// What the leader had, this node has only when it has applied as much.
func TestCurrencyWaitsForTheEntry(t *testing.T) {
	var c currency
	if age := c.age(0); age != unknownAge {
		t.Fatalf("age %v before anything is known", age)
	}
	start := time.Now()
	c.mark(start.Add(-time.Hour))
	c.mark(start.Add(-2 * time.Hour)) // older news
	if age := c.age(0); age < time.Hour || age > 2*time.Hour {
		t.Fatalf("age %v, want an hour", age)
	}
	c.claim(start.Add(-time.Minute), 10, 9)
	c.claim(start.Add(-time.Second), 20, 9) // the first is met sooner
	if age := c.age(9); age < time.Hour {
		t.Fatalf("age %v before entry 10 was applied", age)
	}
	if age := c.age(10); age < time.Minute || age > time.Hour {
		t.Fatalf("age %v, want a minute", age)
	}
	c.claim(start.Add(-time.Second), 20, 20)
	if age := c.age(20); age < time.Second || age > time.Minute {
		t.Fatalf("age %v, want a second", age)
	}
	c.claim(start.Add(-time.Minute), 5, 20) // an old answer that was late
	if age := c.age(20); age > time.Minute {
		t.Fatalf("age %v after a late answer", age)
	}
}

// A node that has heard from no leader since it started has not executed its
// log: what it would say is not old but made up (C35).
func TestStaleReadsNeedAnAge(t *testing.T) {
	c := startCluster(t, 3, nil)
	l := c.mustAcquire(c.leader(), "r", time.Minute)
	c.stopAll()
	alone := c.start("n1")
	_, age, err := alone.GetLease(c.context(), "r", true)
	if !errors.Is(err, lease.ErrNoLeader) || applied(err) != lease.AppliedNo || age != unknownAge {
		t.Errorf("stale read of a node that knows nothing: age %v, %v", age, err)
	}
	c.start("n2")
	c.waitReady("n1", "n2")
	got, age, err := alone.GetLease(c.context(), "r", true)
	if err != nil || got.Token != l.Token || age < 0 || age == unknownAge {
		t.Errorf("stale read of a ready node: %+v, age %v, %v", got, age, err)
	}
}
