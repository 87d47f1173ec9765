package chaos

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// rawRequest is one HTTP request on a connection of its own, whose sending and
// reading are two steps: a fault can be put between them.
type rawRequest struct {
	conn net.Conn
	req  *http.Request
}

// sendRaw writes a request and does not wait for its answer.
func sendRaw(t *testing.T, addr, method, path, body string) *rawRequest {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		method, path, addr, len(body), body)
	must(t, err)
	return &rawRequest{conn: conn, req: &http.Request{Method: method}}
}

// drop closes the connection without reading an answer.
func (r *rawRequest) drop(t *testing.T) {
	t.Helper()
	must(t, r.conn.Close())
}

// read waits for the answer.
func (r *rawRequest) read(t *testing.T) (*http.Response, []byte) {
	t.Helper()
	must(t, r.conn.SetReadDeadline(time.Now().Add(longStop)))
	resp, err := http.ReadResponse(bufio.NewReader(r.conn), r.req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp, body
}
