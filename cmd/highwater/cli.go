package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/highwater/highwater/lease"
)

// Exit codes, which scripts depend on.
const (
	exitDone     = 0
	exitFailed   = 1  // refused or failed
	exitUsage    = 2  // wrong flags or arguments
	exitNoLeader = 69 // no node reachable, or no leader
	exitHeld     = 75 // not acquired: held by another
	exitLost     = 76 // the lease is over
)

// cli is the command line as a whole. Every flag can be given as an environment
// variable too: HIGHWATER_ and the flag's name in capitals.
type cli struct {
	Serve Serve `cmd:"" help:"Run one node of a cluster."`
	Dev   Dev   `cmd:"" help:"Run a whole cluster in this process, to try things out."`

	Acquire acquire `cmd:"" group:"leases" help:"Acquire a lease. Prints the token alone on stdout."`
	Renew   renew   `cmd:"" group:"leases" help:"Keep a lease."`
	Release release `cmd:"" group:"leases" help:"End a lease."`
	Get     get     `cmd:"" group:"leases" help:"Show who holds a lease."`
	List    list    `cmd:"" group:"leases" help:"List the live leases."`
	Token   token   `cmd:"" group:"leases" help:"Show what became of a token."`

	Next     next     `cmd:"" group:"sequences" help:"Take the next values of a sequence. Prints one a line."`
	Sequence sequence `cmd:"" group:"sequences" help:"Look at sequences."`

	Status status `cmd:"" group:"cluster" help:"Show each node's view of the cluster, without a leader too."`
	Health health `cmd:"" group:"cluster" help:"Tell by the exit code whether the first endpoint's node is ready."`
	Bench  bench  `cmd:"" group:"cluster" help:"Measure throughput and latency."`

	Version     version          `cmd:"" help:"Print the version."`
	VersionFlag kong.VersionFlag `name:"version" env:"-" help:"Print the version."`
}

const description = `Highwater hands out leases, each with a fencing token: a number larger than
every one before it, by which a protected resource tells a late writer.

  highwater dev                             try a cluster on this machine
  TOKEN=$(highwater acquire invoices/42)    acquire a lease
  highwater release invoices/42 --token $TOKEN

Exit codes: 0 done, 1 refused or failed, 2 usage, 69 no node reachable or no
leader, 75 not acquired because it is held, 76 lease lost.`

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out := &streams{Out: stdout, Err: stderr}
	parser := kong.Must(&cli{},
		kong.Name("highwater"),
		kong.Description(description),
		kong.Vars{"version": buildVersion()},
		kong.DefaultEnvars("HIGHWATER"),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
		kong.ExplicitGroups([]kong.Group{
			{Key: "leases", Title: "Leases"},
			{Key: "sequences", Title: "Sequences"},
			{Key: "cluster", Title: "Cluster"},
		}),
		kong.Writers(stdout, stderr),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(out),
	)
	command, err := parse(parser, args)
	if err != nil {
		out.JSON = slices.Contains(args, "--json")
		out.misused(err, commandPath(err))
		return exitUsage
	}
	err = command.Run()
	if err != nil {
		out.fail(err)
	}
	return exitCode(err)
}

// parse refuses what is not UTF-8 first: kong would put a replacement character
// in its place, and two names could become one.
func parse(parser *kong.Kong, args []string) (*kong.Context, error) {
	for _, arg := range args {
		if !utf8.ValidString(arg) {
			return nil, fmt.Errorf("%q: must be valid UTF-8", arg)
		}
	}
	for _, entry := range os.Environ() {
		if strings.HasPrefix(entry, "HIGHWATER_") && !utf8.ValidString(entry) {
			return nil, fmt.Errorf("%q in the environment: must be valid UTF-8", entry)
		}
	}
	return parser.Parse(args)
}

// commandPath is how far the command line was understood, for a hint.
func commandPath(err error) string {
	var parse *kong.ParseError
	if !errors.As(err, &parse) || parse.Context == nil || parse.Context.Selected() == nil {
		return ""
	}
	return parse.Context.Selected().FullPath()[len("highwater "):] + " "
}

// exitCode is the one place that turns errors into exit codes.
func exitCode(err error) int {
	var known *lease.Error
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errNoLeaderSeen):
		return exitNoLeader
	case !errors.As(err, &known):
		return exitFailed
	}
	switch known.Code {
	case lease.CodeBadRequest:
		return exitUsage
	case lease.CodeNoLeader:
		return exitNoLeader
	case lease.CodeLeaseHeld:
		return exitHeld
	case lease.CodeLeaseLost:
		return exitLost
	default:
		return exitFailed
	}
}
