package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/highwater/highwater/lease"
)

// Load is clients that acquire, renew, read, release and abandon leases, and
// take values of sequences, as fast as they are answered.
type Load struct {
	Clients   int
	Endpoints []string
	// Shared is how many resources all clients compete for. Besides, each has
	// one of its own.
	Shared int
	// TTL of the leases.
	TTL time.Duration
	// Timeout is how long a client waits for one answer; zero means
	// AttemptTimeout. With frozen nodes it is what keeps clients busy.
	Timeout time.Duration
	// Prefix begins all names, so that loads of one cluster keep apart.
	Prefix string
}

// afterFailure keeps a client from spinning on endpoints that refuse.
const afterFailure = 20 * time.Millisecond

// Run puts the load on until ctx ends, and returns when the last request has
// its fate: none is cut off by the end of ctx.
func (l Load) Run(ctx context.Context, history *History) {
	var all sync.WaitGroup
	for i := range l.Clients {
		all.Go(func() {
			w := worker{
				load:     l,
				caller:   NewCaller(fmt.Sprintf("%sc%d", l.Prefix, i), history),
				own:      fmt.Sprintf("%sown/%d", l.Prefix, i),
				endpoint: i,
				random:   rand.New(rand.NewPCG(uint64(i), 7)),
			}
			w.caller.Timeout = l.Timeout
			defer w.caller.Close()
			for ctx.Err() == nil {
				w.turn(ctx)
			}
		})
	}
	all.Wait()
}

type worker struct {
	load     Load
	caller   *Caller
	own      string
	endpoint int // index modulo the number of endpoints
	random   *rand.Rand
}

// turn is one life of a lease, or the attempt to have one.
func (w *worker) turn(ctx context.Context) {
	whole := context.WithoutCancel(ctx)
	name := w.own
	if w.random.IntN(2) == 0 {
		name = fmt.Sprintf("%sshared/%d", w.load.Prefix, w.random.IntN(max(1, w.load.Shared)))
	}
	grant := w.caller.Acquire(whole, w.at(), name, w.load.TTL)
	w.next(ctx, grant)
	if grant.Outcome == OK {
		w.hold(ctx, grant)
	} else {
		w.next(ctx, w.caller.Get(whole, w.at(), name))
	}
	sequence := fmt.Sprintf("%snumbers/%d", w.load.Prefix, w.random.IntN(2))
	w.next(ctx, w.caller.Next(whole, w.at(), sequence, 1+w.random.IntN(5)))
}

// hold renews and reads a lease some times, and releases it in the end, or
// walks away from it.
func (w *worker) hold(ctx context.Context, grant Record) {
	whole := context.WithoutCancel(ctx)
	for range w.random.IntN(3) {
		ttl := time.Duration(0)
		if w.random.IntN(2) == 0 {
			ttl = lease.MinTTL + time.Duration(w.random.IntN(1000))*time.Millisecond
		}
		w.next(ctx, w.caller.Renew(whole, w.at(), grant.Name, grant.Token, ttl))
		if w.random.IntN(2) == 0 {
			w.next(ctx, w.caller.Get(whole, w.at(), grant.Name))
		}
	}
	if w.random.IntN(8) != 0 {
		w.next(ctx, w.caller.Release(whole, w.at(), grant.Name, grant.Token))
	}
}

func (w *worker) at() string { return w.load.Endpoints[w.endpoint%len(w.load.Endpoints)] }

// next goes to another endpoint after a sending that got no answer or no
// leader, and now and then in any case.
func (w *worker) next(ctx context.Context, r Record) {
	failed := r.Status == 0 || r.Status >= 500
	if failed || w.random.IntN(50) == 0 {
		w.endpoint++
	}
	if !failed || strings.HasPrefix(r.Detail, malformed) {
		return
	}
	timer := time.NewTimer(afterFailure)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
