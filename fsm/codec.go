package fsm

// AppendEntry encodes a log entry from commands that are already encoded
// (each as AppendCommand made it), so that forwarded bytes are not encoded
// again. now is authority time and wall the leader's wall clock, both in ms.
func AppendEntry(dst []byte, term uint64, now, wall int64, commands ...[]byte) []byte { return nil }

// LeadEntry is the entry that a node proposes on taking leadership. It carries
// no term, and it changes nothing: its outcome tells the proposer the Raft
// term it was stored under and the authority time of the state.
func LeadEntry(wall int64) []byte { return nil }

// AppendCommand encodes c.
func AppendCommand(dst []byte, c Command) []byte { return nil }

// DecodeCommand decodes exactly one command: trailing bytes are an error.
func DecodeCommand(b []byte) (Command, error) { return nil, nil }

// AppendResult, DecodeResult, AppendQuery, DecodeQuery, AppendAnswer and
// DecodeAnswer carry the same between nodes.
func AppendResult(dst []byte, r Result) []byte { return nil }

// DecodeResult decodes exactly one result.
func DecodeResult(b []byte) (Result, error) { return Result{}, nil }

// AppendQuery encodes q.
func AppendQuery(dst []byte, q Query) []byte { return nil }

// DecodeQuery decodes exactly one query.
func DecodeQuery(b []byte) (Query, error) { return nil, nil }

// AppendAnswer encodes a.
func AppendAnswer(dst []byte, a Answer) []byte { return nil }

// DecodeAnswer decodes exactly one answer.
func DecodeAnswer(b []byte) (Answer, error) { return Answer{}, nil }
