// Package fencepgx is fence.InTx and fence.Seal for pgx.
package fencepgx

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/highwater/highwater/fence"
)

// DB starts transactions: a *pgxpool.Pool or a *pgx.Conn.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// InTx runs fn in one transaction with every token of ctx admitted in it, and
// commits. It repeats and answers as fence.InTx does.
func InTx(ctx context.Context, db DB, options pgx.TxOptions, fn func(pgx.Tx) error) error {
	begin := func(ctx context.Context) (tx, error) {
		t, err := db.BeginTx(ctx, options)
		return tx{t}, err
	}
	return fence.Run(ctx, begin, func(t tx) error { return fn(t.Tx) })
}

// Seal admits the tokens of ctx and writes nothing else: from then on older
// tokens are rejected. A holder calls it right after it acquired a lease,
// before its first read of the resource.
func Seal(ctx context.Context, db DB) error {
	return InTx(ctx, db, pgx.TxOptions{}, func(pgx.Tx) error { return nil })
}

type tx struct{ pgx.Tx }

func (t tx) Exec(ctx context.Context, query string, args ...any) error {
	_, err := t.Tx.Exec(ctx, query, args...)
	return err
}
