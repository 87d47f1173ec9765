package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

type next struct {
	endpointFlags
	printFlags
	Sequence string `arg:"" help:"The sequence; it begins to exist at its first use."`
	Count    int    `default:"1" help:"How many values: 1 to 100000."`
}

// Validate is called by kong.
func (n *next) Validate() error {
	if n.Count < 1 || n.Count > lease.MaxCount {
		return lease.BadRequest("--count", "must be an integer from 1 to %d, not %d", lease.MaxCount, n.Count)
	}
	return checkName("SEQUENCE", n.Sequence)
}

// Run takes values and prints one a line.
func (n *next) Run(ctx context.Context, out *streams) error {
	c, err := n.client()
	if err != nil {
		return err
	}
	taken, err := c.Next(ctx, lease.NextRequest{Name: n.Sequence, Count: n.Count})
	if err != nil {
		return err
	}
	return out.print(wire.FromRange(taken), func(w io.Writer) {
		lines := bufio.NewWriter(w)
		for value := taken.First; value <= taken.Last; value++ {
			fmt.Fprintln(lines, value)
		}
		lines.Flush()
	})
}

type sequence struct {
	List sequenceList `cmd:"" help:"List the sequences and how far they have come."`
}

type sequenceList struct {
	endpointFlags
	printFlags
	Prefix string `arg:"" optional:"" help:"List only names that begin so."`
}

// Validate is called by kong.
func (l *sequenceList) Validate() error { return lease.CheckPrefix("PREFIX", l.Prefix) }

// Run lists sequences.
func (l *sequenceList) Run(ctx context.Context, out *streams) error {
	c, err := l.client()
	if err != nil {
		return err
	}
	var sequences []lease.Sequence
	shown := wire.Sequences{Sequences: []wire.Sequence{}}
	for s, err := range c.Sequences(ctx, l.Prefix) {
		if err != nil {
			return err
		}
		sequences = append(sequences, s)
		shown.Sequences = append(shown.Sequences, wire.FromSequence(s))
	}
	return out.print(shown, func(w io.Writer) {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "SEQUENCE\tLAST\tFROZEN")
		for _, s := range sequences {
			last := "-"
			if s.Issued {
				last = s.Last.String()
			}
			fmt.Fprintf(table, "%s\t%s\t%v\n", s.Name, last, s.Frozen)
		}
		table.Flush()
	})
}
