package lease

import "strconv"

// Token is a fencing token: a number larger than every token that the cluster
// issued before it. Zero means "no token". It orders; it does not authenticate.
type Token int64

// MaxToken is the last token there is, 10^15 - 1: exact in every JSON parser
// (IEEE 754 double), in an SQL bigint and in an HTTP structured-field integer
// (RFC 9651, section 3.3.1). After it, acquire answers CodeTokensExhausted.
const MaxToken Token = 999_999_999_999_999

// Valid says whether t can be a token: 1 to MaxToken.
func (t Token) Valid() bool { return t >= 1 && t <= MaxToken }

func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// ParseToken reads a token as people type it: decimal digits without sign,
// leading zeros, exponent or white space. field names the parameter in the
// error.
func ParseToken(field, s string) (Token, error) {
	if s == "" || len(s) > 15 || s[0] == '0' {
		return 0, badToken(field)
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, badToken(field)
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, badToken(field)
	}
	return Token(n), nil
}

// CheckToken refuses numbers that no token can have.
func CheckToken(field string, t Token) error {
	if !t.Valid() {
		return badToken(field)
	}
	return nil
}

func badToken(field string) error {
	return BadRequest(field, "must be an integer from 1 to %d", int64(MaxToken))
}

const (
	// FloorShift places a clock in a token: the automatic floor of a new
	// cluster is (unix seconds + 1) << FloorShift.
	FloorShift = 18
	// TokensPerSecond bounds how fast the token counter, and each sequence
	// without a start, may rise above its floor, so that what one life of a
	// cluster issues stays below the automatic floor of a later one.
	TokensPerSecond = 1 << FloorShift
)

// AutoFloor is the floor that a cluster bootstrapped at the given wall clock
// time starts from. The second that it adds is waited for by every cluster
// before its first grant, so two lives within one second cannot meet.
func AutoFloor(unixSeconds int64) Token { return Token((unixSeconds + 1) << FloorShift) }
