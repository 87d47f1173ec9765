package httpapi

import (
	"math"
	"net/http/httptest"
	"testing"
	"time"
)

func TestAgeIsRoundedUpAndNeverNegative(t *testing.T) {
	for age, want := range map[time.Duration]string{
		0:                                "0",
		-time.Second:                     "0",
		1:                                "1",
		time.Millisecond:                 "1",
		time.Millisecond + 1:             "2",
		math.MaxInt64:                    "9223372036855",
		math.MaxInt64 - time.Millisecond: "9223372036854",
	} {
		w := httptest.NewRecorder()
		setAge(w, true, age)
		if got := w.Header().Get("Highwater-Age-Ms"); got != want {
			t.Errorf("age %d ns: Highwater-Age-Ms %q, want %q", age, got, want)
		}
	}
}
