package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/highwater/highwater/fence"
	"github.com/highwater/highwater/lease"
)

// Mode says what the guard of a table does with a write that it would reject.
type Mode string

const (
	// Enforce rejects it.
	Enforce Mode = "enforce"
	// Report lets it pass and counts its transaction, by table and role; see
	// Status.
	Report Mode = "report"
)

// DefaultLockTimeout is how long fence.enter waits for the transactions of an
// older token, unless told otherwise.
const DefaultLockTimeout = 3 * time.Second

// InstallOptions says which table to guard and how. Table and Resource are
// required.
type InstallOptions struct {
	// Table is the table's name as in SQL: invoices, or billing."Invoices".
	Table string
	// Resource is an immutable SQL expression over the columns of one row that
	// equals the lease's name: 'invoices/' || id.
	Resource string
	// Writers are the roles that may call fence.enter; "public" is everybody.
	// None means every role with a write grant on the table, and its owner.
	Writers []string
	// Mode is Enforce unless set.
	Mode Mode
	// LockTimeout bounds how long fence.enter waits for the transactions of an
	// older token, in all of the database, and how long the installation waits
	// for the table's open writers. Zero means DefaultLockTimeout; whole
	// milliseconds.
	LockTimeout time.Duration
}

func (o *InstallOptions) check() error {
	if o.Table == "" {
		return lease.BadRequest("table", "must name the table to guard")
	}
	if strings.TrimSpace(o.Resource) == "" {
		return lease.BadRequest("resource", "must be an SQL expression that equals the lease's name, like 'invoices/' || id")
	}
	if o.Mode == "" {
		o.Mode = Enforce
	}
	if o.Mode != Enforce && o.Mode != Report {
		return lease.BadRequest("mode", "must be %s or %s, not %q", Enforce, Report, o.Mode)
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = DefaultLockTimeout
	}
	if o.LockTimeout < time.Millisecond || o.LockTimeout > 24*time.Hour || o.LockTimeout%time.Millisecond != 0 {
		return lease.BadRequest("lock-timeout", "must be from 1ms to 24h, in whole milliseconds")
	}
	for field, text := range map[string]string{"table": o.Table, "resource": o.Resource, "writer": strings.Join(o.Writers, "")} {
		if strings.ContainsRune(text, 0) {
			return lease.BadRequest(field, "must not have a NUL character")
		}
	}
	return nil
}

var (
	//go:embed schema.sql
	schemaSQL string
	//go:embed events.sql
	eventsSQL string
)

// Plan is the SQL that Install runs, as one transaction, for those who install
// by migrations: psql -v ON_ERROR_STOP=1 -f FILE.
func Plan(options InstallOptions) (string, error) {
	body, err := plan(options)
	if err != nil {
		return "", err
	}
	return "BEGIN;\n" + body + "COMMIT;\n", nil
}

func plan(o InstallOptions) (string, error) {
	if err := o.check(); err != nil {
		return "", err
	}
	writers := "NULL"
	if len(o.Writers) > 0 {
		names := make([]string, len(o.Writers))
		for i, w := range o.Writers {
			names[i] = literal(w)
		}
		writers = "ARRAY[" + strings.Join(names, ", ") + "]"
	}
	timeout := fmt.Sprintf("'%dms'", o.LockTimeout.Milliseconds())
	return "SET LOCAL lock_timeout = " + timeout + ";\n" + schemaSQL +
		"\nALTER FUNCTION fence.enter(text, bigint, text) SET lock_timeout = " + timeout + ";" +
		"\nALTER FUNCTION fence.enter_many(jsonb, text) SET lock_timeout = " + timeout + ";\n" +
		fmt.Sprintf("\nSELECT fence.protect(%s::regclass, %s, %s, %s);\n\n",
			literal(o.Table), literal(o.Resource), literal(string(o.Mode)), writers) +
		eventsSQL, nil
}

// literal writes s as an SQL string whatever standard_conforming_strings says.
func literal(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if strings.Contains(s, `\`) {
		return "E'" + strings.ReplaceAll(s, `\`, `\\`) + "'"
	}
	return "'" + s + "'"
}

// Install guards a table, in one transaction: all of it or nothing. It may be
// repeated, to upgrade the guard, to repair it, or to change its options; marks
// are kept. What the connection's role may not do is left out, and the
// inspection says what level remains.
//
// What cannot be guarded is refused with SQLSTATE TF005 and the reason. When the
// table's open writers do not end within LockTimeout it is fence.ErrBusy, and
// nothing was changed.
func Install(ctx context.Context, conn *pgx.Conn, options InstallOptions) (Inspection, error) {
	script, err := plan(options)
	if err != nil {
		return Inspection{}, err
	}
	if err := run(ctx, conn, script); err != nil {
		return Inspection{}, err
	}
	report, err := Verify(ctx, conn)
	if err != nil {
		return Inspection{}, err
	}
	err = conn.QueryRow(ctx, "select fence._name($1::text::regclass)", options.Table).Scan(&report.Installed)
	if err != nil {
		return Inspection{}, err
	}
	// The expression is as the owner of the database gave it, and the installation
	// has taken it.
	rows, err := conn.Query(ctx, "select coalesce(("+options.Resource+"\n)::text, '') from "+report.Installed+" limit 3")
	if err != nil {
		return Inspection{}, err
	}
	report.Samples, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return report, err
}

// Uninstall takes the guard off a table, named as in SQL or, if it is gone, as
// Status names it. The marks stay, for a later installation, unless dropMarks is
// set, which drops everything that Install has made in the database and is
// refused while another table is guarded.
func Uninstall(ctx context.Context, conn *pgx.Conn, table string, dropMarks bool) error {
	if err := installed(ctx, conn); err != nil {
		return err
	}
	script := fmt.Sprintf(`
SET LOCAL client_min_messages = warning;
SET LOCAL lock_timeout = '%dms';
DROP EVENT TRIGGER IF EXISTS fence_ddl;
DROP EVENT TRIGGER IF EXISTS fence_drop;
DROP EVENT TRIGGER IF EXISTS fence_rewrite;
SELECT fence.unprotect(coalesce(fence._name(to_regclass(%s)), %[2]s));
`, DefaultLockTimeout.Milliseconds(), literal(table))
	if dropMarks {
		script += `
DO $$
DECLARE others text := (SELECT string_agg(relname, ', ' ORDER BY relname) FROM fence.protected WHERE rel = root);
BEGIN
  IF others IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'TF005', MESSAGE = format('fence: the marks cannot be dropped, they guard %s as well', others);
  END IF;
  DROP SCHEMA fence CASCADE;
END $$;
`
	} else {
		script += eventsSQL
	}
	return run(ctx, conn, script)
}

// run runs a script of several statements in one transaction.
func run(ctx context.Context, conn *pgx.Conn, script string) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Conn().PgConn().Exec(ctx, script).ReadAll(); err != nil {
		return explain(err)
	}
	return tx.Commit(ctx)
}

// explain adds the server's hint to an error, and calls a lock that was waited
// for too long by its name.
func explain(err error) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return err
	}
	if e.Code == "55P03" {
		return fmt.Errorf("%w: %w", fence.ErrBusy, err)
	}
	if e.Hint != "" {
		return fmt.Errorf("%w\nhint: %s", err, e.Hint)
	}
	return err
}
