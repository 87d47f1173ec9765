package fence

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"time"
)

// Tx is one transaction of a PostgreSQL driver.
type Tx interface {
	Exec(ctx context.Context, query string, args ...any) error
	Commit(ctx context.Context) error
	// Rollback ends the transaction if Commit has not; its error is not heard.
	Rollback(ctx context.Context) error
}

// attempts bounds how often a transaction is run that the database refuses as
// not serializable (40001) or as part of a deadlock (40P01).
const attempts = 10

// Run is InTx for any driver: begin starts a transaction, Run shows it every
// token of ctx, in byte order of the resources so that two writers cannot
// deadlock, calls fn and commits.
//
// It runs again, in a new transaction, what failed as 40001 or 40P01, so fn
// must be repeatable. A refused token is never tried again.
func Run[T Tx](ctx context.Context, begin func(context.Context) (T, error), fn func(T) error) error {
	tokens := Tokens(ctx)
	if len(tokens) == 0 {
		return ErrNoToken
	}
	for n := 1; ; n++ {
		err := once(ctx, tokens, begin, fn)
		if state := readDriverError(err).state; n == attempts || state != stateSerialization && state != stateDeadlock {
			return Check(ctx, err)
		}
		// Those who met once would meet again if they came back in step.
		select {
		case <-ctx.Done():
			return err
		case <-time.After(rand.N(time.Millisecond << n)):
		}
	}
}

func once[T Tx](ctx context.Context, tokens []Token, begin func(context.Context) (T, error), fn func(T) error) error {
	tx, err := begin(ctx)
	if err != nil {
		return err
	}
	// The rollback must reach the server also when ctx has ended.
	defer tx.Rollback(context.WithoutCancel(ctx))
	for _, t := range tokens {
		if err := tx.Exec(ctx, "select fence.enter($1, $2, $3)", t.Resource, t.Number, t.Holder); err != nil {
			return err
		}
	}
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// Seal admits the tokens of ctx at the guards of a PostgreSQL database and
// writes nothing else: from then on older tokens are rejected. A holder calls
// it right after it acquired a lease, before its first read of the resource.
func Seal(ctx context.Context, db *sql.DB) error {
	return InTx(ctx, db, nil, func(*sql.Tx) error { return nil })
}

// InTx runs fn in one transaction of a PostgreSQL database with every token of
// ctx admitted in it, and commits; options may be nil. Errors are as Translate
// makes them; without a token in ctx it is ErrNoToken. fn is run again, in a new
// transaction, when the database refused one as not serializable or as part of
// a deadlock; a refused token is never tried again.
func InTx(ctx context.Context, db *sql.DB, options *sql.TxOptions, fn func(*sql.Tx) error) error {
	begin := func(ctx context.Context) (sqlTx, error) {
		tx, err := db.BeginTx(ctx, options)
		return sqlTx{tx}, err
	}
	return Run(ctx, begin, func(tx sqlTx) error { return fn(tx.Tx) })
}

type sqlTx struct{ *sql.Tx }

func (tx sqlTx) Exec(ctx context.Context, query string, args ...any) error {
	_, err := tx.ExecContext(ctx, query, args...)
	return err
}

func (tx sqlTx) Commit(context.Context) error   { return tx.Tx.Commit() }
func (tx sqlTx) Rollback(context.Context) error { return tx.Tx.Rollback() }
