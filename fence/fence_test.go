package fence_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"testing"

	"github.com/highwater/highwater/fence"
)

func TestTokensOfAContext(t *testing.T) {
	ctx := context.Background()
	if got := fence.Tokens(ctx); got != nil {
		t.Errorf("tokens of an empty context: %v", got)
	}
	outer := fence.WithToken(ctx, fence.Token{Resource: "b", Number: 1}, fence.Token{Resource: "a", Number: 1}, fence.Token{Resource: "a", Number: 2})
	inner := fence.WithToken(outer, fence.Token{Resource: "b", Number: 3}, fence.Token{Resource: "B", Number: 4})
	if got, want := fence.Tokens(outer), []fence.Token{{Resource: "a", Number: 2}, {Resource: "b", Number: 1}}; !reflect.DeepEqual(got, want) {
		t.Errorf("outer: %v, want %v", got, want)
	}
	if got, want := fence.Tokens(inner), []fence.Token{{Resource: "B", Number: 4}, {Resource: "a", Number: 2}, {Resource: "b", Number: 3}}; !reflect.DeepEqual(got, want) {
		t.Errorf("inner: %v, want %v", got, want)
	}
}

// driverError is an error as drivers make them.
type driverError struct{ Code, Detail, Where string }

func (e *driverError) Error() string    { return e.Code }
func (e *driverError) SQLState() string { return e.Code }

// bareError has a code and nothing else.
type bareError string

func (e bareError) Error() string    { return string(e) }
func (e bareError) SQLState() string { return string(e) }

func TestTranslate(t *testing.T) {
	const at = `{"resource" : "r", "token" : 41, "high_water" : 42}`
	other := errors.New("other")
	for _, c := range []struct {
		err    error
		is     error
		text   string
		status int
	}{
		{&driverError{Code: "TF001", Detail: at}, fence.ErrFenced, "fence stale token=41 high_water=42 resource=r", http.StatusPreconditionFailed},
		{fmt.Errorf("wrapped: %w", &driverError{Code: "TF001", Detail: at}), fence.ErrFenced, "fence stale token=41 high_water=42 resource=r", http.StatusPreconditionFailed},
		{bareError("TF001"), fence.ErrFenced, "fence stale token=0 high_water=0 resource=", http.StatusPreconditionFailed},
		{&driverError{Code: "TF003", Detail: at}, fence.ErrFenced, "fence conflict token=41 resource=r: used by another holder", http.StatusConflict},
		{&driverError{Code: "TF002", Detail: at}, fence.ErrNoToken, "fencing token required: TF002", http.StatusPreconditionRequired},
		{&driverError{Code: "55P03", Where: "PL/pgSQL function fence.enter(text,bigint,text) line 3"}, fence.ErrBusy, "an older writer is still at work: 55P03", http.StatusServiceUnavailable},
		{&driverError{Code: "55P03", Where: "while locking tuple"}, nil, "55P03", http.StatusInternalServerError},
		{&driverError{Code: "TF004", Detail: at}, nil, "TF004", http.StatusInternalServerError},
		{&driverError{Code: "40001"}, nil, "40001", http.StatusInternalServerError},
		{other, other, "other", http.StatusInternalServerError},
		{fence.ErrNoToken, fence.ErrNoToken, "fencing token required", http.StatusPreconditionRequired},
	} {
		got := fence.Translate(c.err)
		if got.Error() != c.text || c.is != nil && !errors.Is(got, c.is) || !errors.Is(got, c.err) {
			t.Errorf("%v: %v, want %q, %v", c.err, got, c.text, c.is)
		}
		for _, kind := range []error{fence.ErrFenced, fence.ErrNoToken, fence.ErrBusy} {
			if kind != c.is && errors.Is(got, kind) {
				t.Errorf("%v is also %v", got, kind)
			}
		}
		if status := fence.HTTPStatus(c.err); status != c.status {
			t.Errorf("%v: status %d, want %d", c.err, status, c.status)
		}
		if again := fence.Translate(got); again != got {
			t.Errorf("translated twice: %v", again)
		}
	}
	if err := fence.Translate(nil); err != nil {
		t.Error(err)
	}
}

func TestCheckEndsTheHoldersContext(t *testing.T) {
	job := fence.WithToken(context.Background(), fence.Token{Resource: "job", Number: 7})
	work := fence.WithToken(job, fence.Token{Resource: "r", Number: 41})
	inner := fence.WithToken(work, fence.Token{Resource: "s", Number: 9})
	for _, err := range []error{
		nil, errors.New("other"), &driverError{Code: "TF002"}, &driverError{Code: "40001"},
		&driverError{Code: "TF001", Detail: `{"resource": "r", "token": 40, "high_water": 42}`}, // another's token
	} {
		fence.Check(inner, err)
		if inner.Err() != nil {
			t.Fatalf("%v has ended the context", err)
		}
	}
	err := fence.Check(inner, &driverError{Code: "TF001", Detail: `{"resource": "r", "token": 41, "high_water": 42}`})
	if work.Err() == nil || inner.Err() == nil || context.Cause(inner) != err {
		t.Errorf("%v, %v, cause %v", work.Err(), inner.Err(), context.Cause(inner))
	}
	if job.Err() != nil {
		t.Error("the context that another token came with has ended, too")
	}
}
