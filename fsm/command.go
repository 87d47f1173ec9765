package fsm

import "github.com/highwater/highwater/lease"

// Command is one request of a log entry. Everything that is not determined by
// the state (time, ids) is decided before the log and travels in it.
type Command interface{ command() }

// SetFloor gives a new cluster its token floor. It is the first command of the
// first leader; once a floor is set another SetFloor changes nothing.
type SetFloor struct {
	Floor lease.Token
	// Delay is the authority time, in milliseconds, from this entry until
	// grants above the floor start.
	Delay int64
}

// Acquire grants a free resource. If the resource's live lease was made by the
// same Request, that lease is the answer.
type Acquire struct {
	Resource string
	Holder   string
	TTL      int64 // milliseconds
	Metadata []byte
	Request  lease.RequestID
}

// Renew moves a lease's deadline to the later of the present one and now + TTL.
type Renew struct {
	Resource string
	Token    lease.Token
	TTL      int64 // milliseconds; 0: the lease's own
}

// Release ends a lease by its holder's wish.
type Release struct {
	Resource string
	Token    lease.Token
}

// Next takes the next Count values of a sequence.
type Next struct {
	Sequence string
	Count    int64
}

func (SetFloor) command() {}
func (Acquire) command()  {}
func (Renew) command()    {}
func (Release) command()  {}
func (Next) command()     {}

// Result is what became of one command. Err is nil when it was applied, and a
// refusal otherwise; the member that the command's kind fills is set then.
type Result struct {
	Err   *lease.Error
	Lease lease.Lease // Acquire, Renew
	Range lease.Range // Next
}
