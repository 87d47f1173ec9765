package main

import (
	"fmt"
	"time"

	"github.com/highwater/highwater/client"
	"github.com/highwater/highwater/lease"
)

// retryFor is how long a command goes on when nobody answers. A person waits
// before a terminal, so it is shorter than the client's own default.
const retryFor = 2 * time.Second

// endpointFlags is embedded by every command that asks a cluster.
type endpointFlags struct {
	Endpoints []string `default:"http://127.0.0.1:8400" help:"Base URLs of the nodes' APIs; any of them will do."`
}

func (f endpointFlags) client() (*client.Client, error) {
	return client.New(client.Config{Endpoints: f.Endpoints, RetryFor: retryFor})
}

// tokenArg is a token on the command line.
type tokenArg lease.Token

// UnmarshalText is called by kong, which adds the flag's or argument's name.
func (t *tokenArg) UnmarshalText(text []byte) error {
	parsed, err := lease.ParseToken("token", string(text))
	if err != nil {
		return fmt.Errorf("must be an integer from 1 to %d, not %q", lease.MaxToken, text)
	}
	*t = tokenArg(parsed)
	return nil
}

// checkName leaves an argument that is missing to kong, which knows of it only
// after the commands were validated.
func checkName(argument, name string) error {
	if name == "" {
		return nil
	}
	return lease.CheckName(argument, name)
}
