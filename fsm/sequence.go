package fsm

import (
	"time"

	"github.com/highwater/highwater/lease"
)

// next takes Count values of a sequence, all or none. A sequence starts above
// the floor at its first use, and is bound by the same rate rule as the token
// counter, so that a later life of the cluster starts above all that it issued.
func (s *State) next(c Next) Result {
	// Clamped, so that a count beyond an int's range stays out of range.
	count := int(max(0, min(c.Count, lease.MaxCount+1)))
	if err := (lease.NextRequest{Name: c.Sequence, Count: count}).Check(); err != nil {
		return Result{Err: refusal(err)}
	}
	if err := s.started(); err != nil {
		return Result{Err: err}
	}
	last, known := s.sequences.Get(c.Sequence)
	if !known {
		if s.sequences.Len() >= s.limits.sequences {
			return Result{Err: tooBusy(5*time.Second, "the limit of %d sequences is reached", s.limits.sequences)}
		}
		last = s.floor
	}
	upTo := last + lease.Token(count)
	if upTo > lease.MaxToken {
		return Result{Err: &lease.Error{
			Code:    lease.CodeSequenceExhausted,
			Detail:  "fewer values are left below 10^15 than were asked for",
			Applied: lease.AppliedNo,
		}}
	}
	if upTo > s.ceiling() {
		return Result{Err: s.rateReached()}
	}
	s.sequences.Set(c.Sequence, upTo)
	return Result{Range: lease.Range{Name: c.Sequence, First: last + 1, Last: upTo}}
}
