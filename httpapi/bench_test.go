package httpapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/highwater/highwater/lease"
)

// BenchmarkHandlers is what the API costs beside net/http and the authority.
func BenchmarkHandlers(b *testing.B) {
	for _, c := range []struct {
		name, method, target, body string
		err                        error
	}{
		{"acquire", "POST", "/v1/leases/invoices/B-1042", `{"holder":"worker-A","ttl_ms":15000}`, nil},
		{"held", "POST", "/v1/leases/invoices/B-1042", `{"holder":"worker-A","ttl_ms":15000}`,
			&lease.Error{Code: lease.CodeLeaseHeld, Holder: "worker-B", CurrentToken: 41, Remaining: 5e9, Reason: lease.ReasonHeld}},
		{"renew", "PUT", "/v1/leases/invoices/B-1042", `{"token":42}`, nil},
		{"release", "DELETE", "/v1/leases/invoices/B-1042?token=42", "", nil},
		{"get", "GET", "/v1/leases/invoices/B-1042", "", nil},
		{"next", "POST", "/v1/sequences/ids", "", nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := &fake{err: c.err, leader: "n2"}
			handler := New(Config{Authority: f, Cluster: cluster})
			body := strings.NewReader("")
			r := httptest.NewRequest(c.method, c.target, nil)
			r.Body, r.ContentLength = io.NopCloser(body), int64(len(c.body))
			w := &discard{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				body.Reset(c.body)
				clear(w.header)
				handler.ServeHTTP(w, r)
				f.asked = f.asked[:0]
			}
			if w.status == 0 || (w.status >= 300) != (c.err != nil) {
				b.Fatalf("answered %d", w.status)
			}
		})
	}
}

// discard is a client that listens to the status only.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }
