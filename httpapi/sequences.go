package httpapi

import (
	"net/http"

	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

// next is POST /v1/sequences/{name}.
func (a *api) next(w http.ResponseWriter, r *http.Request) error {
	name, err := pathName("sequence", r)
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
	body, err := wire.ReadNext(b.b)
	if err != nil {
		return err
	}
	request := lease.NextRequest{Name: name, Count: int(body.Count)}
	if err := request.Check(); err != nil {
		return err
	}
	taken, err := a.authority.Next(r.Context(), request)
	if err != nil {
		return err
	}
	return a.answer(w, http.StatusOK, wire.FromRange(taken))
}

// getSequence is GET /v1/sequences/{name}.
func (a *api) getSequence(w http.ResponseWriter, r *http.Request) error {
	name, err := pathName("sequence", r)
	if err != nil {
		return err
	}
	if err := lease.CheckName("sequence", name); err != nil {
		return err
	}
	_, stale, err := readQuery(r, "consistency")
	if err != nil {
		return err
	}
	sequence, age, err := a.authority.GetSequence(r.Context(), name, stale)
	setAge(w, stale, age)
	if err != nil {
		return err
	}
	return a.answerJSON(w, http.StatusOK, wire.FromSequence(sequence))
}

// listSequences is GET /v1/sequences.
func (a *api) listSequences(w http.ResponseWriter, r *http.Request) error {
	p, stale, err := pageQuery(r)
	if err != nil {
		return err
	}
	sequences, more, age, err := a.authority.ListSequences(r.Context(), p, stale)
	setAge(w, stale, age)
	if err != nil {
		return err
	}
	next := ""
	if more && len(sequences) > 0 {
		next = sequences[len(sequences)-1].Name
	}
	return a.answerJSON(w, http.StatusOK, wire.FromSequences(sequences, next))
}
