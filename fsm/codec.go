package fsm

import (
	"encoding/binary"
	"fmt"

	"github.com/highwater/highwater/lease"
)

// Every entry begins with its version and its kind. Numbers are never reused.
const (
	entryVersion = 1

	entryCommands = 1 // term, now, wall, count, then each command with its length
	entryLead     = 2 // wall
)

// maxTime is the largest authority time, ms, that an entry may carry: far
// beyond any clock, and far enough from overflow to add a TTL to it.
const maxTime = 1 << 62

// minCommand is the least bytes that a command takes, with its length.
const minCommand = 4

// entry is a decoded log entry. A lead entry has neither term, time nor commands.
type entry struct {
	kind     byte
	term     uint64
	now      int64
	wall     int64
	commands []Command
}

// AppendEntry encodes a log entry from commands that are already encoded
// (each as AppendCommand made it, or as DecodeCommand accepted it), so that
// forwarded bytes are not encoded again. now is authority time and wall the
// leader's wall clock, both in ms. A negative now, or one that no clock can
// have reached, panics: better the process that is wrong about time than the
// log, where every node would stop at it.
func AppendEntry(dst []byte, term uint64, now, wall int64, commands ...[]byte) []byte {
	if now < 0 || now > maxTime {
		panic(fmt.Sprintf("fsm: authority time %d ms is not from 0 to %d", now, int64(maxTime)))
	}
	dst = append(dst, entryVersion, entryCommands)
	dst = binary.AppendUvarint(dst, term)
	dst = binary.AppendVarint(dst, now)
	dst = binary.AppendVarint(dst, wall)
	dst = binary.AppendUvarint(dst, uint64(len(commands)))
	for _, c := range commands {
		dst = binary.AppendUvarint(dst, uint64(len(c)))
		dst = append(dst, c...)
	}
	return dst
}

// LeadEntry is the entry that a node proposes on taking leadership. It carries
// no term, and it changes nothing: its outcome tells the proposer the Raft
// term it was stored under and the authority time of the state.
func LeadEntry(wall int64) []byte {
	return binary.AppendVarint([]byte{entryVersion, entryLead}, wall)
}

func decodeEntry(b []byte) (entry, error) {
	r := reader{b: b}
	if v := r.byte(); r.err == nil && v != entryVersion {
		return entry{}, fmt.Errorf("entry version %d: %w", v, ErrUnknown)
	}
	e := entry{kind: r.byte()}
	switch {
	case r.err != nil:
	case e.kind == entryLead:
		e.wall = r.varint()
	case e.kind == entryCommands:
		e.term = r.uvarint()
		e.now = r.between(0, maxTime)
		e.wall = r.varint()
		e.commands = makeList[Command](r.elements(minCommand))
		for i := range e.commands {
			body := r.take(r.count(unlimited))
			if r.err != nil {
				break
			}
			c, err := DecodeCommand(body)
			if err != nil {
				return entry{}, fmt.Errorf("command %d: %w", i, err)
			}
			e.commands[i] = c
		}
	default:
		return entry{}, fmt.Errorf("entry kind %d: %w", e.kind, ErrUnknown)
	}
	if err := r.finish(); err != nil {
		return entry{}, fmt.Errorf("malformed entry: %w", err)
	}
	return e, nil
}

// Kinds of commands. Numbers are never reused.
const (
	commandSetFloor = 1 // floor, delay
	commandAcquire  = 2 // ttl, request, resource, holder, metadata
	commandRenew    = 3 // token, ttl, resource
	commandRelease  = 4 // token, resource
	commandNext     = 5 // count, sequence
)

// AppendCommand encodes c. Numbers may have any value, and the state refuses
// what is out of range; a name, holder or metadata longer than its limit in
// package lease panics, since no node could decode it and so none could go
// on from it. The requests' Check refuses it first.
func AppendCommand(dst []byte, c Command) []byte {
	switch c := c.(type) {
	case SetFloor:
		dst = append(dst, commandSetFloor)
		dst = binary.AppendVarint(dst, int64(c.Floor))
		return binary.AppendVarint(dst, c.Delay)
	case Acquire:
		dst = append(dst, commandAcquire)
		dst = binary.AppendVarint(dst, c.TTL)
		dst = append(dst, c.Request[:]...)
		dst = appendLimited(dst, c.Resource, lease.MaxName)
		dst = appendLimited(dst, c.Holder, lease.MaxHolder)
		return appendLimited(dst, c.Metadata, lease.MaxMetadata)
	case Renew:
		dst = append(dst, commandRenew)
		dst = binary.AppendVarint(dst, int64(c.Token))
		dst = binary.AppendVarint(dst, c.TTL)
		return appendLimited(dst, c.Resource, lease.MaxName)
	case Release:
		dst = append(dst, commandRelease)
		dst = binary.AppendVarint(dst, int64(c.Token))
		return appendLimited(dst, c.Resource, lease.MaxName)
	case Next:
		dst = append(dst, commandNext)
		dst = binary.AppendVarint(dst, c.Count)
		return appendLimited(dst, c.Sequence, lease.MaxName)
	}
	panic(fmt.Sprintf("fsm: no command: %T", c))
}

func appendLimited[T ~string | ~[]byte](dst []byte, s T, limit int) []byte {
	if len(s) > limit {
		panic(fmt.Sprintf("fsm: a text of %d bytes in a command, where %d are allowed: the request was not checked", len(s), limit))
	}
	return appendText(dst, s)
}

// DecodeCommand decodes exactly one command: trailing bytes are an error. The
// command keeps nothing of b.
func DecodeCommand(b []byte) (Command, error) {
	r := reader{b: b}
	var c Command
	switch kind := r.byte(); kind {
	case commandSetFloor:
		c = SetFloor{Floor: lease.Token(r.varint()), Delay: r.varint()}
	case commandAcquire:
		c = Acquire{
			TTL:      r.varint(),
			Request:  r.requestID(),
			Resource: r.string(lease.MaxName),
			Holder:   r.string(lease.MaxHolder),
			Metadata: r.bytes(lease.MaxMetadata),
		}
	case commandRenew:
		c = Renew{Token: lease.Token(r.varint()), TTL: r.varint(), Resource: r.string(lease.MaxName)}
	case commandRelease:
		c = Release{Token: lease.Token(r.varint()), Resource: r.string(lease.MaxName)}
	case commandNext:
		c = Next{Count: r.varint(), Sequence: r.string(lease.MaxName)}
	default:
		if r.err == nil {
			return nil, fmt.Errorf("command kind %d: %w", kind, ErrUnknown)
		}
	}
	if err := r.finish(); err != nil {
		return nil, fmt.Errorf("malformed command: %w", err)
	}
	return c, nil
}

func (r *reader) requestID() (id lease.RequestID) {
	copy(id[:], r.take(len(id)))
	return id
}
