package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/highwater/highwater/lease"
)

// ReadAcquire reads the body of an acquire. What it cannot accept is a
// bad-request that names the member. A TTL that is absent is lease.DefaultTTL,
// so 0 is out of range and not a default.
func ReadAcquire(body []byte) (Acquire, error) {
	a := Acquire{TTLMS: lease.DefaultTTL.Milliseconds()}
	err := readObject(body, func(r *reader, name string) (err error) {
		switch name {
		case "holder":
			a.Holder, err = r.text(name)
		case "ttl_ms":
			a.TTLMS, err = r.integer(name, lease.MinTTL.Milliseconds(), lease.MaxTTL.Milliseconds())
		case "metadata":
			a.Metadata, err = r.metadata(name)
		case "wait_ms", "lock_delay_ms":
			// Their zero is what this version does anyhow.
			if n, err := r.integer(name, 0, math.MaxInt64); err != nil || n != 0 {
				return notYet(name)
			}
		case "session":
			err = notYet(name)
		default:
			err = unknown(name)
		}
		return err
	})
	if err == nil {
		err = lease.CheckHolder("holder", a.Holder)
	}
	return a, err
}

// ReadRenew reads the body of a renewal. A TTL that is absent is zero.
func ReadRenew(body []byte) (Renew, error) {
	var n Renew
	err := readObject(body, func(r *reader, name string) (err error) {
		switch name {
		case "token":
			var token int64
			token, err = r.integer(name, 1, int64(lease.MaxToken))
			n.Token = lease.Token(token)
		case "ttl_ms":
			n.TTLMS, err = r.integer(name, lease.MinTTL.Milliseconds(), lease.MaxTTL.Milliseconds())
		case "session":
			err = notYet(name)
		default:
			err = unknown(name)
		}
		return err
	})
	if err == nil {
		err = lease.CheckToken("token", n.Token)
	}
	return n, err
}

// ReadNext reads the body of an allocation from a sequence, which may be
// empty. A count that is absent is 1.
func ReadNext(body []byte) (Next, error) {
	n := Next{Count: 1}
	if len(body) == 0 {
		return n, nil
	}
	err := readObject(body, func(r *reader, name string) (err error) {
		switch name {
		case "count":
			n.Count, err = r.integer(name, 1, lease.MaxCount)
		default:
			err = unknown(name)
		}
		return err
	})
	return n, err
}

func unknown(name string) error {
	return lease.BadRequest(name, "is not a member of this request; names are compared byte for byte")
}

func notYet(name string) error {
	return lease.BadRequest(name, "is not supported by this version: leave it out")
}

// reader reads the members of one JSON object. The decoder underneath refuses
// repeated names, invalid UTF-8, lone surrogates and endless nesting.
type reader struct {
	dec jsontext.Decoder
	buf bytes.Buffer
}

var readers = sync.Pool{New: func() any { return new(reader) }}

// readObject reads body as one JSON object and nothing behind it, and calls
// member for each name; member must read the value that follows, or fail.
func readObject(body []byte, member func(r *reader, name string) error) error {
	r := readers.Get().(*reader)
	defer func() {
		r.buf = bytes.Buffer{} // let go of the body
		r.dec.Reset(&r.buf)
		readers.Put(r)
	}()
	r.buf = *bytes.NewBuffer(body)
	r.dec.Reset(&r.buf)

	if kind := r.dec.PeekKind(); kind != '{' && kind != 0 {
		return lease.BadRequest("", "the body must be a JSON object")
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return malformed(err)
	}
	for r.dec.PeekKind() == '"' {
		name, err := r.dec.ReadToken()
		if err != nil {
			return malformed(err)
		}
		if err := member(r, name.String()); err != nil {
			return err
		}
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return malformed(err)
	}
	if _, err := r.dec.ReadToken(); err != io.EOF {
		return lease.BadRequest("", "the body must be one JSON object and nothing behind it")
	}
	return nil
}

// text reads a string.
func (r *reader) text(name string) (string, error) {
	if kind := r.dec.PeekKind(); kind != '"' && kind != 0 {
		return "", lease.BadRequest(name, "must be a string")
	}
	token, err := r.dec.ReadToken()
	if err != nil {
		return "", malformedValue(name, err)
	}
	return token.String(), nil
}

// integer reads a number of digits alone: a fraction, an exponent, a string or
// a number outside the range is refused with the range.
func (r *reader) integer(name string, least, most int64) (int64, error) {
	value, err := r.dec.ReadValue()
	if err != nil {
		return 0, malformedValue(name, err)
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || n < least || n > most {
		return 0, lease.BadRequest(name, "must be an integer from %d to %d", least, most)
	}
	return n, nil
}

// metadata reads a JSON object and keeps its bytes.
func (r *reader) metadata(name string) (jsontext.Value, error) {
	value, err := r.dec.ReadValue()
	if err != nil {
		return nil, malformedValue(name, err)
	}
	if value.Kind() != '{' {
		return nil, lease.BadRequest(name, "must be a JSON object")
	}
	if len(value) > lease.MaxMetadata {
		return nil, lease.BadRequest(name, "must be at most %d bytes of JSON, not %d", lease.MaxMetadata, len(value))
	}
	if depth(value) > lease.MaxMetadataDepth {
		return nil, lease.BadRequest(name, "must be nested at most %d deep", lease.MaxMetadataDepth)
	}
	return value.Clone(), nil
}

// depth is how deep the objects and arrays of a valid value are nested.
func depth(value jsontext.Value) int {
	deepest := 0
	dec := jsontext.NewDecoder(bytes.NewReader(value))
	for {
		if _, err := dec.ReadToken(); err != nil {
			return deepest
		}
		deepest = max(deepest, dec.StackDepth())
	}
}

// malformed is the bad-request for what is not JSON, naming the member where
// the decoder does.
func malformed(err error) error {
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		return lease.BadRequest("", "the body must be one JSON object")
	}
	field := ""
	for token := range syntax.JSONPointer.Tokens() {
		field = token
		break
	}
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return lease.BadRequest(field, "is given twice")
	}
	return lease.BadRequest(field, "the body is not valid JSON: %v at byte %d", syntax.Err, syntax.ByteOffset)
}

// malformedValue is malformed for the value of the member name.
func malformedValue(name string, err error) error {
	refusal := malformed(err)
	var e *lease.Error
	if errors.As(refusal, &e) {
		e.Field = name
	}
	return refusal
}
