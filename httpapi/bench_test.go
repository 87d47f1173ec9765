package httpapi

import (
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
			b.ReportAllocs()
			for b.Loop() {
				body.Reset(c.body)
				r := httptest.NewRequest(c.method, c.target, body)
				handler.ServeHTTP(httptest.NewRecorder(), r)
				f.asked = f.asked[:0]
			}
		})
	}
}
