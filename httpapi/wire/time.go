package wire

import (
	"fmt"
	"time"
)

// Time is a wall clock time as answers write it: RFC 3339, UTC, always three
// digits of milliseconds. It is a note for people, never compared.
type Time time.Time

const timeLayout = "2006-01-02T15:04:05.000Z"

// IsZero says that there is no such time; it is absent from the answer then.
func (t Time) IsZero() bool { return time.Time(t).IsZero() }

// String is the time as answers write it.
func (t Time) String() string { return string(t.append(nil)) }

func (t Time) append(b []byte) []byte { return time.Time(t).UTC().AppendFormat(b, timeLayout) }

// MarshalText writes the time; see [Time].
func (t Time) MarshalText() ([]byte, error) { return t.append(nil), nil }

// UnmarshalText reads any RFC 3339 time.
func (t *Time) UnmarshalText(b []byte) error {
	parsed, err := time.Parse(time.RFC3339Nano, string(b))
	if err != nil {
		return fmt.Errorf("%q is not a time as in RFC 3339", b)
	}
	*t = Time(parsed)
	return nil
}
