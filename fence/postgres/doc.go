// Package postgres installs, inspects and removes the guard that makes a
// PostgreSQL database reject writes with an outdated fencing token.
package postgres
