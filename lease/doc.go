// Package lease holds the nouns of Highwater: names, tokens, leases,
// sequences, their limits, and the errors that say what became of a request.
//
// It has no behaviour that depends on time, randomness or a peer, so every
// other package can import it. The rules behind the nouns are applied in
// package fsm; what they look like on the wire is in httpapi/wire.
package lease
