package fsm

import (
	"encoding/binary"
	"fmt"
	"math"
)

// The primitives of every format here: bytes, varints as in encoding/binary
// (signed ones zig-zag), and texts and lists with their length before them. A
// value has exactly one encoding.

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendText[T ~string | ~[]byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// reader decodes a byte slice. The first error stays, and everything read
// after it is zero, so that callers check once, at the end (finish). It
// allocates no more than one copy of its input for all texts.
type reader struct {
	b    []byte
	off  int
	text string // b as a string, once a text was read from it
	err  error
}

// fail keeps the first error, with the place where reading had come to.
func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("byte %d: %w", r.off, fmt.Errorf(format, args...))
	}
	r.off = len(r.b)
}

// finish returns the first error; bytes that nobody read are one.
func (r *reader) finish() error {
	if r.off != len(r.b) {
		r.fail("%d bytes too many", len(r.b)-r.off)
	}
	return r.err
}

func (r *reader) byte() byte {
	b := r.take(1)
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

func (r *reader) bool() bool {
	v := r.byte()
	if v > 1 {
		r.fail("must be 0 or 1, not %d", v)
	}
	return v == 1
}

func (r *reader) uint64() uint64 {
	b := r.take(8)
	if len(b) < 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b[r.off:])
	// A last byte of zero adds nothing: the number has a shorter encoding.
	if n <= 0 || n > 1 && r.b[r.off+n-1] == 0 {
		r.fail("not a number, or not in its shortest form")
		return 0
	}
	r.off += n
	return v
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// between reads a number that must be from low to high.
func (r *reader) between(low, high int64) int64 {
	v := r.varint()
	if v < low || v > high {
		r.fail("must be from %d to %d, not %d", low, high, v)
		return 0
	}
	return v
}

// unlimited is for texts and lists that only the input limits.
const unlimited = math.MaxInt

// count reads a length that must be at most limit and at most what is left.
func (r *reader) count(limit int) int {
	n := r.uvarint()
	if left := min(limit, len(r.b)-r.off); n > uint64(left) {
		r.fail("a length of %d, where at most %d is possible", n, left)
		return 0
	}
	return int(n)
}

// elements reads the length of a list whose elements take at least size bytes,
// so that a slice made for them is within what the input justifies.
func (r *reader) elements(size int) int {
	n := r.uvarint()
	if left := (len(r.b) - r.off) / size; n > uint64(left) {
		r.fail("a list of %d, where at most %d are possible", n, left)
		return 0
	}
	return int(n)
}

// makeList makes a list to fill; an empty one is nil.
func makeList[T any](n int) []T {
	if n == 0 {
		return nil
	}
	return make([]T, n)
}

// take returns the next n bytes, which belong to the input.
func (r *reader) take(n int) []byte {
	if n > len(r.b)-r.off {
		r.fail("%d bytes are missing", n-(len(r.b)-r.off))
		return nil
	}
	r.off += n
	return r.b[r.off-n : r.off]
}

// string reads a text of at most limit bytes. All texts of an input share one
// copy of it.
func (r *reader) string(limit int) string {
	n := r.count(limit)
	if n == 0 {
		return ""
	}
	if r.text == "" {
		r.text = string(r.b)
	}
	r.off += n
	return r.text[r.off-n : r.off]
}

// bytes reads like string, into a slice of its own; an empty one is nil.
func (r *reader) bytes(limit int) []byte {
	return append([]byte(nil), r.take(r.count(limit))...)
}
