// Package chaos proves the invariants against real processes: it starts
// `highwater serve` processes, puts load on them, kills, freezes, wipes and
// restarts them, writes down what every client saw, and checks the whole
// history afterwards.
//
// Three parts are kept apart, so that each can be wrong on its own and be
// caught:
//
//   - Caller sends one HTTP request, once, and writes a Record of it. It never
//     retries, since a retry would hide the fate of the first sending.
//   - Cluster starts and breaks processes.
//   - Check is a pure function over the records. It knows nothing of the load
//     or the faults, only what DESIGN.md promises.
//
// # History
//
// A history is a file of JSON objects, one a line, in the order in which the
// answers came. Times are nanoseconds of one process's monotonic clock, so they
// compare across all clients of one history and with no other.
//
//	client      who sent it
//	op          acquire, renew, release, get or next
//	name        the resource or sequence
//	endpoint    the base URL it was sent to
//	invoke      when the sending began
//	return      when the answer was read, or given up
//	status      HTTP status; absent without an answer
//	outcome     ok, refused (it changed nothing) or unknown (it may have been
//	            applied, or may yet be)
//	code        NAME of the problem type, on an error answer
//	holder      acquire: as sent, never used twice; get: as answered
//	token       renew, release: the token sent; acquire, get: the one answered
//	answered    renew: the token answered
//	ttl_ms      acquire, renew: as sent (absent on a renewal that keeps the
//	            lease's own); get: as answered
//	remaining_ms acquire, renew, get: as answered
//	held_holder, held_token
//	            acquire: who held it, on a lease-held refusal
//	count       next: how many values were asked for
//	first, last next: the values answered
//	detail      what went wrong, for people
//
// Holders are unique to one sending, so that any later answer that names one
// shows what became of that sending.
//
// # Caveats
//
// A checker proves nothing about what did not happen. Check therefore takes
// the least numbers of grants, renewals, releases and values that make a
// history worth believing, and their absence is a violation like any other.
//
// An unknown outcome stays possible for ever: it excuses what it could have
// caused, at any later time, and proves nothing.
package chaos
