package httpapi

import (
	"errors"
	"net/http"
	"net/url"

	"github.com/gorilla/mux"

	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

// getToken is GET /v1/tokens/{token}.
func (a *api) getToken(w http.ResponseWriter, r *http.Request) error {
	digits, err := url.PathUnescape(mux.Vars(r)["token"])
	if err != nil {
		return lease.BadRequest("token", "is not well percent-encoded in the path")
	}
	token, err := lease.ParseToken("token", digits)
	if err != nil {
		return err
	}
	_, stale, err := readQuery(r, "consistency")
	if err != nil {
		return err
	}
	info, age, err := a.authority.GetToken(r.Context(), token, stale)
	setAge(w, stale, age)
	if err != nil {
		return err
	}
	return a.answerJSON(w, http.StatusOK, wire.FromToken(info))
}

// getCluster is GET /v1/cluster.
func (a *api) getCluster(w http.ResponseWriter, r *http.Request) error {
	if _, _, err := readQuery(r); err != nil {
		return err
	}
	return a.answerJSON(w, http.StatusOK, a.cluster())
}

// live is GET /livez: that it answers is the answer.
func (a *api) live(w http.ResponseWriter, r *http.Request) error {
	if _, _, err := readQuery(r); err != nil {
		return err
	}
	return a.answerJSON(w, http.StatusOK, struct {
		Live bool `json:"live"`
	}{true})
}

// ready is GET /readyz. What is missing is said as no-leader also where it is
// not the leader: the caller may conclude the same, that nothing was applied
// and that another node may do.
func (a *api) ready(w http.ResponseWriter, r *http.Request) error {
	if _, _, err := readQuery(r); err != nil {
		return err
	}
	if err := a.authority.Ready(); err != nil {
		missing := &lease.Error{Code: lease.CodeNoLeader, Detail: "not ready: " + err.Error()}
		var e *lease.Error
		if errors.As(err, &e) {
			missing.Detail, missing.Leader = "not ready: "+e.Detail, e.Leader
		}
		return missing
	}
	return a.answerJSON(w, http.StatusOK, struct {
		Ready bool `json:"ready"`
	}{true})
}
