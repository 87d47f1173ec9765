package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/highwater/highwater/fence"
	"github.com/highwater/highwater/lease"
)

// ErrNotInstalled says that the database has no guard.
var ErrNotInstalled = errors.New("the database has no guard: run highwater fence install")

func installed(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	if err := conn.QueryRow(ctx, "select to_regclass('fence.settings') is not null").Scan(&there); err != nil {
		return err
	}
	if !there {
		return ErrNotInstalled
	}
	return nil
}

// Floor is the highest mark, the least mark included: an authority that is built
// anew must issue only larger tokens. Zero if nothing was ever admitted.
func Floor(ctx context.Context, conn *pgx.Conn) (lease.Token, error) {
	if err := installed(ctx, conn); err != nil {
		return 0, err
	}
	var floor lease.Token
	err := conn.QueryRow(ctx, "select greatest((select max(token) from fence.high_water), (select least from fence.settings))").Scan(&floor)
	return floor, err
}

// Raise raises the mark of a resource, or with an empty name every mark and the
// least mark that names without one have: tokens below to are rejected from now
// on. It never lowers one. It waits for the open transactions of older tokens,
// at most DefaultLockTimeout for each, and is then fence.ErrBusy, with nothing
// changed. It returns how many marks it raised.
func Raise(ctx context.Context, conn *pgx.Conn, resource string, to lease.Token) (int64, error) {
	if err := lease.CheckToken("to", to); err != nil {
		return 0, err
	}
	var name any // null: all
	if resource != "" {
		if err := lease.CheckName("resource", resource); err != nil {
			return 0, err
		}
		name = resource
	}
	if err := installed(ctx, conn); err != nil {
		return 0, err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, fmt.Sprintf("set local lock_timeout = '%dms'", DefaultLockTimeout.Milliseconds())); err != nil {
		return 0, err
	}
	var raised int64
	if err := tx.QueryRow(ctx, "select fence.raise($1, $2)", name, int64(to)).Scan(&raised); err != nil {
		return 0, fence.Translate(err)
	}
	return raised, tx.Commit(ctx)
}
