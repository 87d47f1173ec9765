package chaos

import (
	"math"
	"sort"
	"time"

	"github.com/highwater/highwater/lease"
)

const never = int64(math.MaxInt64)

// sighting is an answer that says of a token that it was live, at some moment
// between the record's invoke and return.
type sighting struct {
	record *Record
	// left is the time to the deadline at that moment in ns, or -1 where the
	// answer does not say.
	left int64
}

// life is one grant, put together from every record that speaks of it.
type life struct {
	token   lease.Token
	name    string
	acquire *Record
	// known is when the first answer that names the token was there.
	known int64
	// The lease was certainly held in [known, until): it is live at every
	// sighting, a renewal never creates one, and none ends before its time but
	// by its release, which may take effect from the moment it is sent.
	until int64
	// released is when a release of it was answered ok, and after which it is
	// certainly over.
	released  int64
	sightings []sighting // acquire, renew, get and lease-held answers
	renewals  []*Record  // all of them, whatever their outcome
}

// story is a history by resource.
type story struct {
	records []Record
	byToken map[lease.Token]*life
	// lives of one resource in the order in which they were known.
	lives map[string][]*life
	// answers of one resource: every record but those of sequences.
	answers map[string][]*Record
}

// readStory puts the lives together. What cannot be a history at all, or names
// a grant that was refused or never asked for, is reported here.
func readStory(records []Record, f *findings) *story {
	s := &story{
		records: records,
		byToken: map[lease.Token]*life{},
		lives:   map[string][]*life{},
		answers: map[string][]*Record{},
	}
	acquires := map[string]*Record{} // by holder
	for i := range records {
		r := &records[i]
		if r.Return < r.Invoke {
			f.add("history", []*Record{r}, "an answer came before its request")
		}
		if r.Op == OpNext {
			continue
		}
		s.answers[r.Name] = append(s.answers[r.Name], r)
		if r.Op != OpAcquire {
			continue
		}
		if earlier := acquires[r.Holder]; earlier != nil {
			f.add("history", []*Record{earlier, r}, "two acquires with one holder name cannot be told apart")
			continue
		}
		acquires[r.Holder] = r
	}

	tokenOf := map[string]*life{} // by holder
	see := func(r *Record, token lease.Token, holder string, left int64) {
		acquire := acquires[holder]
		switch {
		case acquire == nil || acquire.Name != r.Name:
			f.add("I6", []*Record{r}, "token %d on %q is held by %q, which nobody asked for", token, r.Name, holder)
			return
		case acquire.Outcome == Refused:
			f.add("I6", []*Record{acquire, r}, "the acquire of %q was answered as not applied, yet it holds token %d", holder, token)
			return
		case r.Return < acquire.Invoke:
			f.add("I6", []*Record{acquire, r}, "token %d was seen before it was asked for", token)
			return
		}
		l := s.byToken[token]
		if l == nil {
			l = &life{token: token, name: r.Name, acquire: acquire, known: never, released: never}
			s.byToken[token] = l
			s.lives[r.Name] = append(s.lives[r.Name], l)
		}
		if l.acquire != acquire {
			f.add("I1", []*Record{l.acquire, acquire, r}, "token %d was issued twice, to %q and to %q", token, l.acquire.Holder, holder)
			return
		}
		if other := tokenOf[holder]; other != nil && other != l {
			f.add("I1", []*Record{acquire, r}, "one acquire, of %q, was granted the tokens %d and %d", holder, other.token, token)
			return
		}
		tokenOf[holder] = l
		l.known = min(l.known, r.Return)
		l.sightings = append(l.sightings, sighting{r, left})
	}
	ms := func(n int64) int64 { return n * int64(time.Millisecond) }
	// Authority time is whole milliseconds, so a remaining_ms may be up to one
	// more than what is left. A TTL that was asked for is promised in full.
	rest := func(r *Record) int64 { return max(0, ms(r.RemainingMs-1)) }
	for i := range records {
		r := &records[i]
		switch {
		case r.Op == OpAcquire && r.Outcome == OK:
			see(r, r.Token, r.Holder, ms(r.TTLMs))
		case r.Op == OpAcquire && r.Code == lease.CodeLeaseHeld:
			see(r, r.HeldToken, r.HeldHolder, -1)
		case r.Op == OpGet && r.Outcome == OK:
			see(r, r.Token, r.Holder, rest(r))
		}
	}
	for i := range records {
		r := &records[i]
		if r.Op != OpRenew && r.Op != OpRelease {
			continue
		}
		l := s.byToken[r.Token]
		if l == nil || l.name != r.Name {
			if r.Outcome == OK {
				f.add("I3", []*Record{r}, "a %s of token %d on %q was answered ok, but nothing shows that it was granted there", r.Op, r.Token, r.Name)
			}
			continue
		}
		switch {
		case r.Op == OpRenew:
			l.renewals = append(l.renewals, r)
			if r.Outcome == OK {
				l.known = min(l.known, r.Return)
				l.sightings = append(l.sightings, sighting{r, max(rest(r), ms(r.TTLMs))})
			}
		case r.Outcome == OK:
			l.released = min(l.released, r.Return)
		}
	}
	s.measure()
	return s
}

// measure finds the certain part of each life.
func (s *story) measure() {
	over := map[lease.Token]int64{}
	for i := range s.records {
		r := &s.records[i]
		if r.Op == OpRelease && r.Outcome != Refused {
			if at, found := over[r.Token]; !found || r.Invoke < at {
				over[r.Token] = r.Invoke
			}
		}
	}
	for _, lives := range s.lives {
		for _, l := range lives {
			for _, seen := range l.sightings {
				if seen.left >= 0 {
					l.until = max(l.until, seen.record.Invoke+seen.left)
				}
			}
			if at, found := over[l.token]; found {
				l.until = min(l.until, at)
			}
		}
		sort.Slice(lives, func(i, j int) bool { return lives[i].known < lives[j].known })
	}
	for _, answers := range s.answers {
		sort.Slice(answers, func(i, j int) bool { return answers[i].Invoke < answers[j].Invoke })
	}
}
