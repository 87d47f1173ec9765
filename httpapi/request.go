package httpapi

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gorilla/mux"

	"github.com/highwater/highwater/lease"
)

// maxKey is the length limit of an Idempotency-Key, in bytes.
const maxKey = 128

// buffer holds a request's body, or an answer, between uses.
type buffer struct{ b []byte }

var buffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, 1<<10)} }}

func newBuffer() *buffer { return buffers.Get().(*buffer) }

// free gives the buffer back. One that a large request or answer has grown is
// let go, or a thousand of them would stay.
func (b *buffer) free() {
	if cap(b.b) <= 64<<10 {
		b.b = b.b[:0]
		buffers.Put(b)
	}
}

// pathName is the name in the path after exactly one percent-decoding. The
// name's own rules are checked by the request it goes into.
func pathName(field string, r *http.Request) (string, error) {
	name, err := url.PathUnescape(mux.Vars(r)["name"])
	if err != nil {
		return "", lease.BadRequest(field, "is not well percent-encoded in the path")
	}
	return name, nil
}

// query is the request's query, which may have the parameters allowed, each
// once.
func query(r *http.Request, allowed ...string) (url.Values, error) {
	if r.URL.RawQuery == "" {
		return nil, nil
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, lease.BadRequest("", "the query is not well formed: %v", err)
	}
	for name, given := range values {
		if !slices.Contains(allowed, name) {
			if len(allowed) == 0 {
				return nil, lease.BadRequest(name, "is not a query parameter of this request, which has none")
			}
			return nil, lease.BadRequest(name, "is not a query parameter of this request, which has %s", strings.Join(allowed, ", "))
		}
		if len(given) > 1 {
			return nil, lease.BadRequest(name, "is given %d times in the query", len(given))
		}
	}
	return values, nil
}

// readQuery is the query of a read, which has no body, and whether it asks for
// a local answer.
func readQuery(r *http.Request, allowed ...string) (values url.Values, stale bool, err error) {
	if err := noBody(r); err != nil {
		return nil, false, err
	}
	if values, err = query(r, allowed...); err != nil {
		return nil, false, err
	}
	if values.Has("consistency") {
		switch values.Get("consistency") {
		case "linearizable":
		case "stale":
			stale = true
		default:
			return nil, false, lease.BadRequest("consistency", `must be "linearizable" or "stale"`)
		}
	}
	return values, stale, nil
}

// pageQuery is the query of a listing.
func pageQuery(r *http.Request) (lease.Page, bool, error) {
	values, stale, err := readQuery(r, "prefix", "limit", "after", "consistency")
	if err != nil {
		return lease.Page{}, false, err
	}
	p := lease.Page{Prefix: values.Get("prefix"), After: values.Get("after"), Limit: lease.DefaultPage}
	if values.Has("limit") {
		// What is not written as a plain number becomes 0, which Check refuses
		// with the range.
		p.Limit, _ = strconv.Atoi(values.Get("limit"))
		if strconv.Itoa(p.Limit) != values.Get("limit") {
			p.Limit = 0
		}
	}
	return p, stale, p.Check()
}

// readBody reads the body into b. The caller frees b when nothing of it is used
// any more.
func readBody(w http.ResponseWriter, r *http.Request, b *buffer) error {
	if err := checkContent(r.Header); err != nil {
		return err
	}
	if r.ContentLength > MaxBody {
		return tooLarge()
	}
	body := http.MaxBytesReader(w, r.Body, MaxBody)
	for {
		n, err := body.Read(b.b[len(b.b):cap(b.b)])
		b.b = b.b[:len(b.b)+n]
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return bodyError(err)
		}
		if len(b.b) == cap(b.b) {
			b.b = slices.Grow(b.b, len(b.b))
		}
	}
}

func bodyError(err error) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return lease.BadRequest("", "the body did not arrive within %v", readTimeout)
	}
	return lease.BadRequest("", "the body could not be read to its end")
}

func tooLarge() error {
	return &lease.Error{Code: lease.CodeTooLarge, Detail: "the body must be at most " + strconv.Itoa(MaxBody) + " bytes"}
}

// noBody refuses a body where none is read.
func noBody(r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	if r.ContentLength < 0 {
		var one [1]byte
		if n, err := io.ReadFull(r.Body, one[:]); n == 0 && err == io.EOF {
			return nil
		}
	}
	return lease.BadRequest("", "%s takes no body here", r.Method)
}

// checkContent lets JSON in, or what does not say, or curl's default, which is
// read as JSON all the same.
func checkContent(h http.Header) error {
	if encoding := h.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return &lease.Error{Code: lease.CodeUnsupportedMediaType, Field: "Content-Encoding", Detail: "the body must not be encoded"}
	}
	switch content := h.Get("Content-Type"); content {
	case "", "application/json", "application/x-www-form-urlencoded":
		return nil
	default:
		kind, parameters, err := mime.ParseMediaType(content)
		charset, given := parameters["charset"]
		if err == nil && (kind == "application/json" || kind == "application/x-www-form-urlencoded") &&
			(!given || strings.EqualFold(charset, "utf-8")) {
			return nil
		}
	}
	return &lease.Error{Code: lease.CodeUnsupportedMediaType, Field: "Content-Type", Detail: "must be application/json in UTF-8"}
}

// noKey refuses an Idempotency-Key on a request that this version does not keep
// keys for: its sender relies on a repeat that would not be recognised.
func noKey(r *http.Request) error {
	if len(r.Header.Values("Idempotency-Key")) > 0 {
		return lease.BadRequest("Idempotency-Key", "is not supported by this version on %s", r.Method)
	}
	return nil
}

// freeKey accepts an Idempotency-Key on a request that repeats by nature, so
// that none is kept.
func freeKey(r *http.Request) error {
	keys := r.Header.Values("Idempotency-Key")
	if len(keys) > 1 || (len(keys) == 1 && (len(keys[0]) < 1 || len(keys[0]) > maxKey)) {
		return lease.BadRequest("Idempotency-Key", "must be given once, with 1 to %d bytes", maxKey)
	}
	return nil
}
