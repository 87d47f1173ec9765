package fencepgx_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/highwater/highwater/fence"
	"github.com/highwater/highwater/fence/fencepgx"
	"github.com/highwater/highwater/fence/internal/pgtest"
	"github.com/highwater/highwater/fence/postgres"
)

var server *pgtest.Server

func TestMain(m *testing.M) { pgtest.Main(m, &server) }

// db is a *pgxpool.Pool or a *pgx.Conn.
var db fencepgx.DB

func Example() {
	ctx := fence.WithToken(context.Background(), fence.Token{Resource: "invoices/B-1042", Number: 42, Holder: "worker-7"})
	if err := fencepgx.Seal(ctx, db); err != nil {
		fmt.Println(err)
		return
	}
	err := fencepgx.InTx(ctx, db, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "update invoices set amount = amount + 5 where id = 'B-1042'")
		return err
	})
	if errors.Is(err, fence.ErrFenced) {
		fmt.Println("another holder has taken over")
	}
}

func Test(t *testing.T) {
	ctx := context.Background()
	conn := server.Connect(t, "postgres", server.Database(t, ""))
	if _, err := conn.PgConn().Exec(ctx, `create table invoices (id text primary key, amount int); insert into invoices values ('B-1042', 0)`).ReadAll(); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.Install(ctx, conn, postgres.InstallOptions{Table: "invoices", Resource: "'invoices/' || id"}); err != nil {
		t.Fatal(err)
	}
	db = conn
	Example()
	var amount int
	if err := conn.QueryRow(ctx, "select amount from invoices").Scan(&amount); err != nil || amount != 5 {
		t.Errorf("amount %d, %v", amount, err)
	}
	late := fence.WithToken(ctx, fence.Token{Resource: "invoices/B-1042", Number: 41})
	err := fencepgx.InTx(late, db, pgx.TxOptions{}, func(pgx.Tx) error { t.Error("called with a stale token"); return nil })
	var stale *fence.StaleTokenError
	if !errors.As(err, &stale) || stale.HighWater != 42 || late.Err() == nil {
		t.Errorf("late: %v, context %v", err, late.Err())
	}
	if err := fencepgx.Seal(ctx, db); !errors.Is(err, fence.ErrNoToken) {
		t.Errorf("without a token: %v", err)
	}
}
