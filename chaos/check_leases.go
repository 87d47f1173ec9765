package chaos

import (
	"sort"
	"time"

	"github.com/highwater/highwater/lease"
)

// checkMonotonic checks I1 beyond what readStory has seen: a token that was
// known before another was asked for is below it, whatever the resources. A
// grant whose answer was lost counts from the first answer that shows it.
func checkMonotonic(s *story, f *findings) {
	var spans []span
	for _, lives := range s.lives {
		for _, l := range lives {
			spans = append(spans, span{l.acquire.Invoke, l.known, int64(l.token), int64(l.token), l.acquire})
		}
	}
	checkRising(spans, func(earlier, later span) {
		f.add("I1", []*Record{earlier.record, later.record},
			"token %d was known before token %d was asked for", earlier.last, later.first)
	})
}

// checkExclusive checks I2: certain holds of one resource never overlap.
func checkExclusive(s *story, f *findings) {
	for name, lives := range s.lives {
		var longest *life
		for _, l := range lives {
			if l.until <= l.known {
				continue // nothing about it is certain
			}
			if longest != nil && l.known < longest.until {
				f.add("I2", []*Record{longest.acquire, l.acquire},
					"%q was held with token %d until %d at least and with token %d from %d on",
					name, longest.token, longest.until, l.token, l.known)
			}
			if longest == nil || l.until > longest.until {
				longest = l
			}
		}
	}
}

// checkRenewals checks I3: a renewal answers with its own token, and never
// leaves a lease less time than it had.
func checkRenewals(s *story, f *findings) {
	for _, lives := range s.lives {
		for _, l := range lives {
			for _, r := range l.renewals {
				if r.Outcome == OK && r.Answered != r.Token {
					f.add("I3", []*Record{r}, "a renewal of token %d was answered with token %d", r.Token, r.Answered)
				}
			}
			checkShortened(l, f)
		}
	}
}

// checkShortened compares what each answer leaves with the deadlines that
// earlier answers promised.
func checkShortened(l *life, f *findings) {
	byInvoke := make([]sighting, 0, len(l.sightings))
	for _, seen := range l.sightings {
		if seen.left >= 0 {
			byInvoke = append(byInvoke, seen)
		}
	}
	byReturn := append([]sighting(nil), byInvoke...)
	sort.Slice(byInvoke, func(i, j int) bool { return byInvoke[i].record.Invoke < byInvoke[j].record.Invoke })
	sort.Slice(byReturn, func(i, j int) bool { return byReturn[i].record.Return < byReturn[j].record.Return })
	next, deadline := 0, int64(0)
	var promise *Record
	for _, seen := range byInvoke {
		for ; next < len(byReturn) && byReturn[next].record.Return < seen.record.Invoke; next++ {
			if at := byReturn[next].record.Invoke + byReturn[next].left; at > deadline {
				deadline, promise = at, byReturn[next].record
			}
		}
		// A millisecond is lost in rounding at either end.
		if seen.record.Return+seen.left+2*int64(time.Millisecond) < deadline {
			f.add("I3", []*Record{promise, seen.record}, "the deadline of token %d was moved to an earlier time", l.token)
		}
	}
}

// checkEffects checks I4 and I6: what was answered ok shows in every later
// answer, and what was answered as not applied, a release above all, in none.
func checkEffects(s *story, f *findings) {
	for name, answers := range s.answers {
		lives := s.lives[name]
		known, largest := 0, (*life)(nil) // the largest token known by now
		for _, r := range answers {
			for ; known < len(lives) && lives[known].known < r.Invoke; known++ {
				if largest == nil || lives[known].token > largest.token {
					largest = lives[known]
				}
			}
			checkRemaining(r, f)
			shown := shownToken(r)
			if shown != 0 {
				checkShown(s.byToken[shown], largest, r, f)
			}
			if held := certainHold(lives, r); held != nil {
				checkHeld(held, shown, r, f)
			}
		}
	}
}

// shownToken is the token that an answer shows as live, or 0.
func shownToken(r *Record) lease.Token {
	switch {
	case r.Op == OpAcquire && r.Code == lease.CodeLeaseHeld:
		return r.HeldToken
	case r.Outcome != OK:
		return 0
	case r.Op == OpAcquire, r.Op == OpGet, r.Op == OpRenew:
		return r.Token
	}
	return 0
}

// checkShown checks an answer that shows a lease as live against what had
// ended it before the request was sent.
func checkShown(l, largest *life, r *Record, f *findings) {
	if l == nil {
		return // reported by readStory
	}
	if l.released < r.Invoke {
		f.add("I6", []*Record{l.acquire, r}, "the release of token %d was answered ok at %d, and a later answer shows it as live", l.token, l.released)
	}
	if largest != nil && largest.token > l.token {
		f.add("I2", []*Record{largest.acquire, r}, "an answer shows token %d as live after token %d was granted on %q", l.token, largest.token, l.name)
	}
}

// checkHeld checks an answer that was asked for and given while a lease was
// certainly held.
func checkHeld(held *life, shown lease.Token, r *Record, f *findings) {
	switch {
	case shown != 0 && shown != held.token:
		f.add("I2", []*Record{held.acquire, r}, "%q was held with token %d until %d at least, and an answer shows token %d",
			held.name, held.token, held.until, shown)
	case r.Op == OpGet && r.Code == lease.CodeNotHeld:
		f.add("I4", []*Record{held.acquire, r}, "%q was held with token %d until %d at least, and an answer says that it is free",
			held.name, held.token, held.until)
	case (r.Op == OpRenew || r.Op == OpRelease) && r.Token == held.token &&
		(r.Code == lease.CodeLeaseLost || r.Code == lease.CodeTokenUnknown || r.Code == lease.CodeNotHeld):
		f.add("I4", []*Record{held.acquire, r}, "%q was held with token %d until %d at least, and a %s of it was refused",
			held.name, held.token, held.until, r.Op)
	}
}

// certainHold is the life that was certainly held from the sending of r to its
// answer, or nil. The lives are in the order of known; where certain holds do
// not overlap, which I2 checks, the last one before r is the only candidate.
func certainHold(lives []*life, r *Record) *life {
	i := sort.Search(len(lives), func(i int) bool { return lives[i].known > r.Invoke })
	for i--; i >= 0; i-- {
		if l := lives[i]; l.until > l.known {
			if r.Return < l.until {
				return l
			}
			return nil
		}
	}
	return nil
}

// checkRemaining checks that an answer's times are possible: not below zero and at
// most the TTL, straight after an election too.
func checkRemaining(r *Record, f *findings) {
	if r.Outcome != OK || r.Op == OpRelease {
		return
	}
	if r.RemainingMs < 0 || (r.Op != OpRenew && r.RemainingMs > r.TTLMs) {
		f.add("I4", []*Record{r}, "remaining_ms is %d with a TTL of %d ms", r.RemainingMs, r.TTLMs)
	}
}

// checkEnds checks I5: no lease lives on when nobody renewed it in time. It
// also finds renewals that were answered as not applied and did apply.
func checkEnds(s *story, late time.Duration, f *findings) {
	for _, lives := range s.lives {
		for _, l := range lives {
			checkEnd(l, late, f)
		}
	}
}

func checkEnd(l *life, late time.Duration, f *findings) {
	if l.acquire.Outcome == Unknown {
		return // it may have been granted at any time before it was seen
	}
	sort.Slice(l.sightings, func(i, j int) bool { return l.sightings[i].record.Invoke < l.sightings[j].record.Invoke })
	unknown := never // from then on a renewal may have been applied
	for _, r := range l.renewals {
		if r.Outcome == Unknown {
			unknown = min(unknown, r.Invoke)
		}
	}
	latest := l.acquire.Return + l.acquire.TTLMs*int64(time.Millisecond)
	for _, seen := range l.sightings {
		r := seen.record
		if r == l.acquire {
			continue
		}
		if r.Invoke > unknown {
			return
		}
		if r.Invoke > latest+int64(late) {
			f.add("I5", []*Record{l.acquire, r}, "token %d was live %v after its last possible deadline",
				l.token, time.Duration(r.Invoke-latest))
			return
		}
		if r.Op == OpRenew {
			latest = max(latest, r.Return+seen.left)
		}
	}
}
