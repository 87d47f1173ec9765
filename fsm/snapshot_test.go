package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/cespare/xxhash/v2"

	"github.com/highwater/highwater/lease"
)

// someState has leases with and without metadata, and sequences.
func someState(t testing.TB) *State {
	t.Helper()
	s := New()
	for i, c := range []Command{
		SetFloor{Floor: 1 << 40},
		Acquire{Resource: "b", Holder: "w1", TTL: 5000, Request: request},
		Acquire{Resource: "a/ü", Holder: "w2", TTL: 86_400_000, Metadata: []byte(`{"x":[1]}`)},
		Acquire{Resource: "c", Holder: "w1", TTL: 5000},
		Next{"orders", 100}, Next{"invoices", 1},
		Renew{Resource: "b", Token: 1<<40 + 1, TTL: 60_000},
	} {
		out, err := s.Apply(uint64(i)*2+1, 3, entryOf(3, int64(i)*10, 1_750_000_000_000, c))
		if err != nil || out.Results[0].Err != nil {
			t.Fatal(out, err)
		}
	}
	return s
}

func TestSnapshot(t *testing.T) {
	for name, s := range map[string]*State{"empty": New(), "some": someState(t)} {
		t.Run(name, func(t *testing.T) {
			b := bytesOf(t, s)
			got, err := ReadSnapshot(iotest.OneByteReader(bytes.NewReader(b)))
			if err != nil {
				t.Fatal(err)
			}
			checkViews(t, got)
			if got.Info() != s.Info() || !bytes.Equal(bytesOf(t, got), b) {
				t.Errorf("got %+v, want %+v", got.Info(), s.Info())
			}
			if got.limits != s.limits {
				t.Errorf("limits %+v", got.limits)
			}
		})
	}
}

// C51: a snapshot that was cut, or in which one bit is another, is refused, and
// so is one with anything after its end.
func TestDamagedSnapshot(t *testing.T) {
	good := bytesOf(t, someState(t))
	for n := range good {
		if s, err := ReadSnapshot(bytes.NewReader(good[:n])); s != nil || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d of %d bytes: %v, %v", n, len(good), s, err)
		}
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[n] ^= 1 << bit
			if s, err := ReadSnapshot(bytes.NewReader(bad)); s != nil || err == nil {
				t.Fatalf("bit %d of byte %d: %v, %v", bit, n, s, err)
			}
		}
	}
	if s, err := ReadSnapshot(bytes.NewReader(append(bytes.Clone(good), 0))); s != nil || err == nil {
		t.Errorf("a byte more: %v, %v", s, err)
	}
	broken := errors.New("broken disk")
	for _, n := range []int{0, 3, 20, len(good) - 9, len(good)} {
		r := io.MultiReader(bytes.NewReader(good[:n]), iotest.ErrReader(broken))
		if s, err := ReadSnapshot(r); s != nil || !errors.Is(err, broken) {
			t.Errorf("a disk that breaks after %d bytes: %v, %v", n, s, err)
		}
	}
	for _, version := range []byte{0, 2, 255} {
		bad := bytes.Clone(good)
		bad[len(snapshotMagic)] = version
		if _, err := ReadSnapshot(bytes.NewReader(bad)); !errors.Is(err, ErrUnknown) {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

// A file with a right checksum is still refused when what it says cannot be.
func TestImpossibleSnapshot(t *testing.T) {
	type record struct {
		kind byte
		body []byte
	}
	figures := func(now int64, set bool, floor, counter, from int64) record {
		b := binary.AppendUvarint(nil, 7)
		b = binary.LittleEndian.AppendUint64(b, 99)
		b = appendBool(binary.AppendVarint(b, now), set)
		return record{recordFigures, binary.AppendVarint(binary.AppendVarint(binary.AppendVarint(b, floor), counter), from)}
	}
	held := func(token, ttl, deadline int64, resource, holder string) record {
		b := binary.AppendVarint(binary.AppendVarint(binary.AppendVarint(nil, token), ttl), deadline)
		b = append(binary.AppendVarint(b, 1), make([]byte, 16)...)
		return record{recordLease, appendText(appendText(appendText(b, resource), holder), "")}
	}
	sequence := func(last int64, name string) record {
		return record{recordSequence, appendText(binary.AppendVarint(nil, last), name)}
	}
	finish := func(n uint64) record { return record{recordEnd, binary.AppendUvarint(nil, n)} }
	file := func(records ...record) []byte {
		b := append([]byte(snapshotMagic), snapshotVersion)
		for _, r := range records {
			b = binary.LittleEndian.AppendUint32(append(b, r.kind), uint32(len(r.body)))
			b = append(b, r.body...)
		}
		return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
	}
	fine := figures(1000, true, 10, 20, 500)
	a, b, s := held(11, 5000, 1001, "a", "w"), held(12, 5000, 6000, "b", "w"), sequence(15, "s")
	if _, err := ReadSnapshot(bytes.NewReader(file(fine, a, b, s, finish(4)))); err != nil {
		t.Fatal(err)
	}
	const day = 86_400_000
	for name, f := range map[string][]byte{
		"no records":                  file(),
		"no figures":                  file(a, finish(1)),
		"figures twice":               file(fine, fine, finish(2)),
		"figures last":                file(a, fine, finish(2)),
		"no end":                      file(fine, a),
		"a wrong count":               file(fine, a, finish(1)),
		"records after the end":       file(fine, finish(1), a),
		"an unknown record":           file(fine, record{4, []byte{1}}, finish(2)),
		"a record of kind zero":       file(record{0, nil}, finish(1)),
		"sequences before leases":     file(fine, s, a, finish(3)),
		"leases out of order":         file(fine, b, a, finish(3)),
		"one resource twice":          file(fine, a, held(12, 5000, 6000, "a", "w"), finish(3)),
		"one token twice":             file(fine, a, held(11, 5000, 6000, "b", "w"), finish(3)),
		"a token above the counter":   file(fine, held(21, 5000, 6000, "a", "w"), finish(2)),
		"token zero":                  file(fine, held(0, 5000, 6000, "a", "w"), finish(2)),
		"a lease that has ended":      file(fine, held(11, 5000, 999, "a", "w"), finish(2)),
		"a lease beyond every TTL":    file(fine, held(11, 5000, 1001+day, "a", "w"), finish(2)),
		"a TTL out of range":          file(fine, held(11, 999, 1500, "a", "w"), finish(2)),
		"a name with an empty part":   file(fine, held(11, 5000, 1500, "a//b", "w"), finish(2)),
		"no holder":                   file(fine, held(11, 5000, 1500, "a", ""), finish(2)),
		"a lease with a byte too few": file(fine, record{recordLease, a.body[:len(a.body)-1]}, finish(2)),
		"a lease with a byte more":    file(fine, record{recordLease, append(bytes.Clone(a.body), 0)}, finish(2)),
		"a counter below the floor":   file(figures(1000, true, 10, 9, 0), finish(1)),
		"a counter beyond the tokens": file(figures(1000, true, 10, 1_000_000_000_000_000, 0), finish(1)),
		"time below zero":             file(figures(-1, true, 10, 20, 0), finish(1)),
		"tokens without a floor":      file(figures(1000, false, 0, 20, 0), finish(1)),
		"a lease without a floor":     file(figures(1000, false, 0, 0, 0), a, finish(2)),
		"a lease before grants":       file(figures(1000, true, 10, 20, 1001), a, finish(2)),
		"a sequence without a floor":  file(figures(1000, false, 0, 0, 0), s, finish(2)),
		"sequences out of order":      file(fine, s, sequence(15, "r"), finish(3)),
		"one sequence twice":          file(fine, s, s, finish(3)),
		"a sequence at zero":          file(fine, sequence(0, "s"), finish(2)),
		"a sequence beyond the range": file(fine, sequence(1_000_000_000_000_000, "s"), finish(2)),
		"a sequence without a name":   file(fine, sequence(1, ""), finish(2)),
		"a huge record":               file(fine, record{recordLease, make([]byte, maxRecord+1)}, finish(2)),
	} {
		s, err := ReadSnapshot(bytes.NewReader(f))
		if s != nil || err == nil {
			t.Errorf("%s: %v, %v", name, s, err)
		}
		if unknown := name == "an unknown record"; errors.Is(err, ErrUnknown) != unknown {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A snapshot says what was when it was taken, whatever entries do meanwhile;
// the race detector watches that nothing is shared.
func TestSnapshotBesideEntries(t *testing.T) {
	s := New()
	index := uint64(0)
	apply := func(now int64, commands ...Command) {
		index++
		if _, err := s.Apply(index, 1, entryOf(1, now, 0, commands...)); err != nil {
			t.Fatal(err)
		}
	}
	apply(0, SetFloor{})
	var names []Command
	for i := range 3000 {
		names = append(names, Acquire{Resource: fmt.Sprintf("n/%d", i), Holder: "w", TTL: 3000 + int64(i%7)*1000}, Next{fmt.Sprintf("s/%d", i%50), 1})
	}
	apply(0, names...)

	var writers sync.WaitGroup
	for round := range int64(12) {
		want, frozen := bytesOf(t, s), s.Snapshot()
		writers.Go(func() {
			for range 2 {
				var b bytes.Buffer
				if _, err := frozen.WriteTo(&b); err != nil || !bytes.Equal(b.Bytes(), want) {
					t.Errorf("a snapshot changed while entries went on, %v", err)
				}
			}
		})
		for i := range int64(20) {
			var commands []Command
			for j := range int64(40) {
				n := (i*40 + j) * 3 % 3000
				name := fmt.Sprintf("n/%d", n)
				commands = append(commands,
					Renew{Resource: name, Token: lease.Token(n + 1)},
					Release{Resource: name, Token: lease.Token(n + 1 + j%3)},
					Acquire{Resource: fmt.Sprintf("m/%d/%d", round, n), Holder: "w", TTL: 2000},
					Next{fmt.Sprintf("s/%d", j), 1})
			}
			apply(round*600+i, commands...)
		}
		checkViews(t, s)
	}
	writers.Wait()
}

// The first error of the writer is what WriteTo returns, with the bytes taken.
func TestWriteToFails(t *testing.T) {
	full := errors.New("disk full")
	s := filled(t, 5000).Snapshot()
	var size bytes.Buffer
	if _, err := s.WriteTo(&size); err != nil {
		t.Fatal(err)
	}
	for _, room := range []int{0, 1, 100_000, size.Len() - 9, size.Len() - 8, size.Len() - 1} {
		w := &fullDisk{room: room, err: full}
		if n, err := s.WriteTo(w); !errors.Is(err, full) || n != int64(room) {
			t.Errorf("room for %d: %d, %v", room, n, err)
		}
	}
}

type fullDisk struct {
	room int
	err  error
}

func (d *fullDisk) Write(b []byte) (int, error) {
	n := min(len(b), d.room)
	d.room -= n
	if n < len(b) {
		return n, d.err
	}
	return n, nil
}

func FuzzReadSnapshot(f *testing.F) {
	f.Add(bytesOf(f, New()))
	f.Add(bytesOf(f, someState(f)))
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(b []byte) {
			s, err := ReadSnapshot(bytes.NewReader(b))
			if err != nil {
				return
			}
			checkViews(t, s)
			if again := bytesOf(t, s); !bytes.Equal(again, b) {
				t.Fatalf("%x is read as %x", b, again)
			}
		}
		check(b)
		// With the right checksum, for no fuzzer finds that.
		if len(b) > 8 {
			body := b[:len(b)-8]
			check(binary.LittleEndian.AppendUint64(bytes.Clone(body), xxhash.Sum64(body)))
		}
	})
}
