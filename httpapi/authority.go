package httpapi

import (
	"context"
	"time"

	"github.com/highwater/highwater/lease"
)

// Authority is what a node can be asked. Every error is a *lease.Error or the
// context's; anything else is taken for a failure inside, with an unknown
// outcome. Requests have passed their Check.
//
// A read with stale set is answered from local state at once, and the duration
// beside the answer says how old that state may be; otherwise it is zero and
// the answer is as of some moment between call and return.
type Authority interface {
	// Acquire grants a free resource, or refuses it as held.
	Acquire(ctx context.Context, r lease.AcquireRequest) (lease.Lease, error)
	// Renew keeps a lease; it never creates nor shortens one.
	Renew(ctx context.Context, r lease.RenewRequest) (lease.Lease, error)
	// Release ends a lease by its holder's wish.
	Release(ctx context.Context, r lease.ReleaseRequest) error
	// Next takes the next values of a sequence, which begins at its first use.
	Next(ctx context.Context, r lease.NextRequest) (lease.Range, error)
	// GetLease is the live lease on a resource, or lease.ErrNotHeld.
	GetLease(ctx context.Context, resource string, stale bool) (lease.Lease, time.Duration, error)
	// ListLeases is one page of the live leases in byte order of their
	// resources, and whether more follow.
	ListLeases(ctx context.Context, p lease.Page, stale bool) ([]lease.Lease, bool, time.Duration, error)
	// GetToken is what became of a token, or lease.ErrTokenUnknown.
	GetToken(ctx context.Context, t lease.Token, stale bool) (lease.TokenInfo, time.Duration, error)
	// GetSequence is the state of a sequence, or lease.ErrSequenceUnknown.
	GetSequence(ctx context.Context, name string, stale bool) (lease.Sequence, time.Duration, error)
	// ListSequences is one page of the sequences in byte order of their names,
	// and whether more follow.
	ListSequences(ctx context.Context, p lease.Page, stale bool) ([]lease.Sequence, bool, time.Duration, error)
	// Names are the IDs of this node and of the leader, empty when unknown. It
	// is called for every answer and must be cheap.
	Names() (node, leader string)
	// Ready is nil while the node can serve: a leader is known, the log is
	// caught up, the disk is well. Else it says what is missing.
	Ready() error
}
