package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/highwater/highwater/client"
	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

type acquire struct {
	endpointFlags
	printFlags
	Name   string        `arg:"" help:"The resource, like invoices/42."`
	TTL    time.Duration `name:"ttl" default:"15s" help:"How long the lease lives without a renewal: 1s to 24h."`
	Holder string        `help:"Who acquires, for people. Default: USER@HOST."`
	Wait   time.Duration `default:"0s" help:"How long to wait for a lease that is held. This version knows only 0s."`
}

// Validate is called by kong.
func (a *acquire) Validate() error {
	if a.Holder == "" {
		a.Holder = defaultHolder()
	}
	if a.Wait != 0 {
		return lease.BadRequest("--wait", "waiting is not supported by this version; must be 0s")
	}
	if err := checkTTL(a.TTL); err != nil {
		return err
	}
	if err := lease.CheckHolder("--holder", a.Holder); err != nil {
		return err
	}
	return checkName("NAME", a.Name)
}

// Run acquires.
func (a *acquire) Run(ctx context.Context, out *streams) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	grant, err := c.Acquire(ctx, lease.AcquireRequest{Resource: a.Name, Holder: a.Holder, TTL: a.TTL})
	if err != nil {
		return err
	}
	if err := out.print(wire.FromLease(grant.Lease), func(w io.Writer) { fmt.Fprintln(w, grant.Token) }); err != nil {
		// Nobody knows the token, so nobody could release the lease.
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), retryFor)
		defer cancel()
		return errors.Join(err, c.Release(ending, lease.ReleaseRequest{Resource: grant.Resource, Token: grant.Token}))
	}
	out.note("acquired %s as %s, for %v unless renewed", grant.Resource, grant.Holder, left(grant))
	return nil
}

type renew struct {
	endpointFlags
	printFlags
	Name  string        `arg:"" help:"The resource."`
	Token tokenArg      `required:"" placeholder:"N" help:"The token that acquire gave."`
	TTL   time.Duration `name:"ttl" help:"How long from now: 1s to 24h. Default: the lease's own."`
}

// Validate is called by kong.
func (r *renew) Validate() error {
	if r.TTL != 0 {
		if err := checkTTL(r.TTL); err != nil {
			return err
		}
	}
	return checkName("NAME", r.Name)
}

// Run renews.
func (r *renew) Run(ctx context.Context, out *streams) error {
	c, err := r.client()
	if err != nil {
		return err
	}
	grant, err := c.Renew(ctx, lease.RenewRequest{Resource: r.Name, Token: lease.Token(r.Token), TTL: r.TTL})
	if err != nil {
		return err
	}
	return out.print(wire.FromLease(grant.Lease), func(w io.Writer) {
		fmt.Fprintf(w, "renewed %s with token %d, for %v from now\n", grant.Resource, grant.Token, left(grant))
	})
}

type release struct {
	endpointFlags
	printFlags
	Name  string   `arg:"" help:"The resource."`
	Token tokenArg `required:"" placeholder:"N" help:"The token that acquire gave."`
}

// Validate is called by kong.
func (r *release) Validate() error { return checkName("NAME", r.Name) }

// Run releases.
func (r *release) Run(ctx context.Context, out *streams) error {
	c, err := r.client()
	if err != nil {
		return err
	}
	if err := c.Release(ctx, lease.ReleaseRequest{Resource: r.Name, Token: lease.Token(r.Token)}); err != nil {
		return err
	}
	return out.print(wire.Released{Released: true}, func(w io.Writer) { fmt.Fprintf(w, "released %s\n", r.Name) })
}

type get struct {
	endpointFlags
	printFlags
	Name string `arg:"" help:"The resource."`
}

// Validate is called by kong.
func (g *get) Validate() error { return checkName("NAME", g.Name) }

// Run shows one lease.
func (g *get) Run(ctx context.Context, out *streams) error {
	c, err := g.client()
	if err != nil {
		return err
	}
	held, err := c.Get(ctx, g.Name)
	if err != nil {
		return err
	}
	return out.print(wire.FromLease(held), func(w io.Writer) { leaseTable(w, []lease.Lease{held}) })
}

type list struct {
	endpointFlags
	printFlags
	Prefix string `arg:"" optional:"" help:"List only names that begin so."`
}

// Validate is called by kong.
func (l *list) Validate() error { return lease.CheckPrefix("PREFIX", l.Prefix) }

// Run lists leases.
func (l *list) Run(ctx context.Context, out *streams) error {
	c, err := l.client()
	if err != nil {
		return err
	}
	var leases []lease.Lease
	shown := wire.Leases{Leases: []wire.Lease{}}
	for held, err := range c.List(ctx, l.Prefix) {
		if err != nil {
			return err
		}
		leases = append(leases, held)
		shown.Leases = append(shown.Leases, wire.FromLease(held))
	}
	return out.print(shown, func(w io.Writer) { leaseTable(w, leases) })
}

type token struct {
	endpointFlags
	printFlags
	Token tokenArg `arg:"" help:"The token to look up."`
}

// Run shows what became of a token.
func (t *token) Run(ctx context.Context, out *streams) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	info, err := c.Token(ctx, lease.Token(t.Token))
	if err != nil {
		return err
	}
	return out.print(wire.FromToken(info), func(w io.Writer) {
		fmt.Fprintf(w, "token %d: %s", info.Token, info.State)
		if info.State != lease.StateForgotten {
			fmt.Fprintf(w, ", %s, granted to %s at %s", strings.Join(info.Resources, ", "), info.Holder, wire.Time(info.GrantedAt))
		}
		fmt.Fprintln(w)
	})
}

func leaseTable(w io.Writer, leases []lease.Lease) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RESOURCE\tTOKEN\tHOLDER\tREMAINING\tTTL\tGRANTED AT")
	for _, held := range leases {
		fmt.Fprintf(table, "%s\t%d\t%s\t%v\t%v\t%s\n",
			held.Resource, held.Token, held.Holder, held.Remaining, held.TTL, wire.Time(held.GrantedAt))
	}
	table.Flush()
}

// left is the time that the holder may count on, rounded down.
func left(grant client.Grant) time.Duration {
	return time.Until(grant.Deadline).Truncate(time.Millisecond)
}

// checkTTL speaks of durations, as the flag does.
func checkTTL(ttl time.Duration) error {
	if lease.CheckTTL("--ttl", ttl) != nil {
		return lease.BadRequest("--ttl", "must be %v to %v in whole milliseconds, not %v", lease.MinTTL, lease.MaxTTL, ttl)
	}
	return nil
}

// defaultHolder says who runs this command. It is a note for people and need
// not be unique: the token proves who holds.
func defaultHolder() string {
	user := os.Getenv("USER")
	if user == "" {
		user = fmt.Sprintf("uid-%d", os.Getuid())
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return user + "@" + host
}
