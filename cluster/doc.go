// Package cluster is one Raft node of the authority: its stores, its end of the
// cluster port, leadership, authority time, and the way of a request to the log
// and back.
//
// # The way of a request
//
// Any node takes any request (do.go). It goes to the leader: into the proposer's
// queue on the leader itself, over one kept connection from the others
// (forward.go). All that waits while one log entry is being committed travels in
// the next one (propose.go). A linearizable read travels with it as a place in
// the entry that takes no bytes, and is answered from the state that the entry
// leaves (read.go).
//
// # Fates
//
// Every sending of a request ends in one of three ways: a result; not applied,
// which is said only where it is certain; unknown. The engine's errors are sorted
// into the three in one place (fateOf). What is repeatable is sent again after an
// unknown fate: acquire by the id that its node drew for it, so that it finds the
// lease that an earlier sending made. A release is not.
//
// # Time
//
// A leader's clock is the state machine's time, as its lead entry found it, plus
// what its own monotonic clock has counted since (lead.go). Every entry carries
// the term for which it was stamped, and the state machine lets an entry that was
// stored under another term change nothing. So it does no harm that a proposer
// can be paused at any line.
//
// # Caveats
//
//   - A raft future is never awaited without a look at the node's end: after a
//     shutdown some are never answered.
//   - Raft's LeaderCh and observers are hints to look; what counts is what State,
//     CurrentTerm and LeaderWithID say then (Node.observe).
//   - Raft reports ErrLeadershipLost for entries that are committed later, or are
//     committed already: it is an unknown fate.
//   - After a failed write of term, vote or log the node ends; see durable.go.
package cluster
