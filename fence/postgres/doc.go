// Package postgres installs, inspects and removes the guard that makes a
// PostgreSQL database reject late writes.
//
// The guard is a schema "fence" in the database that it protects: one mark for
// each resource, a function that a writer shows its token to, and triggers on
// the guarded tables. All of it is SQL that is embedded here; this package puts
// it in place and reads what is there. Nothing of Highwater runs beside the
// database afterwards.
//
// # How it decides
//
// Admission and row check are two things. fence.enter compares a token with the
// resource's mark, raises the mark for a larger one, and holds a lock on it
// until the transaction ends: that a check is passed and that its write is
// durable cannot be told apart from outside. The trigger of a row only asks
// whether its transaction has a claim that equals the mark, so it has nothing to
// raise, no lock to upgrade, and a claim made up by hand opens nothing that is
// outdated.
//
// A raise waits until the transactions of the older token have ended, for no
// longer than InstallOptions.LockTimeout. A raise that waits keeps later
// transactions of the older token behind it.
//
// # What is out of its reach
//
// Superusers, the owner of the schema fence, and whoever writes the server's
// files. A database restored from an older backup has older marks with older
// data: raise the marks before it is opened for writing, see Raise.
package postgres
