package fence

import (
	"cmp"
	"context"
	"slices"

	"github.com/highwater/highwater/lease"
)

// Token is what a writer shows to a guard.
type Token struct {
	// Resource is the lease's name, byte for byte.
	Resource string
	// Number is the lease's token, 1 to lease.MaxToken.
	Number int64
	// Holder is the lease's holder, or empty. A guard keeps it beside the mark
	// and refuses the same number from another holder; an empty one is not
	// compared.
	Holder string
}

// FromLease returns the token of a lease.
func FromLease(l lease.Lease) Token {
	return Token{Resource: l.Resource, Number: int64(l.Token), Holder: l.Holder}
}

type contextKey struct{}

// claims is what one call of WithToken added.
type claims struct {
	outer  *claims
	tokens []Token
	cancel context.CancelCauseFunc
}

func claimsOf(ctx context.Context) *claims {
	c, _ := ctx.Value(contextKey{}).(*claims)
	return c
}

// WithToken returns a context that carries tokens, beside those that ctx
// carries already. It is cancelled when a guard refuses one of them as stale or
// in conflict; context.Cause then tells the refusal. What it holds is released
// then, or when ctx ends: derive it from the context that ends with the lease.
func WithToken(ctx context.Context, tokens ...Token) context.Context {
	c := &claims{outer: claimsOf(ctx), tokens: slices.Clone(tokens)}
	ctx, c.cancel = context.WithCancelCause(ctx)
	return context.WithValue(ctx, contextKey{}, c)
}

// Tokens returns the tokens that ctx carries, one for each resource, in byte
// order of the resource. Of several for one resource it is the last added.
func Tokens(ctx context.Context) []Token {
	var tokens []Token
	for c := claimsOf(ctx); c != nil; c = c.outer {
		for _, t := range slices.Backward(c.tokens) {
			if !slices.ContainsFunc(tokens, func(u Token) bool { return u.Resource == t.Resource }) {
				tokens = append(tokens, t)
			}
		}
	}
	slices.SortFunc(tokens, func(a, b Token) int { return cmp.Compare(a.Resource, b.Resource) })
	return tokens
}

// stop cancels the context that resource's token number was added by, and with
// it all work that was begun in it.
func stop(ctx context.Context, resource string, number int64, cause error) {
	for c := claimsOf(ctx); c != nil; c = c.outer {
		if slices.ContainsFunc(c.tokens, func(t Token) bool { return t.Resource == resource && t.Number == number }) {
			c.cancel(cause)
		}
	}
}
