// Package wire is the JSON of Highwater's HTTP API: what requests and answers
// look like, how a refusal is written as a problem (RFC 9457) and read back.
// The server and the Go client share it, so that neither can drift from the
// other.
//
// The two directions have different rules. A request is read strictly by the
// Read functions: an unknown or repeated member, a name in another case,
// invalid UTF-8, trailing bytes or a number that is not an integer is refused
// with the member named, since a member that is silently ignored is a wish
// that is silently not granted. An answer may gain members later, so clients
// read one with json.Unmarshal, which passes over what it does not know.
//
// Requests and answers of the busy paths are written by hand (the Append
// methods); everything else by go-json-experiment/json, whose default rules
// (no duplicate names, exact case, valid UTF-8) are the API's own.
package wire
