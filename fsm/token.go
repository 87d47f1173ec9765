package fsm

import (
	"time"

	"github.com/highwater/highwater/lease"
)

// setFloor gives the state its floor, once. Grants above it start Delay later:
// an automatic floor is ahead of the clock by up to a second, which another
// life of the cluster may have been using until now.
func (s *State) setFloor(c SetFloor) Result {
	if c.Floor < 0 || c.Floor > lease.MaxToken {
		return Result{Err: lease.BadRequest("floor", "must be an integer from 0 to %d", int64(lease.MaxToken))}
	}
	if c.Delay < 0 || c.Delay > lease.MaxTTL.Milliseconds() {
		return Result{Err: lease.BadRequest("delay", "must be an integer from 0 to %d milliseconds", lease.MaxTTL.Milliseconds())}
	}
	if s.floorSet {
		return Result{}
	}
	s.floorSet, s.floor, s.counter = true, c.Floor, c.Floor
	s.grantsFrom = s.now + c.Delay
	return Result{}
}

// started refuses grants and sequence values before they may start. The leader
// holds requests until then, so it is seldom said.
func (s *State) started() *lease.Error {
	if !s.floorSet {
		return tooBusy(time.Second, "nothing is granted before the cluster has a token floor")
	}
	if s.now < s.grantsFrom {
		return tooBusy(millis(s.grantsFrom-s.now), "nothing is granted before the token floor is in force")
	}
	return nil
}

// ceiling is the largest number that the token counter, and each sequence, may
// reach by now: floor + ((1 + whole seconds since grants started) << 18), and
// never above MaxToken.
func (s *State) ceiling() lease.Token {
	seconds := lease.Token(1 + (s.now-s.grantsFrom)/1000)
	if seconds > (lease.MaxToken-s.floor)>>lease.FloorShift {
		return lease.MaxToken
	}
	return s.floor + seconds<<lease.FloorShift
}

// rateReached is the refusal of what would pass the ceiling, which next rises
// when the present second of authority time is over.
func (s *State) rateReached() *lease.Error {
	rest := 1000 - (s.now-s.grantsFrom)%1000
	return tooBusy(millis(rest), "the rate limit is reached: %d numbers a second above the token floor", lease.TokensPerSecond)
}

// nextToken takes the next number of the counter, the only place that does.
func (s *State) nextToken() (lease.Token, *lease.Error) {
	if s.counter >= lease.MaxToken {
		return 0, &lease.Error{
			Code:    lease.CodeTokensExhausted,
			Detail:  "the last token, 10^15 - 1, has been issued",
			Applied: lease.AppliedNo,
		}
	}
	if s.counter >= s.ceiling() {
		return 0, s.rateReached()
	}
	s.counter++
	return s.counter, nil
}
