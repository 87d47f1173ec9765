package lease

// MaxCount is how many values one request may take from a sequence.
const MaxCount = 100_000

// Sequence is a named counter of its own, for ids, versions and timestamps.
type Sequence struct {
	Name string
	// Last is the largest value issued; Issued is false before the first.
	Last   Token
	Issued bool
	// Frozen is true after a restore, until an operator names the next value.
	Frozen bool
}

// Range is what one request took from a sequence: First to Last, both included.
type Range struct {
	Name  string
	First Token
	Last  Token
}

// NextRequest asks for the next Count values of a sequence.
type NextRequest struct {
	Name  string
	Count int
}

// Check refuses a request that breaks a limit.
func (r NextRequest) Check() error {
	if err := CheckName("sequence", r.Name); err != nil {
		return err
	}
	if r.Count < 1 || r.Count > MaxCount {
		return BadRequest("count", "must be an integer from 1 to %d", MaxCount)
	}
	return nil
}
