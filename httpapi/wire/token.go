package wire

import (
	"time"

	"github.com/highwater/highwater/lease"
)

// Token is the answer to GET /v1/tokens/{token}. Of a forgotten token only the
// number and the state are known.
type Token struct {
	Token     lease.Token      `json:"token"`
	State     lease.TokenState `json:"state"`
	Resources []string         `json:"resources,omitzero"`
	Holder    string           `json:"holder,omitzero"`
	GrantedAt Time             `json:"granted_at,omitzero"`
}

// FromToken is how an answer shows t.
func FromToken(t lease.TokenInfo) Token {
	return Token{Token: t.Token, State: t.State, Resources: t.Resources, Holder: t.Holder, GrantedAt: Time(t.GrantedAt)}
}

// ToToken is what an answer says of a token.
func (t Token) ToToken() lease.TokenInfo {
	return lease.TokenInfo{Token: t.Token, State: t.State, Resources: t.Resources, Holder: t.Holder, GrantedAt: time.Time(t.GrantedAt)}
}
