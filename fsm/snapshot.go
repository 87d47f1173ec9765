package fsm

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/btree"

	"github.com/highwater/highwater/lease"
)

// A snapshot is a header, then records, each with its kind and length: the
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

	// recordHead is the length of what every record begins with: its kind, 1
	// byte, and the length of the rest, 4 bytes, little-endian.
	recordHead = 5
	// maxRecord is above the length of the rest of every record, in bytes.
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
	out := &snapshotWriter{w: w}
	out.sum.Reset()
	buf := bufio.NewWriterSize(out, 64<<10) // keeps the first error
	buf.WriteString(snapshotMagic)
	buf.WriteByte(snapshotVersion)

	var records uint64
	var b []byte
	// Each record is made in b, after room for its kind and length.
	begin := func(kind byte) { b = append(b[:0], kind, 0, 0, 0, 0) }
	finish := func() bool {
		binary.LittleEndian.PutUint32(b[1:], uint32(len(b)-recordHead))
		records++
		_, err := buf.Write(b)
		return err == nil
	}

	begin(recordFigures)
	b = binary.AppendUvarint(b, s.index)
	b = binary.LittleEndian.AppendUint64(b, s.digest)
	b = binary.AppendVarint(b, s.now)
	b = appendBool(b, s.floorSet)
	b = binary.AppendVarint(b, int64(s.floor))
	b = binary.AppendVarint(b, int64(s.counter))
	b = binary.AppendVarint(b, s.grantsFrom)
	finish()

	s.leases.Scan(func(_ string, h *held) bool {
		begin(recordLease)
		b = binary.AppendVarint(b, int64(h.token))
		b = binary.AppendVarint(b, h.ttl)
		b = binary.AppendVarint(b, h.deadline)
		b = binary.AppendVarint(b, h.granted)
		b = append(b, h.request[:]...)
		b = appendText(b, h.resource)
		b = appendText(b, h.holder)
		b = appendText(b, h.metadata)
		return finish()
	})
	s.sequences.Scan(func(name string, last lease.Token) bool {
		begin(recordSequence)
		b = binary.AppendVarint(b, int64(last))
		b = appendText(b, name)
		return finish()
	})

	begin(recordEnd)
	b = binary.AppendUvarint(b, records)
	finish()
	if err := buf.Flush(); err != nil {
		return out.n, err
	}
	_, err := out.Write(binary.LittleEndian.AppendUint64(nil, out.sum.Sum64()))
	return out.n, err
}

// snapshotWriter counts and hashes what w took.
type snapshotWriter struct {
	w   io.Writer
	sum xxhash.Digest
	n   int64
}

func (w *snapshotWriter) Write(b []byte) (int, error) {
	n, err := w.w.Write(b)
	w.n += int64(n)
	w.sum.Write(b[:n])
	return n, err
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
			if err := in.end(); err != nil {
				return err
			}
			return s.rebuildViews()
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
		deadline: r.between(s.now, s.now+lease.MaxTTL.Milliseconds()),
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
	r.check(s.now >= s.grantsFrom, "a lease from before grants started")
	if r.err == nil {
		s.leases.Load(h.resource, h)
	}
}

// rebuildViews makes the views that follow from the leases. In order, since a
// tree that grows at its end grows many times faster.
func (s *State) rebuildViews() error {
	all := s.leases.Values()
	slices.SortFunc(all, func(a, b *held) int { return cmp.Compare(a.token, b.token) })
	for i, h := range all {
		if i > 0 && all[i-1].token == h.token {
			return fmt.Errorf("token %d is held twice", h.token)
		}
		s.byToken.Load(h.token, h.resource)
	}
	slices.SortFunc(all, func(a, b *held) int { return a.end().compare(b.end()) })
	for _, h := range all {
		s.byDeadline.Load(h.end())
	}
	return nil
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
		s.sequences.Load(name, last)
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
	r.buf = append(r.buf[:0], make([]byte, recordHead)...)
	if _, err := io.ReadFull(r.r, r.buf); err != nil {
		return 0, nil, err
	}
	length := binary.LittleEndian.Uint32(r.buf[1:])
	if length > maxRecord {
		return 0, nil, fmt.Errorf("a record of %d bytes, where at most %d are possible", length, maxRecord)
	}
	r.buf = append(r.buf, make([]byte, length)...)
	if _, err := io.ReadFull(r.r, r.buf[recordHead:]); err != nil {
		return 0, nil, err
	}
	r.sum.Write(r.buf)
	return r.buf[0], &reader{b: r.buf[recordHead:]}, nil
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
