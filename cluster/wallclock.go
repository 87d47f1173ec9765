package cluster

import (
	"fmt"
	"time"
)

// The automatic floor is the only thing that a wall clock decides, so the clock
// that it is read from is checked: a clock that stands before earliestClock was
// never set, and one that is more than maxClockDifference from another node's
// is wrong on one of the two.
var earliestClock = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

const maxClockDifference = 60 * time.Second

// checkClock refuses the automatic floor on a node whose clock was never set.
func checkClock(now time.Time) error {
	if now.Before(earliestClock) {
		return fmt.Errorf("--token-floor: auto needs a right clock, and this node's says %s; set the clock, or give a number above every token ever issued",
			now.UTC().Format(time.RFC3339))
	}
	return nil
}

// clockDifference is how far a node's clock is from this one's, at least. The
// question was sent at before and answered by after, both of this node's wall
// clock.
func clockDifference(s peerStatus, before, after time.Time) time.Duration {
	theirs := time.UnixMilli(s.WallMS)
	// A millisecond was lost in rounding theirs.
	switch {
	case theirs.Before(before):
		return max(0, before.Sub(theirs)-time.Millisecond)
	case theirs.After(after):
		return theirs.Sub(after)
	}
	return 0
}
