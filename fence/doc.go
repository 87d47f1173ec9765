// Package fence is what the writer of a guarded resource calls: it carries the
// fencing token of a lease with a context, shows it to the resource's guard
// before anything is written, and says in Go what the guard answered.
//
// The guard itself lives in the resource. The one for PostgreSQL is installed
// by package fence/postgres; this package then does, in one transaction,
//
//	SELECT fence.enter('invoices/B-1042', 42, 'worker-7'); UPDATE …
//
// and the database rejects the transaction if a token above 42 was accepted
// before, whatever this process believes about its lease.
//
// # Seal before read
//
// A new holder calls [Seal] right after it has acquired the lease and before it
// reads what it will work on. Until the new token has reached the resource, the
// previous holder's writes are still accepted there, as they must be; without
// the seal one of them can fall between the new holder's read and its first
// write, and is lost although no token was stale.
//
// # What an error means
//
//   - [ErrFenced]: another holder has taken over (or one number was given to
//     two holders). Stop working; the same token is never accepted again. The
//     context made by [WithToken] has been cancelled with this error as cause.
//   - [ErrBusy]: a transaction of an older token is still open at the resource.
//     Nothing was changed; try again with the same token.
//   - [ErrNoToken]: the write carried no admitted token. A bug, or a write path
//     that nobody thought of.
//
// # Caveats
//
// A guard stops late writers, not malicious ones: a token orders, it does not
// authenticate. Effects outside the guarded resource (a mail sent, another
// database written) are not undone when a transaction is rejected.
package fence
