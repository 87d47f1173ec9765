package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
)

// What errors.Is asks for.
var (
	// ErrFenced says that the token can never be used again at the resource:
	// stop working. It is a *StaleTokenError or a *ConflictError.
	ErrFenced = errors.New("fenced: another holder has taken over")
	// ErrNoToken says that a guarded write came without an admitted token of
	// its resource: a mistake in the program, not a matter of time.
	ErrNoToken = errors.New("fencing token required")
	// ErrBusy says that a transaction of an older token is still open at the
	// resource. Nothing was changed; try again with the same token.
	ErrBusy = errors.New("an older writer is still at work")
)

// StaleTokenError says that the resource has accepted a larger token.
type StaleTokenError struct {
	Resource         string
	Token, HighWater int64
	Cause            error // the driver's error
}

func (e *StaleTokenError) Error() string {
	return fmt.Sprintf("fence stale token=%d high_water=%d resource=%s", e.Token, e.HighWater, e.Resource)
}

func (e *StaleTokenError) Is(target error) bool { return target == ErrFenced }
func (e *StaleTokenError) Unwrap() error        { return e.Cause }

// ConflictError says that the resource has accepted the same number from
// another holder: an authority has given it out twice, which a restore without
// a raised floor, or two live clusters, can do.
type ConflictError struct {
	Resource string
	Token    int64
	Cause    error // the driver's error
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("fence conflict token=%d resource=%s: used by another holder", e.Token, e.Resource)
}

func (e *ConflictError) Is(target error) bool { return target == ErrFenced }
func (e *ConflictError) Unwrap() error        { return e.Cause }

// The SQLSTATEs of the PostgreSQL guard that have an error of their own here.
// The others (TF004 unacceptable token, TF005 operation that cannot be fenced,
// TF006 tampering) are the caller's to read in the driver's error.
const (
	stateStale    = "TF001"
	stateNoClaim  = "TF002"
	stateConflict = "TF003"

	stateLockTimeout   = "55P03"
	stateSerialization = "40001"
	stateDeadlock      = "40P01"
)

// driverError is what PostgreSQL drivers tell of an error. SQLState is a method
// in pgx and lib/pq; Detail and Where are fields of both, read by reflection so
// that this package needs neither.
type driverError struct{ state, detail, where string }

func readDriverError(err error) driverError {
	var s interface{ SQLState() string }
	if !errors.As(err, &s) {
		return driverError{}
	}
	field := func(name string) string {
		v := reflect.Indirect(reflect.ValueOf(s))
		if v.Kind() != reflect.Struct {
			return ""
		}
		if f := v.FieldByName(name); f.Kind() == reflect.String {
			return f.String()
		}
		return ""
	}
	return driverError{s.SQLState(), field("Detail"), field("Where")}
}

// Translate turns a driver's error that came from a guard into one of this
// package's, with the driver's as its cause. Any other error, and nil, is
// returned as it is. A lock timeout (55P03) is ErrBusy only if it struck
// inside the guard.
func Translate(err error) error {
	if errors.Is(err, ErrFenced) || errors.Is(err, ErrNoToken) || errors.Is(err, ErrBusy) {
		return err
	}
	d := readDriverError(err)
	var at struct {
		Resource  string `json:"resource"`
		Token     int64  `json:"token"`
		HighWater int64  `json:"high_water"`
	}
	// A detail that cannot be read leaves the members zero; the kind of the
	// refusal is in the state alone.
	_ = json.Unmarshal([]byte(d.detail), &at)
	switch {
	case d.state == stateStale:
		return &StaleTokenError{Resource: at.Resource, Token: at.Token, HighWater: at.HighWater, Cause: err}
	case d.state == stateConflict:
		return &ConflictError{Resource: at.Resource, Token: at.Token, Cause: err}
	case d.state == stateNoClaim:
		return fmt.Errorf("%w: %w", ErrNoToken, err)
	case d.state == stateLockTimeout && strings.Contains(d.where, "function fence."):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// Check translates err and, if a guard refused a token that ctx carries as
// stale or in conflict, cancels the context that WithToken made for it. InTx
// and Seal call it; call it yourself around SQL that you send without them.
func Check(ctx context.Context, err error) error {
	err = Translate(err)
	var stale *StaleTokenError
	var conflict *ConflictError
	switch {
	case errors.As(err, &stale):
		stop(ctx, stale.Resource, stale.Token, err)
	case errors.As(err, &conflict):
		stop(ctx, conflict.Resource, conflict.Token, err)
	}
	return err
}

// HTTPStatus is the status by which a guarded service answers err: 412 stale,
// 409 conflict, 428 no token, 503 busy, 500 for every other error. A stale
// token is not 409, because some clients send a 409 again by themselves.
func HTTPStatus(err error) int {
	err = Translate(err)
	var conflict *ConflictError
	switch {
	case errors.As(err, &conflict):
		return http.StatusConflict
	case errors.Is(err, ErrFenced):
		return http.StatusPreconditionFailed
	case errors.Is(err, ErrNoToken):
		return http.StatusPreconditionRequired
	case errors.Is(err, ErrBusy):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
