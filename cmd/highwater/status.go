package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/highwater/highwater/client"
	"github.com/highwater/highwater/httpapi/wire"
)

// errNoLeaderSeen: status has printed all there is to say.
var errNoLeaderSeen = errors.New("no endpoint knows a leader")

// statusTimeout bounds the question to each endpoint. A node answers it at
// once, from what it knows.
const statusTimeout = 3 * time.Second

type status struct {
	endpointFlags
	printFlags
}

// view is what one endpoint said.
type view struct {
	Endpoint string        `json:"endpoint"`
	Error    string        `json:"error,omitempty"`
	Cluster  *wire.Cluster `json:"cluster,omitempty"`
}

// Run asks every endpoint at once and prints the answers in the order of the
// flag.
func (s *status) Run(ctx context.Context, out *streams) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	views := make([]view, len(s.Endpoints))
	var asked sync.WaitGroup
	for i, endpoint := range s.Endpoints {
		asked.Go(func() { views[i] = ask(ctx, endpoint) })
	}
	asked.Wait()

	if err := out.print(map[string][]view{"views": views}, func(w io.Writer) {
		for _, v := range views {
			v.print(w)
		}
	}); err != nil {
		return err
	}
	for _, v := range views {
		if v.Cluster != nil && v.Cluster.Leader != "" {
			return nil
		}
	}
	return errNoLeaderSeen
}

func ask(ctx context.Context, endpoint string) view {
	c, err := client.New(client.Config{Endpoints: []string{endpoint}, OneAttempt: true})
	if err != nil {
		return view{Endpoint: endpoint, Error: err.Error()}
	}
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return view{Endpoint: endpoint, Error: err.Error()}
	}
	return view{Endpoint: endpoint, Cluster: &cluster}
}

func (v view) print(w io.Writer) {
	if v.Cluster == nil {
		fmt.Fprintf(w, "%s: %s\n", v.Endpoint, v.Error)
		return
	}
	c := v.Cluster
	leader := "no leader"
	if c.Leader != "" {
		leader = "leader " + c.Leader
	}
	fmt.Fprintf(w, "%s: node %s, %s, term %d, commit index %d, last token %d, floor %d\n",
		v.Endpoint, c.Node, leader, c.Term, c.CommitIndex, c.LastToken, c.Floor)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  NODE\tROLE\tHEALTHY\tLAST CONTACT\tLAG\tVERSION\tAPI\tCLUSTER")
	for _, n := range c.Nodes {
		healthy := "no"
		if n.Healthy {
			healthy = "yes"
		}
		contact := "never"
		if n.LastContactMS != nil {
			contact = (time.Duration(*n.LastContactMS) * time.Millisecond).String()
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n",
			n.ID, n.Role, healthy, contact, n.Lag, n.Version, n.HTTPAddr, n.ClusterAddr)
	}
	table.Flush()
}

type health struct {
	endpointFlags
	printFlags
}

// Run asks only the first endpoint, so that the health check of one container
// does not depend on another.
func (h *health) Run(ctx context.Context, out *streams) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	c, err := h.client()
	if err != nil {
		return err
	}
	if err := c.Ready(ctx); err != nil {
		return err
	}
	return out.print(map[string]bool{"ready": true}, func(w io.Writer) { fmt.Fprintln(w, "ready") })
}
