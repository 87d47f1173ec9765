package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/highwater/highwater/client"
	"github.com/highwater/highwater/lease"
)

// benchTTL outlives every stall that a measurement should show; what a
// measurement leaves behind ends after it.
const benchTTL = 30 * time.Second

// Limits of a measurement. Every operation's latency is kept, 8 bytes each.
const (
	maxBenchClients  = 10_000
	maxBenchDuration = 10 * time.Minute
)

type bench struct {
	endpointFlags
	printFlags
	Mode     string        `enum:"cycle,renew,next" default:"cycle" help:"cycle: acquire a free lease and release it; renew: renew a held lease; next: next value of one shared sequence."`
	Clients  int           `default:"16" help:"How many clients at once, spread over the endpoints."`
	Duration time.Duration `default:"10s" help:"How long to measure."`
	WarmUp   time.Duration `default:"1s" help:"How long to run before measuring."`
}

// Validate is called by kong.
func (b *bench) Validate() error {
	if b.Clients < 1 || b.Clients > maxBenchClients {
		return lease.BadRequest("--clients", "must be an integer from 1 to %d, not %d", maxBenchClients, b.Clients)
	}
	if b.Duration <= 0 || b.Duration > maxBenchDuration {
		return lease.BadRequest("--duration", "must be above 0s and at most %v, not %v", maxBenchDuration, b.Duration)
	}
	if b.WarmUp < 0 || b.WarmUp > maxBenchDuration {
		return lease.BadRequest("--warm-up", "must be 0s to %v, not %v", maxBenchDuration, b.WarmUp)
	}
	return nil
}

// measurement is the result. Operations are those that succeeded and ended
// while it was measured; errors are of those that failed in that time or were
// under way at its end, by code. The clients retry as client.Client does, so an
// error is what was left after that.
type measurement struct {
	Mode       string         `json:"mode"`
	Clients    int            `json:"clients"`
	Endpoints  []string       `json:"endpoints"`
	DurationMS int64          `json:"duration_ms"`
	Operations int            `json:"operations"`
	PerSecond  float64        `json:"per_second"`
	P50MS      float64        `json:"p50_ms"`
	P99MS      float64        `json:"p99_ms"`
	MaxMS      float64        `json:"max_ms"`
	Errors     map[string]int `json:"errors"`
}

// Run measures.
func (b *bench) Run(ctx context.Context, out *streams) error {
	workers, err := b.workers()
	if err != nil {
		return err
	}
	out.note("%s, clients %d, over %s: %v to warm up, %v to measure",
		b.Mode, b.Clients, strings.Join(b.Endpoints, ", "), b.WarmUp, b.Duration)
	began := time.Now()
	from := began.Add(b.WarmUp)
	until := from.Add(b.Duration)
	var running sync.WaitGroup
	for _, w := range workers {
		running.Go(func() { w.run(ctx, from, until) })
	}
	running.Wait()

	// Interrupted, it says what it measured until then.
	if now := time.Now(); now.Before(until) {
		until = now
	}
	result := b.sum(workers, max(until.Sub(from), 0))
	if err := out.print(result, result.print); err != nil {
		return err
	}
	if result.Operations > 0 {
		return nil
	}
	for _, w := range workers {
		if w.last != nil {
			return fmt.Errorf("nothing succeeded: %w", w.last)
		}
	}
	return errors.New("nothing succeeded")
}

// workers spreads the clients over the endpoints: each endpoint has one
// client.Client that asks it first and the others when it fails.
func (b *bench) workers() ([]*worker, error) {
	clients := make([]*client.Client, len(b.Endpoints))
	for i := range clients {
		endpoints := append(slices.Clone(b.Endpoints[i:]), b.Endpoints[:i]...)
		c, err := client.New(client.Config{Endpoints: endpoints, RetryFor: retryFor})
		if err != nil {
			return nil, err
		}
		clients[i] = c
	}
	// Runs at the same time must not meet in one name.
	prefix := fmt.Sprintf("bench/%08x", rand.Uint32())
	workers := make([]*worker, b.Clients)
	for i := range workers {
		w := &worker{client: clients[i%len(clients)], prefix: prefix, number: i, errors: map[string]int{}}
		switch b.Mode {
		case "cycle":
			w.operation = w.cycle
		case "renew":
			w.operation = w.renew
		case "next":
			w.operation = w.next
		}
		workers[i] = w
	}
	return workers, nil
}

func (b *bench) sum(workers []*worker, measured time.Duration) measurement {
	m := measurement{
		Mode: b.Mode, Clients: b.Clients, Endpoints: b.Endpoints,
		DurationMS: measured.Milliseconds(), Errors: map[string]int{},
	}
	var latencies []time.Duration
	for _, w := range workers {
		latencies = append(latencies, w.latencies...)
		for code, n := range w.errors {
			m.Errors[code] += n
		}
	}
	m.Operations = len(latencies)
	if m.Operations == 0 {
		return m
	}
	slices.Sort(latencies)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	m.PerSecond = float64(m.Operations) / measured.Seconds()
	m.P50MS = ms(percentile(latencies, 50))
	m.P99MS = ms(percentile(latencies, 99))
	m.MaxMS = ms(latencies[len(latencies)-1])
	return m
}

// percentile is the smallest of the sorted values that at least p of 100 do
// not exceed (nearest rank).
func percentile(sorted []time.Duration, p int) time.Duration {
	rank := (len(sorted)*p + 99) / 100
	return sorted[max(rank, 1)-1]
}

func (m measurement) print(w io.Writer) {
	fmt.Fprintf(w, "%s, clients %d: %.0f/s, p50 %.2f ms, p99 %.2f ms, max %.2f ms, %d operations in %v\n",
		m.Mode, m.Clients, m.PerSecond, m.P50MS, m.P99MS, m.MaxMS, m.Operations,
		time.Duration(m.DurationMS)*time.Millisecond)
	for _, code := range slices.Sorted(maps.Keys(m.Errors)) {
		fmt.Fprintf(w, "errors: %d × %s\n", m.Errors[code], code)
	}
}

// worker is one client of a measurement: one request under way at a time.
type worker struct {
	client    *client.Client
	operation func(context.Context) error
	prefix    string
	number    int
	// spoilt counts the names that may be held by nobody until their TTL.
	spoilt int
	held   client.Grant

	latencies []time.Duration
	errors    map[string]int
	last      error // of errors
}

func (w *worker) run(ctx context.Context, from, until time.Time) {
	for ctx.Err() == nil {
		start := time.Now()
		if !start.Before(until) {
			break
		}
		err := w.operation(ctx)
		end := time.Now()
		switch {
		case end.Before(from) || ctx.Err() != nil:
			// Not in the time that is measured.
		case err != nil:
			// Also one that ended late: it took the client all its tries.
			w.errors[errorName(err)]++
			w.last = err
		case !end.After(until):
			w.latencies = append(w.latencies, end.Sub(start))
		}
	}
	if w.held.Token != 0 {
		// Best effort: it would end by itself after its TTL.
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		w.client.Release(ending, lease.ReleaseRequest{Resource: w.held.Resource, Token: w.held.Token})
	}
}

func (w *worker) name() string { return fmt.Sprintf("%s/%d-%d", w.prefix, w.number, w.spoilt) }

func (w *worker) acquire(ctx context.Context) (client.Grant, error) {
	grant, err := w.client.Acquire(ctx, lease.AcquireRequest{
		Resource: w.name(), Holder: fmt.Sprintf("bench-%d", w.number), TTL: benchTTL})
	if err != nil {
		w.spoilt++
	}
	return grant, err
}

func (w *worker) cycle(ctx context.Context) error {
	grant, err := w.acquire(ctx)
	if err != nil {
		return err
	}
	err = w.client.Release(ctx, lease.ReleaseRequest{Resource: grant.Resource, Token: grant.Token})
	if err != nil {
		w.spoilt++
	}
	return err
}

func (w *worker) renew(ctx context.Context) error {
	var err error
	if w.held.Token == 0 {
		if w.held, err = w.acquire(ctx); err != nil {
			return err
		}
	}
	_, err = w.client.Renew(ctx, lease.RenewRequest{Resource: w.held.Resource, Token: w.held.Token})
	if errors.Is(err, lease.ErrLeaseLost) {
		w.held = client.Grant{}
	}
	return err
}

func (w *worker) next(ctx context.Context) error {
	_, err := w.client.Next(ctx, lease.NextRequest{Name: "bench", Count: 1})
	return err
}

// errorName is the code that errors are counted under.
func errorName(err error) string {
	var known *lease.Error
	if errors.As(err, &known) {
		return string(known.Code)
	}
	return err.Error()
}
