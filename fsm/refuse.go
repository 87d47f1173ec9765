package fsm

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/highwater/highwater/lease"
)

func refuse(code lease.Code, format string, args ...any) *lease.Error {
	return &lease.Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// tooBusy names the limit that was reached and when it may have passed.
func tooBusy(retry time.Duration, format string, args ...any) *lease.Error {
	err := refuse(lease.CodeTooBusy, format, args...)
	err.RetryAfter = retry
	return err
}

// refusal is the error of one of package lease's checks.
func refusal(err error) *lease.Error {
	var e *lease.Error
	if errors.As(err, &e) {
		return e
	}
	return refuse(lease.CodeBadRequest, "%v", err)
}

// millis is ms as a Duration. What a Duration cannot hold becomes the largest
// or smallest one, which every check refuses, instead of wrapping into range.
func millis(ms int64) time.Duration {
	const limit = math.MaxInt64 / int64(time.Millisecond)
	switch {
	case ms > limit:
		return math.MaxInt64
	case ms < -limit:
		return math.MinInt64
	}
	return time.Duration(ms) * time.Millisecond
}
