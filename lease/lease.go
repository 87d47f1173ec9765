package lease

import "time"

// Limits of a lease.
const (
	MinTTL     = 1 * time.Second
	MaxTTL     = 24 * time.Hour
	DefaultTTL = 15 * time.Second

	// MaxMetadata is the size limit of a lease's metadata, in bytes of JSON.
	MaxMetadata = 4 << 10
	// MaxMetadataDepth is how deep its objects and arrays may be nested: many
	// readers of JSON give up on deep values, and one lease's metadata is part
	// of everybody's listing.
	MaxMetadataDepth = 32
)

// Lease is one grant as its holder sees it.
type Lease struct {
	Resource string
	Holder   string
	Token    Token
	// TTL is how long a renewal keeps the lease alive; whole milliseconds.
	TTL time.Duration
	// Remaining is the time to the deadline, as of the log entry that answered:
	// rounded down to whole milliseconds, never below zero, never above TTL.
	Remaining time.Duration
	// Metadata is a JSON object, byte for byte as it was given, or nil.
	Metadata []byte
	// GrantedAt is the granting leader's wall clock: a note for people, never
	// compared with anything.
	GrantedAt time.Time
}

// RequestID tells one request from all others. The node that takes a request
// draws it, so that its own resending after a lost leader finds the lease that
// an earlier sending made.
type RequestID [16]byte

// AcquireRequest asks for a lease on a free resource.
type AcquireRequest struct {
	Resource string
	Holder   string
	TTL      time.Duration
	Metadata []byte
}

// Check refuses a request that breaks a limit, naming the field as the HTTP
// API spells it.
func (r AcquireRequest) Check() error {
	if err := CheckName("resource", r.Resource); err != nil {
		return err
	}
	if err := CheckHolder("holder", r.Holder); err != nil {
		return err
	}
	if len(r.Metadata) > MaxMetadata {
		return BadRequest("metadata", "must be at most %d bytes of JSON, not %d", MaxMetadata, len(r.Metadata))
	}
	return CheckTTL("ttl_ms", r.TTL)
}

// RenewRequest asks to keep a lease. It never creates one and never shortens
// one: the deadline becomes the later of the present one and now + TTL.
type RenewRequest struct {
	Resource string
	Token    Token
	// TTL is the time to keep it for; zero means the lease's own TTL. It
	// becomes the lease's TTL only if the deadline moved.
	TTL time.Duration
}

// Check refuses a request that breaks a limit.
func (r RenewRequest) Check() error {
	if err := CheckName("resource", r.Resource); err != nil {
		return err
	}
	if err := CheckToken("token", r.Token); err != nil {
		return err
	}
	if r.TTL == 0 {
		return nil
	}
	return CheckTTL("ttl_ms", r.TTL)
}

// ReleaseRequest ends a lease by its holder's wish.
type ReleaseRequest struct {
	Resource string
	Token    Token
}

// Check refuses a request that breaks a limit.
func (r ReleaseRequest) Check() error {
	if err := CheckName("resource", r.Resource); err != nil {
		return err
	}
	return CheckToken("token", r.Token)
}

// CheckTTL refuses a TTL outside MinTTL to MaxTTL, or with a part of a
// millisecond.
func CheckTTL(field string, ttl time.Duration) error {
	if ttl < MinTTL || ttl > MaxTTL || ttl%time.Millisecond != 0 {
		return BadRequest(field, "must be an integer from %d to %d milliseconds",
			MinTTL.Milliseconds(), MaxTTL.Milliseconds())
	}
	return nil
}

// TokenState says what became of a token.
type TokenState string

// The states a token can be found in. History, which tells how an ended lease
// ended, is not kept yet: an ended one is StateForgotten.
const (
	StateCurrent   TokenState = "current"
	StateForgotten TokenState = "forgotten"
)

// TokenInfo is what the authority knows of one token it has issued.
type TokenInfo struct {
	Token     Token
	State     TokenState
	Resources []string
	Holder    string
	GrantedAt time.Time
}

// Page says which part of a listing is wanted.
type Page struct {
	Prefix string
	// After is the last name of the page before; names after it are listed.
	After string
	// Limit is 1 to MaxPage names.
	Limit int
}

// Limits of a listing.
const (
	MaxPage     = 1000
	DefaultPage = 100
)

// Check refuses a page that breaks a limit.
func (p Page) Check() error {
	if err := CheckPrefix("prefix", p.Prefix); err != nil {
		return err
	}
	if err := CheckPrefix("after", p.After); err != nil {
		return err
	}
	if p.Limit < 1 || p.Limit > MaxPage {
		return BadRequest("limit", "must be an integer from 1 to %d", MaxPage)
	}
	return nil
}
