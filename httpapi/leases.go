package httpapi

import (
	"net/http"
	"time"

	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

// acquire is POST /v1/leases/{resource}.
func (a *api) acquire(w http.ResponseWriter, r *http.Request) error {
	resource, err := pathName("resource", r)
	if err != nil {
		return err
	}
	if _, err := query(r); err != nil {
		return err
	}
	if err := noKey(r); err != nil {
		return err
	}
	b := newBuffer()
	defer b.free()
	if err := readBody(w, r, b); err != nil {
		return err
	}
	body, err := wire.ReadAcquire(b.b)
	if err != nil {
		return err
	}
	request := lease.AcquireRequest{
		Resource: resource, Holder: body.Holder,
		TTL: time.Duration(body.TTLMS) * time.Millisecond, Metadata: body.Metadata,
	}
	if err := request.Check(); err != nil {
		return err
	}
	granted, err := a.authority.Acquire(r.Context(), request)
	if err != nil {
		return err
	}
	return a.answer(w, http.StatusCreated, wire.FromLease(granted))
}

// renew is PUT /v1/leases/{resource}.
func (a *api) renew(w http.ResponseWriter, r *http.Request) error {
	resource, err := pathName("resource", r)
	if err != nil {
		return err
	}
	if _, err := query(r); err != nil {
		return err
	}
	if err := freeKey(r); err != nil {
		return err
	}
	b := newBuffer()
	defer b.free()
	if err := readBody(w, r, b); err != nil {
		return err
	}
	body, err := wire.ReadRenew(b.b)
	if err != nil {
		return err
	}
	request := lease.RenewRequest{Resource: resource, Token: body.Token, TTL: time.Duration(body.TTLMS) * time.Millisecond}
	if err := request.Check(); err != nil {
		return err
	}
	kept, err := a.authority.Renew(r.Context(), request)
	if err != nil {
		return err
	}
	return a.answer(w, http.StatusOK, wire.FromLease(kept))
}

// release is DELETE /v1/leases/{resource}?token=N.
func (a *api) release(w http.ResponseWriter, r *http.Request) error {
	resource, err := pathName("resource", r)
	if err != nil {
		return err
	}
	values, err := query(r, "token", "force", "reason")
	if err != nil {
		return err
	}
	// These two belong to a revocation.
	for _, later := range []string{"force", "reason"} {
		if values.Has(later) {
			return lease.BadRequest(later, "is not supported by this version: leave it out")
		}
	}
	if err := freeKey(r); err != nil {
		return err
	}
	if err := noBody(r); err != nil {
		return err
	}
	token, err := lease.ParseToken("token", values.Get("token"))
	if err != nil {
		return err
	}
	request := lease.ReleaseRequest{Resource: resource, Token: token}
	if err := request.Check(); err != nil {
		return err
	}
	if err := a.authority.Release(r.Context(), request); err != nil {
		return err
	}
	return a.answer(w, http.StatusOK, wire.Released{Released: true})
}

// getLease is GET /v1/leases/{resource}.
func (a *api) getLease(w http.ResponseWriter, r *http.Request) error {
	resource, err := pathName("resource", r)
	if err != nil {
		return err
	}
	if err := lease.CheckName("resource", resource); err != nil {
		return err
	}
	_, stale, err := readQuery(r, "consistency")
	if err != nil {
		return err
	}
	held, age, err := a.authority.GetLease(r.Context(), resource, stale)
	setAge(w, stale, age)
	if err != nil {
		return err
	}
	return a.answer(w, http.StatusOK, wire.FromLease(held))
}

// listLeases is GET /v1/leases.
func (a *api) listLeases(w http.ResponseWriter, r *http.Request) error {
	p, stale, err := pageQuery(r)
	if err != nil {
		return err
	}
	leases, more, age, err := a.authority.ListLeases(r.Context(), p, stale)
	setAge(w, stale, age)
	if err != nil {
		return err
	}
	next := ""
	if more && len(leases) > 0 {
		next = leases[len(leases)-1].Resource
	}
	return a.answer(w, http.StatusOK, wire.FromLeases(leases, next))
}
