package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/highwater/highwater/client"
	"github.com/highwater/highwater/lease"
)

// A worker acquires, works with the token, and releases.
func Example() {
	c, err := client.New(client.Config{Endpoints: []string{
		"http://n1:8400", "http://n2:8400", "http://n3:8400",
	}})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	grant, err := c.Acquire(ctx, lease.AcquireRequest{
		Resource: "invoices/B-1042", Holder: "worker-7", TTL: 15 * time.Second,
	})
	var held *lease.Error
	if errors.Is(err, lease.ErrLeaseHeld) && errors.As(err, &held) {
		fmt.Printf("%s holds it with token %d\n", held.Holder, held.CurrentToken)
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	// Nothing is begun after the deadline; what is under way then is stopped by
	// the token, which goes with every write.
	work, cancel := context.WithDeadline(ctx, grant.Deadline)
	defer cancel()
	write(work, grant.Token)

	if err := c.Release(ctx, lease.ReleaseRequest{Resource: grant.Resource, Token: grant.Token}); err != nil {
		log.Print("the lease ends by itself after its TTL: ", err)
	}
}

func write(context.Context, lease.Token) {}
