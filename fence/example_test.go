package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"

	"github.com/highwater/highwater/fence"
	"github.com/highwater/highwater/lease"
)

// db is a guarded PostgreSQL database, opened with any driver.
var db *sql.DB

// held is what client.Acquire has returned.
var held = lease.Lease{Resource: "invoices/B-1042", Token: 42, Holder: "worker-7"}

// A new holder shuts out its predecessor before it reads, and every write goes
// with the token.
func Example() {
	ctx := fence.WithToken(context.Background(), fence.FromLease(held))
	if err := fence.Seal(ctx, db); err != nil {
		fmt.Println(err)
		return
	}
	err := fence.InTx(ctx, db, nil, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "update invoices set amount = amount + 5 where id = 'B-1042'")
		return err
	})
	switch {
	case errors.Is(err, fence.ErrFenced):
		fmt.Println("another holder has taken over:", context.Cause(ctx))
	case errors.Is(err, fence.ErrBusy):
		fmt.Println("the previous holder is still writing; try again")
	case err != nil:
		fmt.Println(err)
	default:
		fmt.Println("written")
	}
}

// SQL that is sent without InTx: Check says what an error means, and ends the
// holder's context.
func ExampleCheck() {
	ctx := fence.WithToken(context.Background(), fence.FromLease(held))
	_, err := db.ExecContext(ctx, `
		with f as materialized (select fence.enter('invoices/B-1042', 42))
		update invoices set amount = 7 from f where id = 'B-1042'`)
	if err = fence.Check(ctx, err); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("written")
}

// One lease on several resources has one token for all of them.
func ExampleWithToken() {
	ctx := fence.WithToken(context.Background(),
		fence.Token{Resource: "invoices/B-1042", Number: 42},
		fence.Token{Resource: "invoices/B-1043", Number: 42})
	err := fence.InTx(ctx, db, &sql.TxOptions{Isolation: sql.LevelSerializable}, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "update invoices set amount = amount - 1")
		return err
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("written")
}

// A service that writes to a guarded database answers with the guard's words.
func ExampleHTTPStatus() {
	_ = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := fence.InTx(r.Context(), db, nil, func(tx *sql.Tx) error { return nil })
		if err != nil {
			http.Error(w, err.Error(), fence.HTTPStatus(err))
		}
	})
	fmt.Println(fence.HTTPStatus(&fence.StaleTokenError{Resource: "invoices/B-1042", Token: 41, HighWater: 42}))
	// Output: 412
}
