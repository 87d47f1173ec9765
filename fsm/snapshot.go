package fsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/btree"

	"github.com/highwater/highwater/lease"
)

// A snapshot is a header, then records, each with its kind (1 byte) and length (4 bytes): the
// figures, the leases in byte order of their resources, the sequences in byte
// order of their names, and the end, which counts the records before it. An
// xxhash64 over all of that, 8 bytes little-endian, comes last. The same state
// gives the same bytes.
const (
	snapshotMagic   = "HWFS"
	snapshotVersion = 1

	// Kinds of records, in their order. Numbers are never reused.
	recordFigures  = 1   // index, digest, now, floor set, floor, counter, grants from
	recordLease    = 2   // token, ttl, deadline, granted, request, resource, holder, metadata
	recordSequence = 3   // last, name
	recordEnd      = 255 // count

	// maxRecord is above the length of every record, in bytes.
	maxRecord = lease.MaxName + lease.MaxHolder + lease.MaxMetadata + 256
)

// Snapshot is a frozen copy of a State. Taking it costs O(1) or near it; it can
// be written from another goroutine while the State goes on.
type Snapshot struct {
	figures
	leases    *btree.Map[string, *held]
	sequences *btree.Map[string, lease.Token]
}

// Snapshot freezes the present state. The trees share their nodes with the
// copies, and whichever changes a node first takes its own.
func (s *State) Snapshot() *Snapshot {
	return &Snapshot{figures: s.figures, leases: s.leases.Copy(), sequences: s.sequences.Copy()}
}

// WriteTo encodes the snapshot: versioned, with a record count and a checksum
// at its end. It streams, and returns how many bytes w took and w's first error.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	out := snapshotWriter{w: bufio.NewWriterSize(w, 64<<10)}
	out.sum.Reset()
	out.write(append([]byte(snapshotMagic), snapshotVersion))
	var body []byte

	body = binary.AppendUvarint(body, s.index)
	body = binary.LittleEndian.AppendUint64(body, s.digest)
	body = binary.AppendVarint(body, s.now)
	body = appendBool(body, s.floorSet)
	body = binary.AppendVarint(body, int64(s.floor))
	body = binary.AppendVarint(body, int64(s.counter))
	body = binary.AppendVarint(body, s.grantsFrom)
	out.record(recordFigures, body)

	s.leases.Scan(func(_ string, h *held) bool {
		body = binary.AppendVarint(body[:0], int64(h.token))
		body = binary.AppendVarint(body, h.ttl)
		body = binary.AppendVarint(body, h.deadline)
		body = binary.AppendVarint(body, h.granted)
		body = append(body, h.request[:]...)
		body = appendText(body, h.resource)
		body = appendText(body, h.holder)
		body = appendText(body, h.metadata)
		return out.record(recordLease, body)
	})
	s.sequences.Scan(func(name string, last lease.Token) bool {
		body = binary.AppendVarint(body[:0], int64(last))
		body = appendText(body, name)
		return out.record(recordSequence, body)
	})

	out.record(recordEnd, binary.AppendUvarint(body[:0], out.records))
	out.write(binary.LittleEndian.AppendUint64(body[:0], out.sum.Sum64()))
	err := out.w.Flush()
	return out.n - int64(out.w.Buffered()), err
}

// snapshotWriter counts and hashes what goes through it. Its writer keeps the
// first error.
type snapshotWriter struct {
	w       *bufio.Writer
	sum     xxhash.Digest
	n       int64
	records uint64
	head    []byte
}

// record reports false once the writer has failed.
func (w *snapshotWriter) record(kind byte, body []byte) bool {
	w.head = binary.LittleEndian.AppendUint32(append(w.head[:0], kind), uint32(len(body)))
	w.records++
	return w.write(w.head) && w.write(body)
}

func (w *snapshotWriter) write(b []byte) bool {
	w.sum.Write(b)
	n, err := w.w.Write(b)
	w.n += int64(n)
	return err == nil
}

// ReadSnapshot decodes what WriteTo wrote into a fresh state. It returns an
// error, and no state, for anything cut, altered or unknown.
func ReadSnapshot(r io.Reader) (*State, error) {
	s := New()
	if err := s.readFrom(&snapshotReader{r: bufio.NewReaderSize(r, 64<<10)}); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("it was cut short: %w", io.ErrUnexpectedEOF)
		}
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return s, nil
}

func (s *State) readFrom(in *snapshotReader) error {
	if err := in.header(); err != nil {
		return err
	}
	last := byte(recordFigures)
	for n := uint64(0); ; n++ {
		kind, body, err := in.record()
		if err != nil {
			return err
		}
		if kind < last || (kind == recordFigures) != (n == 0) {
			return fmt.Errorf("record %d: kind %d is out of order", n, kind)
		}
		last = kind
		switch kind {
		case recordFigures:
			s.readFigures(body)
		case recordLease:
			s.readLease(body)
		case recordSequence:
			s.readSequence(body)
		case recordEnd:
			count := body.uvarint()
			body.check(count == n, "%d records are counted, and %d are there", count, n)
		default:
			return fmt.Errorf("record %d: kind %d: %w", n, kind, ErrUnknown)
		}
		if err := body.finish(); err != nil {
			return fmt.Errorf("record %d: %w", n, err)
		}
		if kind == recordEnd {
			return in.end()
		}
	}
}

func (s *State) readFigures(r *reader) {
	s.index = r.uvarint()
	s.digest = r.uint64()
	s.now = r.between(0, maxTime)
	s.floorSet = r.bool()
	s.floor = lease.Token(r.between(0, int64(lease.MaxToken)))
	s.counter = lease.Token(r.between(int64(s.floor), int64(lease.MaxToken)))
	s.grantsFrom = r.between(0, s.now+lease.MaxTTL.Milliseconds())
	r.check(s.floorSet || s.counter == 0 && s.grantsFrom == 0, "tokens without a floor")
}

func (s *State) readLease(r *reader) {
	h := &held{
		token:    lease.Token(r.between(1, int64(s.counter))),
		ttl:      r.between(lease.MinTTL.Milliseconds(), lease.MaxTTL.Milliseconds()),
		deadline: r.between(s.now+1, s.now+lease.MaxTTL.Milliseconds()),
		granted:  r.varint(),
		request:  r.requestID(),
		resource: r.string(lease.MaxName),
		holder:   r.string(lease.MaxHolder),
		metadata: r.string(lease.MaxMetadata),
	}
	if r.err != nil {
		return
	}
	if err := errors.Join(lease.CheckName("resource", h.resource), lease.CheckHolder("holder", h.holder)); err != nil {
		r.fail("%w", err)
		return
	}
	before, _, ok := s.leases.Max()
	r.check(!ok || before < h.resource, "resources are out of order")
	_, twice := s.byToken.Get(h.token)
	r.check(!twice, "token %d is held twice", h.token)
	r.check(s.now >= s.grantsFrom, "a lease from before grants started")
	if r.err == nil {
		s.insert(h)
	}
}

func (s *State) readSequence(r *reader) {
	last := lease.Token(r.between(1, int64(lease.MaxToken)))
	name := r.string(lease.MaxName)
	if r.err != nil {
		return
	}
	if err := lease.CheckName("sequence", name); err != nil {
		r.fail("%w", err)
		return
	}
	before, _, ok := s.sequences.Max()
	r.check(!ok || before < name, "sequences are out of order")
	r.check(s.floorSet && s.now >= s.grantsFrom, "a sequence from before grants started")
	if r.err == nil {
		s.sequences.Set(name, last)
	}
}

// snapshotReader hashes what comes through it.
type snapshotReader struct {
	r   *bufio.Reader
	sum xxhash.Digest
	buf []byte
}

func (r *snapshotReader) header() error {
	r.sum.Reset()
	head := make([]byte, len(snapshotMagic)+1)
	if _, err := io.ReadFull(r.r, head); err != nil {
		return err
	}
	r.sum.Write(head)
	if string(head[:len(snapshotMagic)]) != snapshotMagic {
		return errors.New("this is no snapshot of highwater: its first bytes are others")
	}
	if v := head[len(snapshotMagic)]; v != snapshotVersion {
		return fmt.Errorf("version %d: %w", v, ErrUnknown)
	}
	return nil
}

// record returns the next record, which is valid until the one after it.
func (r *snapshotReader) record() (kind byte, body *reader, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		return 0, nil, err
	}
	r.sum.Write(head[:])
	length := binary.LittleEndian.Uint32(head[1:])
	if length > maxRecord {
		return 0, nil, fmt.Errorf("a record of %d bytes, where at most %d are possible", length, maxRecord)
	}
	r.buf = append(r.buf[:0], make([]byte, length)...)
	if _, err := io.ReadFull(r.r, r.buf); err != nil {
		return 0, nil, err
	}
	r.sum.Write(r.buf)
	return head[0], &reader{b: r.buf}, nil
}

// end reads the checksum, and makes sure that nothing comes after it.
func (r *snapshotReader) end() error {
	var sum [8]byte
	if _, err := io.ReadFull(r.r, sum[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint64(sum[:]) != r.sum.Sum64() {
		return errors.New("its checksum is wrong: it was altered")
	}
	if _, err := r.r.ReadByte(); err == nil {
		return errors.New("bytes after its end")
	} else if err != io.EOF {
		return err
	}
	return nil
}
