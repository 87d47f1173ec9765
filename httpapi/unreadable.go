package httpapi

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

// What cannot be read as a request (a malformed escape in its path, two hosts,
// a transfer encoding that nobody knows) is refused by net/http before any
// handler sees it, in words of its own, written straight to the connection.
// There is no hook for that, so its connections carry the API's form into what
// is written so: it is told from every other answer by its first two headers,
// which no handler here sends.
const bareHead = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// unreadableListener accepts connections whose bare refusals are problems.
type unreadableListener struct {
	net.Listener
	api *api
}

func (l unreadableListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return unreadableConn{conn, l.api}, nil
}

type unreadableConn struct {
	net.Conn
	api *api
}

func (c unreadableConn) Write(b []byte) (int, error) {
	status, detail, bare := bareRefusal(b)
	if !bare {
		return c.Conn.Write(b)
	}
	if _, err := c.Conn.Write(c.api.unreadable(status, detail)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// bareRefusal takes apart what net/http says by itself: the status and the text.
func bareRefusal(b []byte) (status int, detail string, ok bool) {
	const version = "HTTP/1.1 "
	if !bytes.HasPrefix(b, []byte(version)) || len(b) < len(version)+3 {
		return 0, "", false
	}
	line := bytes.IndexByte(b, '\r')
	if line < 0 || !bytes.HasPrefix(b[line:], []byte(bareHead)) {
		return 0, "", false
	}
	status, err := strconv.Atoi(string(b[len(version) : len(version)+3]))
	return status, string(b[line+len(bareHead):]), err == nil && status >= 400
}

// unreadable is the whole answer to what is no request. Whatever net/http calls
// it, it is the sender's fault and changed nothing: a status of 5xx becomes 400.
func (a *api) unreadable(status int, detail string) []byte {
	p := wire.FromError(lease.BadRequest("", "the request cannot be read: %s", detail))
	if status == http.StatusRequestHeaderFieldsTooLarge {
		p = wire.FromError(&lease.Error{Code: lease.CodeTooLarge,
			Detail: fmt.Sprintf("the request line and the headers must be at most %d bytes", MaxHeader)})
		p.Status = status
	}
	body := p.Append(nil)
	node, leader := a.authority.Names()
	head := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nHighwater-Node: %s\r\n",
		p.Status, http.StatusText(p.Status), wire.ProblemType, len(body), node)
	if leader != "" {
		head = fmt.Appendf(head, "Highwater-Leader: %s\r\n", leader)
	}
	return append(append(head, "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"...), body...)
}
