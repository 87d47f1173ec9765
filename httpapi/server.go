package httpapi

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/net/netutil"

	"github.com/highwater/highwater/lease"
)

// Limits of one node (DESIGN.md, "Node limits"): they guard it against too many
// or too slow clients, and are no part of what the replicas agree on.
const (
	// MaxConnections is how many clients are connected at once; further ones
	// wait to be accepted.
	MaxConnections = 20_000
	// MaxBody is the size limit of a request's body, in bytes.
	MaxBody = 1 << 20
	// headerSlack is what net/http reads beyond its MaxHeaderBytes.
	headerSlack = 4 << 10
	// MaxHeader is the size limit of a request's line and headers, in bytes.
	MaxHeader = 32 << 10

	headerTimeout = 10 * time.Second
	// readTimeout is for headers and body together. net/http stops the clock at
	// the end of the body, so it does not bound how long an answer takes.
	readTimeout = 30 * time.Second
	// writeTimeout runs from the headers' end to the answer's, with the time
	// that the cluster takes in between: well above what a wait may last.
	writeTimeout = 2 * time.Minute
	idleTimeout  = 2 * time.Minute
)

// Server serves the API of one node within its limits.
type Server struct {
	http         http.Server
	api          *api
	allowedHosts []string
	connections  int
}

// NewServer makes a server; Serve starts it.
func NewServer(c Config) *Server {
	a := newAPI(c)
	return &Server{
		api: a, allowedHosts: c.AllowedHosts, connections: MaxConnections,
		http: http.Server{
			Handler:           a,
			MaxHeaderBytes:    MaxHeader - headerSlack,
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			ErrorLog:          a.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
			// OPTIONS * is a path that does not exist, like others.
			DisableGeneralOptionsHandler: true,
		},
	}
}

// Serve answers on l, which it closes, until Shutdown or Close; it then returns
// http.ErrServerClosed. It is called once.
//
// On a loopback listener a request must name a loopback host or one of
// Config.AllowedHosts: a name that somebody else's DNS points at 127.0.0.1
// would lend a web page this node.
func (s *Server) Serve(l net.Listener) error {
	if isLoopback(hostOf(l.Addr().String())) {
		s.http.Handler = s.api.onlyHosts(s.allowedHosts)
	}
	return s.http.Serve(unreadableListener{netutil.LimitListener(l, s.connections), s.api})
}

// Shutdown stops accepting, and waits until what has been asked is answered or
// ctx ends.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// Close cuts all connections.
func (s *Server) Close() error { return s.http.Close() }

// onlyHosts is the API for requests whose Host is loopback or in allowed. A
// request without one (HTTP/1.0) comes from no browser and passes.
func (a *api) onlyHosts(allowed []string) http.Handler {
	known := map[string]bool{"": true}
	for _, host := range allowed {
		known[hostOf(host)] = true
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host := hostOf(r.Host); !known[host] && !isLoopback(host) {
			a.fail(w, r, &lease.Error{Code: lease.CodeForbidden, Field: "Host",
				Detail: "this node listens on loopback only: Host must be a loopback address or the advertised one"})
			return
		}
		a.ServeHTTP(w, r)
	})
}

// hostOf is the host of host[:port], as DNS compares it.
func hostOf(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
