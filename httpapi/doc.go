// Package httpapi is the HTTP side of a node: routes, what a request may look
// like, and how an answer or a refusal is written. It decides nothing about
// leases: every decision is the [Authority]'s, which package cluster fulfils
// and cmd/highwater hands in.
//
// Three rules shape it.
//
// Nothing is ignored that somebody may have meant: an unknown member or query
// parameter, a body where none is read, a path that would have to be cleaned,
// a feature of a later version are refused, with the place named. A name is
// what one percent-decoding of the path gives, so a%2Fb is a/b, and two names
// never become one.
//
// Every answer has the same head (which node answered, which leads), errors
// too; every refusal is a problem (RFC 9457) with a code of package lease, and
// never a member "token".
//
// The handlers are thin, for they cost more than the commit behind them when
// many clients wait: one read of the body into a kept buffer, one call, one
// write with its length known; no logging and no goroutine on the way.
//
// Caveats: what net/http refuses before a handler runs (a request line or a
// percent-escape that is malformed, headers above the limit) gets its form in
// unreadable.go; an Expect other than 100-continue is answered 417 without one.
package httpapi
