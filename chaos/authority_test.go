package chaos

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/highwater/highwater/lease"
)

const ms = int64(time.Millisecond)

// invented plays clients against a correct authority in virtual time and
// returns their history. It exists to have histories that are good by
// construction, of any size, for the checkers to pass and for faults to be
// planted in.
func invented(seed uint64, clients, requests int) []Record {
	a := authority{
		random: rand.New(rand.NewPCG(seed, 1)),
		token:  1000,
		held:   map[string]heldLease{},
		last:   map[string]lease.Token{},
	}
	players := make([]player, clients)
	for i := range players {
		players[i].name = fmt.Sprintf("c%d", i)
		a.choose(&players[i], a.random.Int64N(10*ms))
	}
	for range requests {
		p := &players[0]
		for i := range players {
			if players[i].commit < p.commit {
				p = &players[i]
			}
		}
		a.answer(p)
		// Another client may have been waiting at the network meanwhile.
		a.choose(p, p.pending.Return+1+a.random.Int64N(5*ms))
	}
	return a.records
}

type heldLease struct {
	holder   string
	token    lease.Token
	deadline int64
}

type authority struct {
	random  *rand.Rand
	token   lease.Token
	held    map[string]heldLease
	last    map[string]lease.Token
	records []Record
}

// player is one client with its one pending request.
type player struct {
	name    string
	sent    int
	pending Record
	commit  int64
	// What it believes to hold.
	resource string
	token    lease.Token
}

const inventedTTL = int64(1000)

// choose makes the client's next request: Invoke, Return and commit between.
func (a *authority) choose(p *player, now int64) {
	p.sent++
	r := Record{Client: p.name, Invoke: now, Endpoint: "http://n1"}
	r.Return = now + 2 + a.random.Int64N(20*ms)
	if a.random.IntN(50) == 0 {
		r.Return += a.random.Int64N(1500 * ms)
	}
	p.commit = r.Invoke + 1 + a.random.Int64N(r.Return-r.Invoke-1)
	r.Name = fmt.Sprintf("r%d", a.random.IntN(5))
	switch kind := a.random.IntN(10); {
	case kind == 0:
		r.Op, r.Name, r.Count = OpNext, fmt.Sprintf("s%d", a.random.IntN(2)), 1+a.random.Int64N(9)
	case kind == 1:
		r.Op = OpGet
	case p.token == 0:
		r.Op, r.TTLMs, r.Holder = OpAcquire, inventedTTL, fmt.Sprintf("%s-%d", p.name, p.sent)
	case kind < 5:
		r.Op, r.Name, r.Token = OpRenew, p.resource, p.token
	case kind < 8:
		r.Op, r.Name, r.Token = OpRelease, p.resource, p.token
		p.token = 0
	default: // walks away from it
		p.token = 0
		r.Op = OpGet
	}
	p.pending = r
}

// answer applies the pending request at its commit and writes the record.
func (a *authority) answer(p *player) {
	r := &p.pending
	fate := a.random.IntN(40)
	if fate == 0 { // never reached the authority
		r.Status, r.Outcome, r.Code = http.StatusServiceUnavailable, Refused, lease.CodeNoLeader
		a.record(*r)
		return
	}
	sent := *r
	if fate != 1 || a.random.IntN(2) == 0 {
		a.apply(r, p.commit)
	}
	if fate == 1 { // its answer was lost
		*r = sent
		r.Outcome = Unknown
	} else if r.Op == OpAcquire && r.Outcome == OK {
		p.resource, p.token = r.Name, r.Token
	}
	a.record(*r)
}

// record writes down in the order of the answers, near enough.
func (a *authority) record(r Record) { a.records = append(a.records, r) }

func (a *authority) apply(r *Record, now int64) {
	held, live := a.held[r.Name]
	if live && held.deadline <= now {
		delete(a.held, r.Name)
		live = false
	}
	refuse := func(status int, code lease.Code) { r.Status, r.Outcome, r.Code = status, Refused, code }
	r.Status, r.Outcome = http.StatusOK, OK
	left := func() int64 { return (held.deadline - now + ms - 1) / ms }
	switch r.Op {
	case OpAcquire:
		if live {
			refuse(http.StatusConflict, lease.CodeLeaseHeld)
			r.HeldHolder, r.HeldToken, r.RemainingMs = held.holder, held.token, left()
			return
		}
		a.token++
		r.Status, r.Token, r.RemainingMs = http.StatusCreated, a.token, r.TTLMs
		a.held[r.Name] = heldLease{r.Holder, a.token, now + r.TTLMs*ms}
	case OpRenew:
		if !live || held.token != r.Token {
			refuse(http.StatusGone, lease.CodeLeaseLost)
			return
		}
		held.deadline = max(held.deadline, now+inventedTTL*ms)
		a.held[r.Name] = held
		r.Answered, r.RemainingMs = held.token, left()
	case OpRelease:
		if !live || held.token != r.Token {
			refuse(http.StatusGone, lease.CodeLeaseLost)
			return
		}
		delete(a.held, r.Name)
	case OpGet:
		if !live {
			refuse(http.StatusNotFound, lease.CodeNotHeld)
			return
		}
		r.Token, r.Holder, r.TTLMs, r.RemainingMs = held.token, held.holder, inventedTTL, left()
	case OpNext:
		r.First = a.last[r.Name] + 1
		r.Last = a.last[r.Name] + lease.Token(r.Count)
		a.last[r.Name] = r.Last
	}
}
