package httpapi

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/highwater/highwater/lease"
)

func TestLargeBodies(t *testing.T) { // C59
	f, addr := serve(t)
	most := `{"holder":"h"` + strings.Repeat(" ", MaxBody-len(`{"holder":"h"}`)) + `}`
	chunked := func(body string) string {
		return fmt.Sprintf("POST /v1/leases/a HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", addr, len(body), body)
	}
	if a := send(t, addr, "POST", "/v1/leases/a", most); a.StatusCode != 201 {
		t.Errorf("1 MiB: %d %s", a.StatusCode, a.body)
	}
	if a := exchange(t, addr, "POST", chunked(most)); a.StatusCode != 201 {
		t.Errorf("1 MiB in a chunk: %d %s", a.StatusCode, a.body)
	}
	f.calls()
	// The length alone is enough: the body is never sent.
	announced := fmt.Sprintf("POST /v1/leases/a HTTP/1.1\r\nHost: %s\r\nContent-Length: 107374182400\r\n\r\n", addr)
	for name, a := range map[string]answer{
		"one byte more": send(t, addr, "POST", "/v1/leases/a", most+" "),
		"in a chunk":    exchange(t, addr, "POST", chunked(most+" ")),
		"announced":     exchange(t, addr, "POST", announced),
		"renew":         send(t, addr, "PUT", "/v1/leases/a", most+" "),
		"next":          send(t, addr, "POST", "/v1/sequences/s", most+" "),
	} {
		if a.StatusCode != 413 || a.problem(t).Type != "too-large" || len(f.calls()) != 0 {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
	deep := send(t, addr, "POST", "/v1/leases/a", `{"holder":"h","metadata":`+strings.Repeat(`{"a":`, 200_000))
	if deep.StatusCode != 400 {
		t.Errorf("deep JSON: %d %s", deep.StatusCode, deep.body)
	}
}

func TestBodiesWhereNoneIsRead(t *testing.T) {
	_, addr := serve(t)
	for _, c := range []struct {
		method, target, chunk string
		status                int
	}{
		{"DELETE", "/v1/leases/a?token=42", "", 200},
		{"DELETE", "/v1/leases/a?token=42", "1\r\nx\r\n", 400},
		{"GET", "/v1/leases/a", "", 200},
		{"GET", "/v1/leases/a", "1\r\nx\r\n", 400},
	} {
		a := exchange(t, addr, c.method, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n%s0\r\n\r\n", c.method, c.target, addr, c.chunk))
		if a.StatusCode != c.status {
			t.Errorf("%s %s with the chunk %q: %d %s", c.method, c.target, c.chunk, a.StatusCode, a.body)
		}
	}
}

// serveWith is serve with the timeouts of a test.
func serveWith(t *testing.T, change func(*Server)) (*fake, string) {
	t.Helper()
	f := &fake{leader: "n2"}
	s := NewServer(Config{Authority: f, Cluster: cluster})
	change(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return f, l.Addr().String()
}

// A body that does not come is given up, and nothing of it is applied (C59).
func TestSlowBody(t *testing.T) {
	f, addr := serveWith(t, func(s *Server) {
		s.http.ReadTimeout, s.http.ReadHeaderTimeout = 50*time.Millisecond, 50*time.Millisecond
	})
	for _, sent := range []string{"", `{"holder":"h"}`} {
		a := exchange(t, addr, "POST", fmt.Sprintf("POST /v1/leases/a HTTP/1.1\r\nHost: %s\r\nContent-Length: 100\r\n\r\n%s", addr, sent))
		if a.StatusCode != 400 || len(f.calls()) != 0 {
			t.Errorf("%d %s", a.StatusCode, a.body)
		}
	}
	// Slow headers get no answer, but lose their connection.
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: %s\r\n", addr)
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a request that never ends is still waited for: %v", err)
	}
}

// A body that breaks off is refused, not taken for a shorter one.
func TestBrokenBody(t *testing.T) {
	f, addr := serve(t)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(conn, "POST /v1/sequences/s HTTP/1.1\r\nHost: %s\r\nContent-Length: 100\r\n\r\n{}", addr)
	_ = conn.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 400 || len(f.calls()) != 0 {
		t.Errorf("a body that breaks off: %d", resp.StatusCode)
	}
}

func TestServerLimits(t *testing.T) {
	s := NewServer(Config{Authority: &fake{}})
	if s.http.MaxHeaderBytes+headerSlack != 32<<10 || s.http.ReadHeaderTimeout <= 0 || s.http.ReadTimeout <= 0 || s.http.WriteTimeout <= 0 || s.http.IdleTimeout <= 0 {
		t.Errorf("a limit is missing: %+v", &s.http)
	}
	_, addr := serve(t)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	go fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: %s\r\nX: %s\r\n\r\n", addr, strings.Repeat("x", MaxHeader))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("headers of more than %d bytes: %d", MaxHeader, resp.StatusCode)
	}
}

// Connections beyond the limit wait until one is free; none is refused.
func TestConnectionLimit(t *testing.T) { // C59
	if s := NewServer(Config{Authority: &fake{}}); s.connections != 20_000 {
		t.Errorf("the limit is %d", s.connections)
	}
	_, addr := serveWith(t, func(s *Server) { s.connections = 1 })
	first, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	get := func(conn net.Conn) error {
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: %s\r\n\r\n", addr)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := get(first); err != nil {
		t.Fatal(err)
	}
	second, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	answered := make(chan error, 1)
	go func() { answered <- get(second) }()
	// The first goes on being served while the second waits.
	for range 10 {
		if err := get(first); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-answered:
			t.Fatalf("a second connection was answered (%v) beside the only one", err)
		default:
		}
	}
	first.Close()
	if err := <-answered; err != nil {
		t.Errorf("the second connection was not answered after the first had gone: %v", err)
	}
}

// Answers never mix, though their buffers are used again.
func TestManyAtOnce(t *testing.T) {
	_, addr := serve(t)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}, Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for j := range 50 {
				holder := strings.Repeat(string(rune('a'+i)), 1+(i*50+j)%200)
				resp, err := client.Post("http://"+addr+"/v1/leases/"+holder, "application/json",
					strings.NewReader(`{"holder":"`+holder+`","metadata":{"of":"`+holder+`"}}`))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || !strings.HasPrefix(string(got), `{"resource":"`+holder+`","holder":"`+holder+`","token":42`) ||
					!strings.Contains(string(got), `"metadata":{"of":"`+holder+`"}`) {
					t.Errorf("the answer to %s is %s, %v", holder, got, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// A web page of another origin gets nowhere (C75).
func TestCrossOrigin(t *testing.T) {
	f, addr := serve(t)
	const acquire = `{"holder":"h"}`
	for _, c := range []struct {
		method  string
		headers []string
		status  int
	}{
		{"POST", []string{"Sec-Fetch-Site: cross-site", "Origin: https://evil.example"}, 403},
		{"POST", []string{"Sec-Fetch-Site: same-site"}, 403},
		{"POST", []string{"Origin: https://evil.example"}, 403},
		{"POST", []string{"Origin: null"}, 403},
		{"POST", []string{"Origin: http://" + addr}, 201},
		{"POST", []string{"Sec-Fetch-Site: same-origin"}, 201},
		{"POST", nil, 201},
		{"GET", []string{"Sec-Fetch-Site: cross-site"}, 200},
		{"DELETE", []string{"Sec-Fetch-Site: cross-site"}, 403},
	} {
		target, body := "/v1/leases/a", acquire
		if c.method != "POST" {
			target, body = "/v1/leases/a", ""
		}
		a := send(t, addr, c.method, target, body, c.headers...)
		if asked := f.calls(); a.StatusCode != c.status || (c.status == 403) != (len(asked) == 0) {
			t.Errorf("%s %q: %d %s, asked %v", c.method, c.headers, a.StatusCode, a.body, asked)
		}
	}
	// Paths that are not there are no way to tell.
	if a := send(t, addr, "POST", "/v1/nothing", acquire, "Sec-Fetch-Site: cross-site"); a.StatusCode != 403 {
		t.Errorf("%d", a.StatusCode)
	}
}

// Nor does one whose name somebody's DNS points at this machine (C75).
func TestHostOnLoopback(t *testing.T) {
	f, addr := serve(t, func(c *Config) { c.AllowedHosts = []string{"n1.example:8400"} })
	for host, ok := range map[string]bool{
		addr: true, "127.0.0.1": true, "127.8.9.1:80": true, "localhost": true, "LocalHost:8400": true, "localhost.:1": true, "[::1]:8400": true, "[::1]": true,
		"n1.example": true, "N1.example:9999": true, "n1.example.": true,
		"evil.example": false, "evil.example:8400": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false, "10.0.0.1": false, "n2.example": false,
	} {
		a := send(t, addr, "GET", "/v1/leases/a", "", "Host: "+host)
		if want := map[bool]int{true: 200, false: 403}[ok]; a.StatusCode != want {
			t.Errorf("Host %q: %d %s, want %d", host, a.StatusCode, a.body, want)
		}
		if asked := f.calls(); !ok && len(asked) != 0 {
			t.Errorf("Host %q: asked %v", host, asked)
		}
	}
	// Elsewhere a node is called what its people call it.
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/livez", nil)
	r.Host = "leases.example"
	New(Config{Authority: f, Cluster: cluster}).ServeHTTP(w, r)
	if w.Code != 200 {
		t.Errorf("a node that listens beyond loopback refuses its name: %d", w.Code)
	}
}

// Many requests on one connection, one of them with an answer that had to grow.
func TestKeptConnection(t *testing.T) {
	f, addr := serve(t)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	answers := bufio.NewReader(conn)
	for i := range 50 {
		f.set(func(f *fake) { f.err = nil })
		status, holder := 201, strings.Repeat("h", 1+i*5)
		if i%3 == 1 {
			f.set(func(f *fake) { f.err = &lease.Error{Code: lease.CodeLeaseHeld, Holder: holder} })
			status = 409
		}
		body := `{"holder":"` + holder + `","metadata":{"a":"` + strings.Repeat("m", i*80) + `"}}`
		fmt.Fprintf(conn, "POST /v1/leases/a HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", addr, len(body), body)
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != status || !strings.Contains(string(got), `"holder":"`+holder+`"`) {
			t.Fatalf("%d: %d %s, %v", i, resp.StatusCode, got, err)
		}
	}
}
