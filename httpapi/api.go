package httpapi

import (
	"net/http"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gorilla/mux"
	"github.com/hashicorp/go-hclog"

	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

// Config is what the API of one node needs.
type Config struct {
	// Authority answers the requests.
	Authority Authority
	// Cluster is the answer to GET /v1/cluster. It must not wait for a leader
	// or another node.
	Cluster func() wire.Cluster
	// Logger is told of failures inside; nil logs nothing.
	Logger hclog.Logger
	// AllowedHosts are the hosts, with or without a port, that a request on a
	// loopback listener may name besides loopback ones: the advertised one. See
	// [Server.Serve].
	AllowedHosts []string
}

type api struct {
	authority   Authority
	cluster     func() wire.Cluster
	logger      hclog.Logger
	crossOrigin *http.CrossOriginProtection
	routes      http.Handler
}

// New is the API as a handler, without the limits of [Server].
func New(c Config) http.Handler { return newAPI(c) }

func newAPI(c Config) *api {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	a := &api{authority: c.Authority, cluster: c.Cluster, logger: c.Logger, crossOrigin: http.NewCrossOriginProtection()}
	a.routes = a.router()
	return a
}

// ServeHTTP is outside of the routes, so that what it does holds for paths
// that do not exist as well.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		reason := recover()
		if reason == nil {
			return
		}
		if reason == http.ErrAbortHandler {
			panic(reason)
		}
		a.logger.Error("a handler panicked", "method", r.Method, "path", r.URL.Path, "reason", reason, "stack", string(debug.Stack()))
		a.fail(w, r, &lease.Error{Code: lease.CodeInternal})
	}()
	// A web page must not use the node of the person who reads it.
	if err := a.crossOrigin.Check(r); err != nil {
		a.fail(w, r, &lease.Error{Code: lease.CodeForbidden, Detail: "a web page of another origin must not send this: " + err.Error()})
		return
	}
	a.routes.ServeHTTP(w, r)
}

// router holds every path of the API, the busy ones first, since mux tries
// them in this order. Paths are matched as they were sent: a name keeps its
// %2F until pathName decodes it, and nothing is cleaned or redirected.
func (a *api) router() http.Handler {
	r := mux.NewRouter().UseEncodedPath().SkipClean(true)
	r.NotFoundHandler = a.handler(a.notFound)
	r.Path("/v1/leases/{name:.*}").Handler(a.methods(map[string]endpoint{
		http.MethodPost: a.acquire, http.MethodPut: a.renew, http.MethodDelete: a.release, http.MethodGet: a.getLease,
	}))
	r.Path("/v1/sequences/{name:.*}").Handler(a.methods(map[string]endpoint{
		http.MethodPost: a.next, http.MethodGet: a.getSequence,
	}))
	// Several resources in one grant are not there yet.
	r.Path("/v1/leases").Methods(http.MethodPost).Handler(a.handler(a.notFound))
	r.Path("/v1/leases").Handler(a.methods(map[string]endpoint{http.MethodGet: a.listLeases}))
	r.Path("/v1/sequences").Handler(a.methods(map[string]endpoint{http.MethodGet: a.listSequences}))
	r.Path("/v1/tokens/{token:[^/]+}").Handler(a.methods(map[string]endpoint{http.MethodGet: a.getToken}))
	r.Path("/v1/cluster").Handler(a.methods(map[string]endpoint{http.MethodGet: a.getCluster}))
	r.Path("/livez").Handler(a.methods(map[string]endpoint{http.MethodGet: a.live}))
	r.Path("/readyz").Handler(a.methods(map[string]endpoint{http.MethodGet: a.ready}))
	return r
}

// endpoint answers one method of one path, or returns why it did not.
type endpoint func(w http.ResponseWriter, r *http.Request) error

func (a *api) handler(e endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := e(w, r); err != nil {
			a.fail(w, r, err)
		}
	})
}

// methods are the methods of one path. HEAD is there wherever GET is: net/http
// leaves the body of its answer out.
func (a *api) methods(byMethod map[string]endpoint) http.Handler {
	if get, ok := byMethod[http.MethodGet]; ok {
		byMethod[http.MethodHead] = get
	}
	var names []string
	for name := range byMethod {
		names = append(names, name)
	}
	slices.Sort(names)
	allow := strings.Join(names, ", ")
	return a.handler(func(w http.ResponseWriter, r *http.Request) error {
		if e, ok := byMethod[r.Method]; ok {
			return e(w, r)
		}
		w.Header().Set("Allow", allow)
		return &lease.Error{Code: lease.CodeMethodNotAllowed, Detail: "this path takes " + allow}
	})
}

// notFound also refuses paths that other servers would clean: their sender
// meant another path than the one that would be found.
func (a *api) notFound(_ http.ResponseWriter, r *http.Request) error {
	path := strings.TrimPrefix(r.URL.Path, "/")
	for segment := range strings.SplitSeq(path, "/") {
		if path != "" && (segment == "" || segment == "." || segment == "..") {
			return lease.BadRequest("", "the path must have no empty segment, no trailing slash, and no \".\" or \"..\": it is taken as it is")
		}
	}
	return &lease.Error{Code: lease.CodeNotFound, Detail: "this version has nothing for " + r.Method + " at this path"}
}
