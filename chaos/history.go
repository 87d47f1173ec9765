package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/highwater/highwater/lease"
)

// Op is a kind of request.
type Op string

// The requests that a history holds.
const (
	OpAcquire Op = "acquire"
	OpRenew   Op = "renew"
	OpRelease Op = "release"
	OpGet     Op = "get" // linearizable
	OpNext    Op = "next"
)

// Outcome is what a client may conclude from one sending.
type Outcome string

const (
	// OK: it was applied, and the answer is its result.
	OK Outcome = "ok"
	// Refused: it changed nothing and will change nothing.
	Refused Outcome = "refused"
	// Unknown: it may have been applied, or may yet be.
	Unknown Outcome = "unknown"
)

// Record is one request and its fate. The package comment says which members
// are set when.
type Record struct {
	Client   string  `json:"client"`
	Op       Op      `json:"op"`
	Name     string  `json:"name"`
	Endpoint string  `json:"endpoint,omitempty"`
	Invoke   int64   `json:"invoke"` // ns
	Return   int64   `json:"return"` // ns
	Status   int     `json:"status,omitempty"`
	Outcome  Outcome `json:"outcome"`

	Code        lease.Code  `json:"code,omitempty"`
	Holder      string      `json:"holder,omitempty"`
	Token       lease.Token `json:"token,omitempty"`
	Answered    lease.Token `json:"answered,omitempty"`
	TTLMs       int64       `json:"ttl_ms,omitempty"`
	RemainingMs int64       `json:"remaining_ms,omitempty"`
	HeldHolder  string      `json:"held_holder,omitempty"`
	HeldToken   lease.Token `json:"held_token,omitempty"`
	Count       int64       `json:"count,omitempty"`
	First       lease.Token `json:"first,omitempty"`
	Last        lease.Token `json:"last,omitempty"`
	Detail      string      `json:"detail,omitempty"`
}

func (r Record) String() string {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Sprintf("%#v", r)
	}
	return string(b)
}

// History gathers the records of many clients. It is safe for use by many
// goroutines at once.
type History struct {
	start time.Time

	mu        sync.Mutex
	records   []Record
	succeeded int
}

// NewHistory starts an empty history and its clock.
func NewHistory() *History { return &History{start: time.Now()} }

// Now reads the history's clock: nanoseconds since its start.
func (h *History) Now() int64 { return int64(time.Since(h.start)) }

// Add writes a record down.
func (h *History) Add(r Record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.records = append(h.records, r)
	if r.Outcome == OK {
		h.succeeded++
	}
}

// Succeeded is how many requests were answered ok so far.
func (h *History) Succeeded() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.succeeded
}

// Records returns what was written down so far.
func (h *History) Records() []Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.records[:len(h.records):len(h.records)]
}

// WriteRecords writes records as JSON lines.
func WriteRecords(w io.Writer, records []Record) error {
	buffered := bufio.NewWriter(w)
	encoder := json.NewEncoder(buffered)
	for i := range records {
		if err := encoder.Encode(&records[i]); err != nil {
			return fmt.Errorf("writing record %d: %w", i+1, err)
		}
	}
	return buffered.Flush()
}

// ReadRecords reads JSON lines. Unknown members are an error: a checker that
// skips what it does not know proves less than it says.
func ReadRecords(r io.Reader) ([]Record, error) {
	decoder := json.NewDecoder(bufio.NewReader(r))
	decoder.DisallowUnknownFields()
	var records []Record
	for {
		var record Record
		err := decoder.Decode(&record)
		if err == io.EOF {
			return records, nil
		}
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", len(records)+1, err)
		}
		records = append(records, record)
	}
}

// SaveRecords writes a history to a file, for a look at it afterwards.
func SaveRecords(path string, records []Record) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := WriteRecords(file, records); err != nil {
		_ = file.Close() // the first error says what went wrong
		return err
	}
	return file.Close()
}
