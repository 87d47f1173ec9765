package httpapi

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/highwater/highwater/httpapi/wire"
)

// What net/http refuses by itself has the form of every other refusal (C40).
func TestUnreadableRequests(t *testing.T) {
	_, addr := serve(t)
	for request, status := range map[string]int{
		"GET /v1/leases/a%zz HTTP/1.1\r\nHost: HOST\r\n\r\n":                                     400,
		"GET /v1/leases/a%2 HTTP/1.1\r\nHost: HOST\r\n\r\n":                                      400,
		"GET /v1/leases/a b HTTP/1.1\r\nHost: HOST\r\n\r\n":                                      400,
		"GET /livez HTTP/1.1\r\n\r\n":                                                            400,
		"GET /livez HTTP/1.1\r\nHost: HOST\r\nHost: HOST\r\n\r\n":                                400,
		"GET /livez HTTP/1.1\r\nHost: HOST\r\nBad Header: x\r\n\r\n":                             400,
		"GET /livez HTTP/3.7\r\nHost: HOST\r\n\r\n":                                              400,
		"POST /v1/leases/a HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: gzip\r\n\r\n":            400,
		"POST /v1/leases/a HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\n":                 400,
		"GET /livez HTTP/1.1\r\nHost: HOST\r\nX: " + strings.Repeat("x", MaxHeader) + "\r\n\r\n": 431,
		"nonsense\r\n\r\n": 400,
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		go fmt.Fprint(conn, strings.ReplaceAll(request, "HOST", addr))
		name := request[:min(len(request), 60)]
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			conn.Close()
			continue
		}
		var p wire.Problem
		err = json.UnmarshalRead(resp.Body, &p)
		if err != nil || resp.StatusCode != status || p.Status != status || p.Detail == "" ||
			resp.Header.Get("Content-Type") != wire.ProblemType || resp.Header.Get("Highwater-Node") == "" {
			t.Errorf("%q: %d %v %+v (%v)", name, resp.StatusCode, resp.Header, p, err)
		}
		conn.Close()
	}
}
