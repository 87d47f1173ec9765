package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/highwater/highwater/fence"
	"github.com/highwater/highwater/fence/internal/pgtest"
	"github.com/highwater/highwater/fence/postgres"
)

var server *pgtest.Server

func TestMain(m *testing.M) { pgtest.Main(m, &server) }

// open makes a database with guarded invoices and sets db to it, for a role that
// may do no more than write them.
func open(t *testing.T, timeout time.Duration) {
	t.Helper()
	name := server.Database(t, "")
	admin := server.Connect(t, "postgres", name)
	ctx := context.Background()
	if _, err := admin.PgConn().Exec(ctx, `
		do $$ begin create role app login; exception when duplicate_object then null; end $$;
		create table invoices (id text primary key, amount int); insert into invoices values ('B-1042', 0), ('B-1043', 0);
		grant all on invoices to app`).ReadAll(); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.Install(ctx, admin, postgres.InstallOptions{Table: "invoices", Resource: "'invoices/' || id", LockTimeout: timeout}); err != nil {
		t.Fatal(err)
	}
	db = server.Open(t, "app", name)
}

func token(number int64) fence.Token {
	return fence.Token{Resource: "invoices/B-1042", Number: number, Holder: "w"}
}

func amount(t *testing.T, id string) (n int) {
	t.Helper()
	if err := db.QueryRow("select amount from invoices where id = $1", id).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func set(ctx context.Context, n int) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "update invoices set amount = $1 where id = 'B-1042'", n)
		return err
	}
}

func TestExamples(t *testing.T) {
	open(t, 0)
	Example()
	if n := amount(t, "B-1042"); n != 5 {
		t.Errorf("Example: amount %d, want 5", n)
	}
	ExampleCheck()
	if n := amount(t, "B-1042"); n != 7 {
		t.Errorf("ExampleCheck: amount %d, want 7", n)
	}
	ExampleWithToken()
	if n := amount(t, "B-1043"); n != -1 {
		t.Errorf("ExampleWithToken: amount %d, want -1", n)
	}
}

func TestInTx(t *testing.T) {
	open(t, 0)
	if err := fence.InTx(context.Background(), db, nil, func(*sql.Tx) error { t.Error("called without a token"); return nil }); !errors.Is(err, fence.ErrNoToken) {
		t.Errorf("without a token: %v", err)
	}
	older := fence.WithToken(context.Background(), token(41))
	newer := fence.WithToken(context.Background(), token(42))
	if err := fence.InTx(older, db, nil, set(older, 41)); err != nil {
		t.Fatal(err)
	}
	if err := fence.Seal(newer, db); err != nil {
		t.Fatal(err)
	}
	err := fence.InTx(older, db, nil, func(*sql.Tx) error { t.Error("called with a stale token"); return nil })
	var stale *fence.StaleTokenError
	if !errors.As(err, &stale) || *stale != (fence.StaleTokenError{Resource: "invoices/B-1042", Token: 41, HighWater: 42, Cause: stale.Cause}) {
		t.Errorf("stale: %#v", err)
	}
	if older.Err() == nil || !errors.Is(context.Cause(older), fence.ErrFenced) || newer.Err() != nil {
		t.Errorf("contexts: older %v, newer %v", context.Cause(older), newer.Err())
	}
	if err := fence.InTx(newer, db, nil, set(newer, 42)); err != nil || amount(t, "B-1042") != 42 {
		t.Errorf("newer: %v, amount %d", err, amount(t, "B-1042"))
	}
	conflict := fence.WithToken(context.Background(), fence.Token{Resource: "invoices/B-1042", Number: 42, Holder: "x"})
	if err := fence.Seal(conflict, db); !errors.As(err, new(*fence.ConflictError)) || conflict.Err() == nil {
		t.Errorf("conflict: %v, context %v", err, conflict.Err())
	}
	// A write of a resource whose token is not there.
	err = fence.InTx(newer, db, nil, func(tx *sql.Tx) error {
		_, err := tx.Exec("update invoices set amount = 1")
		return err
	})
	if !errors.Is(err, fence.ErrNoToken) || newer.Err() != nil {
		t.Errorf("another resource: %v, context %v", err, newer.Err())
	}
	// A function that does not pass the guard's refusal on.
	err = fence.InTx(newer, db, nil, func(tx *sql.Tx) error {
		tx.Exec("update invoices set amount = 1")
		return nil
	})
	if err == nil || amount(t, "B-1043") != 0 {
		t.Errorf("a swallowed refusal was committed: %v", err)
	}
}

func TestInTxRollsBack(t *testing.T) {
	open(t, 0)
	ctx := fence.WithToken(context.Background(), token(42))
	no := errors.New("no")
	err := fence.InTx(ctx, db, nil, func(tx *sql.Tx) error {
		if err := set(ctx, 1)(tx); err != nil {
			return err
		}
		return no
	})
	if err != no {
		t.Error(err)
	}
	func() {
		defer func() { recover() }()
		fence.InTx(ctx, db, nil, func(tx *sql.Tx) error { set(ctx, 2)(tx); panic("x") })
	}()
	if n := amount(t, "B-1042"); n != 0 {
		t.Errorf("amount %d", n)
	}
	if n := db.Stats().InUse; n != 0 {
		t.Errorf("%d connections are still in use", n)
	}
	if err := fence.Seal(fence.WithToken(context.Background(), token(41)), db); err != nil {
		t.Errorf("what was rolled back has left a mark: %v", err)
	}
}

func TestInTxIsBusyBesideAnOlderWriter(t *testing.T) {
	open(t, 20*time.Millisecond)
	older := fence.WithToken(context.Background(), token(41))
	newer := fence.WithToken(context.Background(), token(42))
	err := fence.InTx(older, db, nil, func(tx *sql.Tx) error {
		if err := fence.Seal(newer, db); !errors.Is(err, fence.ErrBusy) || newer.Err() != nil {
			t.Errorf("beside an open older writer: %v, context %v", err, newer.Err())
		}
		return set(older, 41)(tx)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := fence.Seal(newer, db); err != nil {
		t.Fatal(err)
	}
}

func TestInTxRepeatsWhatIsNotSerializable(t *testing.T) {
	open(t, 0)
	ctx := fence.WithToken(context.Background(), token(42))
	if err := fence.Seal(ctx, db); err != nil {
		t.Fatal(err)
	}
	const workers, each = 4, 3
	var wg sync.WaitGroup
	var mu sync.Mutex
	met := sync.NewCond(&mu)
	calls, arrived := 0, 0
	for range workers {
		wg.Go(func() {
			first := true
			for range each {
				err := fence.InTx(ctx, db, &sql.TxOptions{Isolation: sql.LevelRepeatableRead}, func(tx *sql.Tx) error {
					var n int
					if err := tx.QueryRowContext(ctx, "select amount from invoices where id = 'B-1042'").Scan(&n); err != nil {
						return err
					}
					mu.Lock()
					calls++
					if first { // all have read the same before one writes
						first = false
						arrived++
						met.Broadcast()
						for arrived < workers {
							met.Wait()
						}
					}
					mu.Unlock()
					return set(ctx, n+1)(tx)
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := amount(t, "B-1042"); n != workers*each || calls <= workers*each {
		t.Errorf("amount %d after %d calls, want %d after more", n, calls, workers*each)
	}
}

// What is never serializable is given up, with the driver's word for it; what was
// refused is not tried twice.
func TestInTxGivesUp(t *testing.T) {
	open(t, 0)
	ctx := fence.WithToken(context.Background(), token(42))
	for state, want := range map[string]int{"40001": 10, "40P01": 10, "TF001": 1, "TF002": 1, "23505": 1} {
		calls := 0
		err := fence.InTx(ctx, db, nil, func(*sql.Tx) error { calls++; return &pgconn.PgError{Code: state} })
		var e *pgconn.PgError
		if calls != want || !errors.As(err, &e) || e.Code != state {
			t.Errorf("%s: %d calls, %v; want %d", state, calls, err, want)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	calls := 0
	err := fence.InTx(ended, db, nil, func(*sql.Tx) error { calls++; cancel(); return &pgconn.PgError{Code: "40001"} })
	if calls != 1 || err == nil {
		t.Errorf("after the context's end: %d calls, %v", calls, err)
	}
}

// Many resources, named in any order, by two holders of a shared grant: never a
// deadlock.
func TestInTxEntersInOneOrder(t *testing.T) {
	open(t, 0)
	a, b := token(42), fence.Token{Resource: "invoices/B-1043", Number: 42, Holder: "w"}
	var wg sync.WaitGroup
	for i, tokens := range [][]fence.Token{{a, b}, {b, a}} {
		wg.Go(func() {
			for n := range 20 {
				for j := range tokens {
					tokens[j].Number = int64(100 + n)
				}
				ctx := fence.WithToken(context.Background(), tokens...)
				if err := fence.Seal(ctx, db); err != nil && !errors.Is(err, fence.ErrFenced) {
					t.Errorf("%d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
}
