package lease

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxName is the length limit of a resource or sequence name, in bytes.
	MaxName = 512
	// MaxHolder is the length limit of a holder, in bytes.
	MaxHolder = 256
)

// CheckName refuses what cannot name a resource or a sequence. A name is 1 to
// MaxName bytes of UTF-8: segments joined by "/", none of them empty, "." or
// "..", and no control character. Names are compared byte for byte, so nothing
// is normalised, trimmed or folded. field names the parameter in the error.
func CheckName(field, name string) error {
	if len(name) < 1 || len(name) > MaxName {
		return BadRequest(field, "must be 1 to %d bytes long, not %d", MaxName, len(name))
	}
	if err := checkText(field, name); err != nil {
		return err
	}
	for segment := range strings.SplitSeq(name, "/") {
		switch segment {
		case "":
			return BadRequest(field, "must not have an empty segment: no leading, trailing or double slash")
		case ".", "..":
			return BadRequest(field, "must not have a segment %q", segment)
		}
	}
	return nil
}

// CheckHolder refuses what cannot describe a holder: it is 1 to MaxHolder bytes
// of UTF-8 without control characters.
func CheckHolder(field, holder string) error {
	if len(holder) < 1 || len(holder) > MaxHolder {
		return BadRequest(field, "must be 1 to %d bytes long, not %d", MaxHolder, len(holder))
	}
	return checkText(field, holder)
}

// CheckPrefix refuses what cannot be the beginning of a name. An empty prefix
// is the beginning of every name.
func CheckPrefix(field, prefix string) error {
	if len(prefix) > MaxName {
		return BadRequest(field, "must be at most %d bytes long, not %d", MaxName, len(prefix))
	}
	return checkText(field, prefix)
}

func checkText(field, s string) error {
	if !utf8.ValidString(s) {
		return BadRequest(field, "must be valid UTF-8")
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		return BadRequest(field, "must not have control characters")
	}
	return nil
}
