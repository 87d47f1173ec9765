// Package client is the Go client of a Highwater cluster.
//
//	c, err := client.New(client.Config{Endpoints: []string{
//		"http://n1:8400", "http://n2:8400", "http://n3:8400"}})
//	grant, err := c.Acquire(ctx, lease.AcquireRequest{
//		Resource: "invoices/B-1042", Holder: "worker-7", TTL: 15 * time.Second})
//
// Any node takes any request, so the endpoints are alternatives: the client
// stays with one that answers and goes to the next when it does not.
//
// # What an error means
//
// Every error holds a *lease.Error, and errors.Is asks for its kind:
// errors.Is(err, lease.ErrLeaseHeld). An error after which the request may
// have been applied, or may yet be, is lease.ErrOutcomeUnknown; after every
// other one it has changed nothing. When the context ended, errors.Is also
// finds the context's error.
//
// The client sends again what certainly had no effect: no connection was made,
// or the answer says applied "no". What may have had an effect is sent again
// only where a second sending does no harm: renewals, reads, and Next, where it
// leaves a gap. An acquire or a release whose answer was lost is
// lease.ErrOutcomeUnknown: the lease may be held by nobody for one TTL.
//
// # Deadlines
//
// A holder may act until Grant.Deadline, which is counted on this machine's
// monotonic clock from before the request was first sent, so it is never later
// than the authority's. A token protects the resource also after that; see
// the package fence.
//
// # Caveats
//
// The monotonic clock of Linux stands still while the machine is suspended. A
// holder that can be suspended must rely on its token, not on its deadline.
package client
