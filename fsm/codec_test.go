package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/highwater/highwater/lease"
)

// Values with any content that a format can carry.
var (
	anyText = func(limit int) *rapid.Generator[string] {
		return rapid.OneOf(
			rapid.StringN(0, 20, limit),
			rapid.Just(strings.Repeat("x", limit)),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 20), func(b []byte) string { return string(b) }),
		)
	}
	anyMetadata = rapid.Map(anyText(lease.MaxMetadata), func(s string) []byte {
		if s == "" {
			return nil
		}
		return []byte(s)
	})
	anyToken    = rapid.Map(rapid.Int64(), func(n int64) lease.Token { return lease.Token(n) })
	anyDuration = rapid.Map(rapid.Int64(), func(n int64) time.Duration { return time.Duration(n) })
	anyTime     = rapid.OneOf(
		rapid.Just(time.Time{}),
		rapid.Map(rapid.Int64Range(-1<<45, 1<<50), func(ms int64) time.Time { return time.UnixMilli(ms).UTC() }),
	)
	anyName = anyText(lease.MaxName)

	anyCommand = rapid.Custom(func(t *rapid.T) Command {
		switch rapid.IntRange(1, 5).Draw(t, "kind") {
		case 1:
			return SetFloor{Floor: anyToken.Draw(t, "floor"), Delay: rapid.Int64().Draw(t, "delay")}
		case 2:
			c := Acquire{
				Resource: anyName.Draw(t, "resource"), Holder: anyText(lease.MaxHolder).Draw(t, "holder"),
				TTL: rapid.Int64().Draw(t, "ttl"), Metadata: anyMetadata.Draw(t, "metadata"),
			}
			copy(c.Request[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "request"))
			return c
		case 3:
			return Renew{Resource: anyName.Draw(t, "resource"), Token: anyToken.Draw(t, "token"), TTL: rapid.Int64().Draw(t, "ttl")}
		case 4:
			return Release{Resource: anyName.Draw(t, "resource"), Token: anyToken.Draw(t, "token")}
		}
		return Next{Sequence: anyName.Draw(t, "sequence"), Count: rapid.Int64().Draw(t, "count")}
	})

	anyLease = rapid.Custom(func(t *rapid.T) lease.Lease {
		return lease.Lease{
			Resource: anyName.Draw(t, "resource"), Holder: anyText(lease.MaxHolder).Draw(t, "holder"),
			Token: lease.Token(rapid.Int64Range(1, 1<<60).Draw(t, "token")), TTL: anyDuration.Draw(t, "ttl"),
			Remaining: anyDuration.Draw(t, "remaining"), Metadata: anyMetadata.Draw(t, "metadata"), GrantedAt: anyTime.Draw(t, "at"),
		}
	})

	anyError = rapid.Custom(func(t *rapid.T) *lease.Error {
		text := func(label string) string { return rapid.String().Draw(t, label) }
		return &lease.Error{
			Code: lease.Code(text("code")), Detail: text("detail"), Field: text("field"), Holder: text("holder"),
			CurrentToken: anyToken.Draw(t, "current"), Remaining: anyDuration.Draw(t, "remaining"),
			QueueLength: rapid.Int().Draw(t, "queue"), Reason: lease.Reason(text("reason")),
			SupersededBy: anyToken.Draw(t, "superseded"), Leader: text("leader"), Procedure: text("procedure"),
			RetryAfter: anyDuration.Draw(t, "retry"), Applied: lease.Applied(text("applied")),
		}
	})

	anyResult = rapid.Custom(func(t *rapid.T) Result {
		switch rapid.IntRange(1, 4).Draw(t, "kind") {
		case 1:
			return Result{Err: anyError.Draw(t, "error")}
		case 2:
			return Result{Lease: anyLease.Draw(t, "lease")}
		case 3:
			last := lease.Token(rapid.Int64Range(1, 1<<60).Draw(t, "last"))
			return Result{Range: lease.Range{Name: anyName.Draw(t, "name"), First: anyToken.Draw(t, "first"), Last: last}}
		}
		return Result{}
	})

	anyQuery = rapid.Custom(func(t *rapid.T) Query {
		page := func() lease.Page {
			return lease.Page{Prefix: anyName.Draw(t, "prefix"), After: anyName.Draw(t, "after"), Limit: rapid.Int().Draw(t, "limit")}
		}
		switch rapid.IntRange(1, 5).Draw(t, "kind") {
		case 1:
			return GetLease{anyName.Draw(t, "resource")}
		case 2:
			return ListLeases{page()}
		case 3:
			return GetToken{anyToken.Draw(t, "token")}
		case 4:
			return GetSequence{anyName.Draw(t, "name")}
		}
		return ListSequences{page()}
	})

	anyAnswer = rapid.Custom(func(t *rapid.T) Answer {
		if rapid.Bool().Draw(t, "refused") {
			return Answer{Err: anyError.Draw(t, "error")}
		}
		a := Answer{More: rapid.Bool().Draw(t, "more")}
		for range rapid.IntRange(0, 3).Draw(t, "leases") {
			a.Leases = append(a.Leases, anyLease.Draw(t, "lease"))
		}
		for range rapid.IntRange(0, 3).Draw(t, "sequences") {
			a.Sequences = append(a.Sequences, lease.Sequence{
				Name: anyName.Draw(t, "name"), Last: anyToken.Draw(t, "last"),
				Issued: rapid.Bool().Draw(t, "issued"), Frozen: rapid.Bool().Draw(t, "frozen"),
			})
		}
		if rapid.Bool().Draw(t, "token") {
			a.Token = lease.TokenInfo{
				Token: anyToken.Draw(t, "token"), State: lease.TokenState(rapid.String().Draw(t, "state")),
				Holder: anyText(lease.MaxHolder).Draw(t, "holder"), GrantedAt: anyTime.Draw(t, "at"),
			}
			for range rapid.IntRange(0, 2).Draw(t, "resources") {
				a.Token.Resources = append(a.Token.Resources, anyName.Draw(t, "resource"))
			}
		}
		return a
	})
)

// codec is a format with both of its directions.
type codec[T any] struct {
	append func([]byte, T) []byte
	decode func([]byte) (T, error)
}

var (
	commandCodec = codec[Command]{AppendCommand, DecodeCommand}
	resultCodec  = codec[Result]{AppendResult, DecodeResult}
	queryCodec   = codec[Query]{AppendQuery, DecodeQuery}
	answerCodec  = codec[Answer]{AppendAnswer, DecodeAnswer}
	entryCodec   = codec[entry]{appendEntry, decodeEntry}
)

// appendEntry encodes a decoded entry again.
func appendEntry(dst []byte, e entry) []byte {
	if e.kind == entryLead {
		return append(dst, LeadEntry(e.wall)...)
	}
	return append(dst, entryOf(e.term, e.now, e.wall, e.commands...)...)
}

// roundTrip: what is decoded equals what was encoded and shares no memory with
// it; appending appends; no beginning of it, and nothing longer, is accepted.
func roundTrip[T any](c codec[T], values *rapid.Generator[T]) func(*testing.T) {
	return rapid.MakeCheck(func(t *rapid.T) {
		want := values.Draw(t, "value")
		b := c.append(nil, want)
		if with := c.append([]byte("before"), want); string(with) != "before"+string(b) {
			t.Fatalf("appended to a slice: %q, alone: %q", with, b)
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if v, err := c.decode(b[:cut]); err == nil {
			t.Fatalf("%d of %d bytes decode to %+v", cut, len(b), v)
		}
		if v, err := c.decode(append(bytes.Clone(b), 0)); err == nil {
			t.Fatalf("with a byte more it decodes to %+v", v)
		}
		got, err := c.decode(b)
		if err != nil {
			t.Fatal(err)
		}
		clear(b)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func TestRoundTrip(t *testing.T) {
	t.Run("command", roundTrip(commandCodec, anyCommand))
	t.Run("result", roundTrip(resultCodec, anyResult))
	t.Run("query", roundTrip(queryCodec, anyQuery))
	t.Run("answer", roundTrip(answerCodec, anyAnswer))
	t.Run("entry", roundTrip(entryCodec, rapid.Custom(func(t *rapid.T) entry {
		e := entry{kind: entryLead, wall: rapid.Int64().Draw(t, "wall")}
		if rapid.Bool().Draw(t, "lead") {
			return e
		}
		e.kind = entryCommands
		e.term = rapid.Uint64().Draw(t, "term")
		e.now = rapid.Int64Range(0, maxTime).Draw(t, "now")
		for range rapid.IntRange(0, 4).Draw(t, "commands") {
			e.commands = append(e.commands, anyCommand.Draw(t, "command"))
		}
		return e
	})))
}

// Every member of an error has a value here, so that one which the codec
// forgets is seen, also when a member is added.
func TestErrorIsCarriedWhole(t *testing.T) {
	var e lease.Error
	v := reflect.ValueOf(&e).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.CanInt():
			f.SetInt(int64(i) + 1)
		case f.Kind() == reflect.String:
			f.SetString(v.Type().Field(i).Name)
		default:
			t.Fatalf("no value for %s", v.Type().Field(i).Name)
		}
	}
	r, err := DecodeResult(AppendResult(nil, Result{Err: &e}))
	if err != nil || !reflect.DeepEqual(r.Err, &e) {
		t.Errorf("got %+v, %v, want %+v", r.Err, err, e)
	}
}

func TestDecodeRefuses(t *testing.T) {
	name := func(n int) string { return strings.Repeat("n", n) }
	release := func(token []byte, length []byte, rest string) []byte {
		return append(append(append([]byte{commandRelease}, token...), length...), rest...)
	}
	if _, err := DecodeCommand(release([]byte{2}, []byte{1}, "a")); err != nil {
		t.Fatal(err)
	}
	for what, b := range map[string][]byte{
		"nothing":                     nil,
		"kind zero":                   {0},
		"an unknown kind":             {6, 0, 0},
		"a number with a longer form": release([]byte{0x82, 0x00}, []byte{1}, "a"),
		"a number beyond 64 bits":     release([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}, []byte{1}, "a"),
		"a length beyond the input":   release([]byte{2}, []byte{2}, "a"),
		"a length beyond an int":      release([]byte{2}, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, "a"),
		"a name that is too long":     release([]byte{2}, binary.AppendUvarint(nil, 513), name(513)),
		"a trailing byte":             release([]byte{2}, []byte{1}, "ab"),
	} {
		c, err := DecodeCommand(b)
		if err == nil || c != nil {
			t.Errorf("%s: %+v, %v", what, c, err)
		}
		if unknown := what == "kind zero" || what == "an unknown kind"; errors.Is(err, ErrUnknown) != unknown {
			t.Errorf("%s: %v", what, err)
		}
	}
	if c, err := DecodeCommand(release([]byte{2}, binary.AppendUvarint(nil, 512), name(512))); err != nil {
		t.Errorf("%+v, %v", c, err)
	}

	for what, e := range map[string][]byte{
		"authority time below zero":   append(binary.AppendVarint([]byte{entryVersion, entryCommands, 1}, -1), 0, 0),
		"authority time out of range": append(binary.AppendVarint([]byte{entryVersion, entryCommands, 1}, maxTime+1), 0, 0),
		"an empty command":            {entryVersion, entryCommands, 1, 0, 0, 1, 0},
	} {
		if _, err := decodeEntry(e); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
}

// What no node could decode does not get into the log.
func TestAppendPanics(t *testing.T) {
	long := strings.Repeat("x", lease.MaxMetadata+1)
	for what, f := range map[string]func(){
		"resource":         func() { AppendCommand(nil, Acquire{Resource: long}) },
		"holder":           func() { AppendCommand(nil, Acquire{Holder: long}) },
		"metadata":         func() { AppendCommand(nil, Acquire{Metadata: []byte(long)}) },
		"renewed":          func() { AppendCommand(nil, Renew{Resource: long}) },
		"released":         func() { AppendCommand(nil, Release{Resource: long}) },
		"sequence":         func() { AppendCommand(nil, Next{Sequence: long}) },
		"no command":       func() { AppendCommand(nil, nil) },
		"time below zero":  func() { AppendEntry(nil, 1, -1, 0) },
		"time of no clock": func() { AppendEntry(nil, 1, maxTime+1, 0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			f()
		}()
	}
}

// A few bytes that claim a long list or text cost no memory.
func TestDecodeAllocatesWhatTheInputJustifies(t *testing.T) {
	const size = 1 << 16
	claim := binary.AppendUvarint(nil, size-16)
	pad := func(head ...byte) []byte {
		b := append(head, claim...)
		return append(b, make([]byte, size-len(b))...)
	}
	for what, decode := range map[string]func(){
		"entry":  func() { decodeEntry(pad(entryVersion, entryCommands, 1, 0, 0)) },
		"answer": func() { DecodeAnswer(pad(answerData)) },
		"result": func() { DecodeResult(pad(resultError)) },
		"query":  func() { DecodeQuery(pad(queryGetLease)) },
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		decode()
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 24*size {
			t.Errorf("%s: %d bytes for an input of %d", what, n, size)
		}
	}
}

// fuzz: decoding never panics, and what is accepted has no second encoding.
func fuzz[T any](f *testing.F, c codec[T], seeds ...T) {
	for _, s := range seeds {
		f.Add(c.append(nil, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := c.decode(b)
		if err != nil {
			return
		}
		if again := c.append(nil, v); !bytes.Equal(again, b) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, v, again)
		}
	})
}

func FuzzDecodeEntry(f *testing.F) {
	fuzz(f, entryCodec, entry{kind: entryLead, wall: 5}, entry{kind: entryCommands, term: 3, now: 500, commands: seedCommands})
}
func FuzzDecodeCommand(f *testing.F) { fuzz(f, commandCodec, seedCommands...) }
func FuzzDecodeResult(f *testing.F) {
	fuzz(f, resultCodec, Result{}, Result{Err: seedError}, Result{Lease: seedLease}, Result{Range: lease.Range{Name: "s", First: 3, Last: 9}})
}
func FuzzDecodeQuery(f *testing.F) {
	page := lease.Page{Prefix: "a/", After: "a/b", Limit: 10}
	fuzz[Query](f, queryCodec, GetLease{"a"}, ListLeases{page}, GetToken{7}, GetSequence{"s"}, ListSequences{page})
}
func FuzzDecodeAnswer(f *testing.F) {
	fuzz(f, answerCodec, Answer{}, Answer{Err: seedError}, Answer{Leases: []lease.Lease{seedLease, seedLease}, More: true},
		Answer{Sequences: []lease.Sequence{{Name: "s", Last: 5, Issued: true}, {Name: "t", Frozen: true}}},
		Answer{Token: lease.TokenInfo{Token: 7, State: lease.StateCurrent, Resources: []string{"a"}, Holder: "w", GrantedAt: time.UnixMilli(9).UTC()}})
}

var (
	seedCommands = []Command{
		SetFloor{Floor: 1 << 40, Delay: 1000},
		Acquire{Resource: "a/b", Holder: "w", TTL: 15_000, Metadata: []byte(`{}`), Request: request},
		Renew{Resource: "a/b", Token: 7},
		Release{Resource: "a/b", Token: 7},
		Next{Sequence: "s", Count: 10},
	}
	seedError = &lease.Error{Code: lease.CodeLeaseHeld, Detail: "d", Holder: "w", CurrentToken: 7, Remaining: time.Second, Reason: lease.ReasonHeld, RetryAfter: time.Second}
	seedLease = lease.Lease{Resource: "a", Holder: "w", Token: 7, TTL: time.Minute, Remaining: time.Second, Metadata: []byte(`{}`), GrantedAt: time.UnixMilli(9).UTC()}
)
