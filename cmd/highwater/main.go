// Command highwater runs and uses a Highwater cluster: a replicated authority
// that hands out leases and fencing tokens.
//
// It is the one binary and the only place that wires the packages together.
// Each command is a struct in a file of its own; its flags, environment
// variables, defaults and help are the struct's fields.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// Before anything else, so that no signal finds the process without it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks to stop in order; a second one ends the process.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
