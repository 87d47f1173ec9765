package cluster

import (
	"testing"
	"time"
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
