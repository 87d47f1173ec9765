package fence

// Level says how far a guard can be relied on. A report that gives one says why.
type Level string

const (
	// LevelEnforced: the store rejects late writes on every path of every
	// principal but its administrators.
	LevelEnforced Level = "enforced"
	// LevelWhilePrivileges: it does as long as nobody uses a right that
	// somebody beside the administrators has.
	LevelWhilePrivileges Level = "enforced while privileges hold"
	// LevelCooperative: only writers that ask are protected.
	LevelCooperative Level = "cooperative"
	// LevelNone: nothing is rejected: the guard is missing, broken, or only
	// reports.
	LevelNone Level = "not enforced"
)
