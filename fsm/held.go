package fsm

import (
	"cmp"
	"time"

	"github.com/highwater/highwater/lease"
)

// held is a live lease. It is immutable, since snapshots share it.
type held struct {
	resource string
	holder   string
	metadata string // empty: none
	token    lease.Token
	request  lease.RequestID
	ttl      int64 // ms
	deadline int64 // authority time, ms; never before the state's time
	granted  int64 // wall clock of the granting leader, Unix ms; never compared
}

// end is when a live lease ends if nobody renews it.
type end struct {
	deadline int64
	token    lease.Token
}

// compare orders ends by deadline, and by token within one millisecond.
func (e end) compare(f end) int {
	return cmp.Or(cmp.Compare(e.deadline, f.deadline), cmp.Compare(e.token, f.token))
}

func (e end) before(f end) bool { return e.compare(f) < 0 }

func (h *held) end() end { return end{h.deadline, h.token} }

// lease is what the holder sees of h at authority time now.
func (h *held) lease(now int64) lease.Lease {
	l := lease.Lease{
		Resource:  h.resource,
		Holder:    h.holder,
		Token:     h.token,
		TTL:       millis(h.ttl),
		Remaining: millis(h.deadline - now),
		GrantedAt: time.UnixMilli(h.granted).UTC(),
	}
	if h.metadata != "" {
		l.Metadata = []byte(h.metadata)
	}
	return l
}

// insert, replace and remove keep the three views of the leases in step.
func (s *State) insert(h *held) {
	s.leases.Set(h.resource, h)
	s.byToken.Set(h.token, h.resource)
	s.byDeadline.Set(h.end())
}

func (s *State) replace(old, h *held) {
	s.leases.Set(h.resource, h)
	s.byDeadline.Delete(old.end())
	s.byDeadline.Set(h.end())
}

func (s *State) remove(h *held) {
	s.leases.Delete(h.resource)
	s.byToken.Delete(h.token)
	s.byDeadline.Delete(h.end())
}

// expire ends the leases whose deadline has passed, ordered by deadline and
// token. At the deadline itself a lease is live: times are whole milliseconds,
// rounded down, and a lease that was granted late in its millisecond would end
// up to one too early.
func (s *State) expire() {
	for {
		first, ok := s.byDeadline.Min()
		if !ok || first.deadline >= s.now {
			return
		}
		resource, _ := s.byToken.Get(first.token)
		h, _ := s.leases.Get(resource)
		s.remove(h)
	}
}

func (s *State) acquire(c Acquire, wall int64) Result {
	// Checked here too, whatever the taker of the request has checked: what is
	// stored is what every replica agrees to store.
	request := lease.AcquireRequest{Resource: c.Resource, Holder: c.Holder, TTL: millis(c.TTL), Metadata: c.Metadata}
	if err := request.Check(); err != nil {
		return Result{Err: refusal(err)}
	}
	if err := s.started(); err != nil {
		return Result{Err: err}
	}
	if h, ok := s.leases.Get(c.Resource); ok {
		// The same request sent again by its node. An absent id is nobody's:
		// ownership is never taken from a holder's name.
		if h.request == c.Request && c.Request != (lease.RequestID{}) {
			return Result{Lease: h.lease(s.now)}
		}
		return Result{Err: s.heldBy(h)}
	}
	if s.leases.Len() >= s.limits.leases {
		return Result{Err: tooBusy(time.Second, "the limit of %d live leases is reached", s.limits.leases)}
	}
	token, err := s.nextToken()
	if err != nil {
		return Result{Err: err}
	}
	h := &held{
		resource: c.Resource,
		holder:   c.Holder,
		metadata: string(c.Metadata),
		token:    token,
		request:  c.Request,
		ttl:      c.TTL,
		deadline: s.now + c.TTL,
		granted:  wall,
	}
	s.insert(h)
	return Result{Lease: h.lease(s.now)}
}

// renew never creates a lease and never shortens one: a renewal that was
// delayed on its way changes neither the deadline nor the TTL that a later
// one has set.
func (s *State) renew(c Renew) Result {
	if err := (lease.RenewRequest{Resource: c.Resource, Token: c.Token, TTL: millis(c.TTL)}).Check(); err != nil {
		return Result{Err: refusal(err)}
	}
	h, err := s.current(c.Resource, c.Token)
	if err != nil {
		return Result{Err: err}
	}
	ttl := c.TTL
	if ttl == 0 {
		ttl = h.ttl
	}
	if s.now+ttl > h.deadline {
		renewed := *h
		renewed.ttl, renewed.deadline = ttl, s.now+ttl
		s.replace(h, &renewed)
		h = &renewed
	}
	return Result{Lease: h.lease(s.now)}
}

func (s *State) release(c Release) Result {
	if err := (lease.ReleaseRequest{Resource: c.Resource, Token: c.Token}).Check(); err != nil {
		return Result{Err: refusal(err)}
	}
	h, err := s.current(c.Resource, c.Token)
	if err != nil {
		return Result{Err: err}
	}
	s.remove(h)
	return Result{}
}

// current returns the live lease of resource if token is the one that proves
// its ownership, and the reason why not otherwise.
func (s *State) current(resource string, token lease.Token) (*held, *lease.Error) {
	h, ok := s.leases.Get(resource)
	if ok && h.token == token {
		return h, nil
	}
	if err := s.issued(token); err != nil {
		return nil, err
	}
	if _, live := s.byToken.Get(token); live {
		return nil, refuse(lease.CodeTokenUnknown, "token %d was granted for another resource", token)
	}
	lost := refuse(lease.CodeLeaseLost, "the lease with token %d has ended", token)
	lost.Reason = lease.ReasonForgotten
	if ok {
		lost.CurrentToken = h.token
	}
	return nil, lost
}

// issued refuses a token above the counter: it may yet be granted to anybody.
func (s *State) issued(token lease.Token) *lease.Error {
	if token < 1 || token > s.counter {
		return refuse(lease.CodeTokenUnknown, "token %d has not been issued", token)
	}
	return nil
}

func (s *State) heldBy(h *held) *lease.Error {
	remaining := millis(h.deadline - s.now)
	err := refuse(lease.CodeLeaseHeld, "another holder has the lease")
	err.Holder = h.holder
	err.CurrentToken = h.token
	err.Remaining = remaining
	err.Reason = lease.ReasonHeld
	// Whole seconds, as the header of HTTP has them, and at most 5: the holder
	// may release long before its deadline.
	seconds := (remaining + time.Second - 1) / time.Second
	err.RetryAfter = min(max(seconds, 1), 5) * time.Second
	return err
}
