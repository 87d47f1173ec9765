package postgres

import (
	"context"
	_ "embed"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/highwater/highwater/fence"
	"github.com/highwater/highwater/lease"
)

// Effect says what a finding does to the level.
type Effect string

const (
	// Broken: late writes get through. The level is fence.LevelNone.
	Broken Effect = "broken"
	// Weakens: somebody who is no superuser could let late writes through. The
	// level is at most fence.LevelWhilePrivileges.
	Weakens Effect = "weakens"
	// Note: worth knowing; the level is as it is.
	Note Effect = "note"
)

// Finding is one thing that an inspection found.
type Finding struct {
	Effect  Effect `json:"effect"`
	Subject string `json:"subject"` // a table, a role, or the guard
	Text    string `json:"text"`
}

// Table is one guarded table.
type Table struct {
	Name       string   `json:"name"`
	Resource   string   `json:"resource"`
	Mode       Mode     `json:"mode"`
	Writers    []string `json:"writers"`
	Owner      string   `json:"owner"`
	Partitions int      `json:"partitions"`
}

// Inspection is how the guards of a database stand.
type Inspection struct {
	Version  int         `json:"version"`
	Level    fence.Level `json:"level"`
	Findings []Finding   `json:"findings"`
	Tables   []Table     `json:"tables"`

	// Installed and Samples are set by Install: the table's full name, and the
	// resource names of up to three of its rows; an empty one stands for null, a
	// row that nobody can write.
	Installed string   `json:"installed,omitempty"`
	Samples   []string `json:"samples,omitempty"`
}

//go:embed findings.sql
var findingsSQL string

// Verify inspects the guards without writing anything: whether they stand, and
// who could take them down. It needs the rights of the guard's owner or of a
// superuser.
func Verify(ctx context.Context, conn *pgx.Conn) (Inspection, error) {
	report := Inspection{Level: fence.LevelEnforced}
	if err := installed(ctx, conn); err != nil {
		return report, err
	}
	// One snapshot for all that is read.
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return report, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if err := tx.QueryRow(ctx, "select version from fence.settings").Scan(&report.Version); err != nil {
		return report, err
	}
	rows, err := tx.Query(ctx, `
		select p.relname, p.resource, p.mode, p.writers, coalesce(c.relowner::regrole::text, ''),
		       (select count(*) from fence.protected q where q.root = p.root and q.rel <> p.rel)::int
		from fence.protected p left join pg_class c on c.oid = p.rel where p.rel = p.root order by p.relname`)
	if err != nil {
		return report, err
	}
	if report.Tables, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Table]); err != nil {
		return report, err
	}
	if rows, err = tx.Query(ctx, findingsSQL); err != nil {
		return report, err
	}
	if report.Findings, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Finding]); err != nil {
		return report, err
	}
	if len(report.Tables) == 0 {
		report.Findings = append(report.Findings, Finding{Broken, "guard", "no table is guarded"})
	}
	for _, f := range report.Findings {
		switch {
		case f.Effect == Broken:
			report.Level = fence.LevelNone
		case f.Effect == Weakens && report.Level == fence.LevelEnforced:
			report.Level = fence.LevelWhilePrivileges
		}
	}
	return report, nil
}

// Reported counts the transactions of a role that report mode let pass.
type Reported struct {
	Table        string    `json:"table"`
	Role         string    `json:"role"`
	Code         string    `json:"code"` // the SQLSTATE of the refusal
	Transactions int64     `json:"transactions"`
	FirstAt      time.Time `json:"first_at"`
	LastAt       time.Time `json:"last_at"`
}

// State is an inspection with the marks and the counts of report mode.
type State struct {
	Inspection
	Marks    int64       `json:"marks"`   // resources that have a mark
	Highest  lease.Token `json:"highest"` // see Floor
	Least    lease.Token `json:"least"`   // the mark of names that have none
	Reported []Reported  `json:"reported"`
}

// Status is Verify, and what the guards hold.
func Status(ctx context.Context, conn *pgx.Conn) (State, error) {
	report, err := Verify(ctx, conn)
	s := State{Inspection: report}
	if err != nil {
		return s, err
	}
	err = conn.QueryRow(ctx, `
		select count(*), greatest(max(token), (select least from fence.settings)), (select least from fence.settings)
		from fence.high_water`).Scan(&s.Marks, &s.Highest, &s.Least)
	if err != nil {
		return s, err
	}
	rows, err := conn.Query(ctx, `
		select rel, role, code, sum(transactions)::bigint, min(first_at), max(last_at) from (
			select * from fence.report union all select rel, role, code, 1, at, at from fence.report_queue) r
		group by 1, 2, 3 order by 1, 2, 3`)
	if err != nil {
		return s, err
	}
	s.Reported, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Reported])
	return s, err
}
