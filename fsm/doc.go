// Package fsm is the replicated state machine: what every node makes of the
// same log. It holds leases, the token counter, sequences and authority time,
// and the formats in which entries and snapshots are kept.
//
// # Pure
//
// A State reads no clock, draws no random number, does no I/O and starts no
// goroutine. All of that is decided before the log and travels in the entry, so
// that the same entries give the same bytes on every node and after every
// restart. Limits are constants for the same reason: a limit that differed
// between two nodes would make two states. A digest over all entries applied
// lets nodes compare themselves.
//
// # Time
//
// Time is a count of milliseconds that only entries advance (State.Apply). An
// entry stamped for another term than the one that it was stored under changes
// nothing: its clock was read before entries that its maker did not know.
// Expiry is the first thing an entry does; no lease whose deadline has come is
// ever seen by a command or a query.
//
// # Tokens
//
// The counter is apart from the leases, so nothing that happens to a name lowers
// it (token.go). The rate rule keeps what one life of a cluster issues below the
// automatic floor of a later life.
//
// # Trees
//
// Leases and sequences are in copy-on-write trees, in byte order of their names.
// Freezing them costs nothing that grows with their number; writing a snapshot
// then goes on beside the log. The order of deadlines and the way from a token
// to its resource follow from the leases, are rebuilt by a restore, and are
// trees too, since a Go map does not give memory back when its entries go.
// Records are immutable: a renewal makes a new one.
//
// # Formats
//
// Entries and snapshots are kept for ever, so their formats are written out by
// hand (codec.go, snapshot.go): a version, explicit kinds that are never
// reused, and exactly one encoding of each value. What is not understood to the
// last byte is an error that stops the node: a replica that skips is a replica
// that differs. Golden files in testdata hold every version.
package fsm
