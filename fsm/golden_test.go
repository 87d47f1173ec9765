package fsm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/highwater/highwater/lease"
)

// goldenLog is a log with every kind of entry and command, in the order in
// which it is applied. Its files in testdata/golden/vN were written by the
// version of the format that they are named after, and are never written again:
// a log on somebody's disk is not either.
//
// To add the files of a new version, raise goldenVersion and run
//
//	HIGHWATER_WRITE_GOLDEN=1 go test ./fsm -run TestGolden
//
// which makes the files that are missing and touches no other.
var goldenLog = []struct {
	file  string
	index uint64
	term  uint64
	entry entry
}{
	{"lead", 2, 2, entry{kind: entryLead, wall: 1_764_500_000_123}},
	{"set-floor", 3, 2, entry{kind: entryCommands, term: 2, now: 0, wall: 1_764_500_000_130, commands: []Command{
		SetFloor{Floor: 462_553_088_262_144, Delay: 1000},
	}}},
	{"tick", 4, 2, entry{kind: entryCommands, term: 2, now: 1000, wall: 1_764_500_001_130}},
	{"acquire", 6, 2, entry{kind: entryCommands, term: 2, now: 1250, wall: 1_764_500_001_380, commands: []Command{
		Acquire{
			Resource: "invoices/B-1042/ü", Holder: "worker-a.example", TTL: 15_000, Metadata: []byte(`{"build":"1.2.3","n":[1,2]}`),
			Request: lease.RequestID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255},
		},
		Acquire{Resource: "a", Holder: "w", TTL: 86_400_000},
		Acquire{Resource: "b", Holder: "w", TTL: 1000},
	}}},
	{"renew", 7, 2, entry{kind: entryCommands, term: 2, now: 2000, wall: 1_764_500_002_130, commands: []Command{
		Renew{Resource: "invoices/B-1042/ü", Token: 462_553_088_262_145, TTL: 60_000},
		Renew{Resource: "invoices/B-1042/ü", Token: 462_553_088_262_145},
	}}},
	{"release", 8, 2, entry{kind: entryCommands, term: 2, now: 2001, wall: 1_764_500_002_131, commands: []Command{
		Release{Resource: "b", Token: 462_553_088_262_147},
	}}},
	{"next", 9, 2, entry{kind: entryCommands, term: 2, now: 2002, wall: 1_764_500_002_132, commands: []Command{
		Next{Sequence: "orders", Count: 100_000},
		Next{Sequence: "ids/ü", Count: 1},
	}}},
	{"void", 11, 4, entry{kind: entryCommands, term: 2, now: 90_000, wall: 1_764_500_090_130, commands: []Command{
		Release{Resource: "a", Token: 462_553_088_262_146},
	}}},
}

const goldenVersion = "v1"

// C53: entries and snapshots of every version that was ever on main are read,
// all fields equal, do what they did, and are still written the same way.
func TestGolden(t *testing.T) {
	dir := filepath.Join("testdata", "golden", goldenVersion)
	s := New()
	for _, g := range goldenLog {
		b := golden(t, filepath.Join(dir, "entry-"+g.file+".bin"), appendEntry(nil, g.entry))
		e, err := decodeEntry(b)
		if err != nil {
			t.Fatalf("%s: %v", g.file, err)
		}
		if !reflect.DeepEqual(e, g.entry) {
			t.Errorf("%s is read as %+v, want %+v", g.file, e, g.entry)
		}
		if again := appendEntry(nil, e); !bytes.Equal(again, b) {
			t.Errorf("%s is written as %x, was %x", g.file, again, b)
		}
		if _, err := s.Apply(g.index, g.term, b); err != nil {
			t.Fatalf("%s: %v", g.file, err)
		}
	}

	b := golden(t, filepath.Join(dir, "snapshot.bin"), bytesOf(t, s))
	got, err := ReadSnapshot(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	want := figures{
		index: 11, digest: got.digest, now: 2002, floorSet: true,
		floor: 462_553_088_262_144, counter: 462_553_088_262_147, grantsFrom: 1000,
	}
	if got.figures != want || got.digest != s.digest {
		t.Errorf("the snapshot says %+v, want %+v; digest of the log %d", got.figures, want, s.digest)
	}
	leases := []held{
		{resource: "a", holder: "w", token: 462_553_088_262_146, ttl: 86_400_000, deadline: 86_401_250, granted: 1_764_500_001_380},
		{
			resource: "invoices/B-1042/ü", holder: "worker-a.example", metadata: `{"build":"1.2.3","n":[1,2]}`,
			token: 462_553_088_262_145, request: lease.RequestID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255},
			ttl: 60_000, deadline: 62_000, granted: 1_764_500_001_380,
		},
	}
	if all := leasesOf(got); !reflect.DeepEqual(all, leases) {
		t.Errorf("the snapshot holds %+v, want %+v", all, leases)
	}
	var sequences []string
	got.sequences.Scan(func(name string, last lease.Token) bool {
		sequences = append(sequences, fmt.Sprint(name, " ", last))
		return true
	})
	if want := []string{"ids/ü 462553088262145", "orders 462553088362144"}; !reflect.DeepEqual(sequences, want) {
		t.Errorf("the snapshot has sequences %q, want %q", sequences, want)
	}
	if !bytes.Equal(bytesOf(t, got), b) || !bytes.Equal(bytesOf(t, s), b) {
		t.Error("the snapshot, or the log before it, is written another way than it was")
	}
}

// golden returns a golden file. If it is missing and files are to be written,
// it is made from fresh; one that is there is never written.
func golden(t *testing.T, path string, fresh []byte) []byte {
	t.Helper()
	if os.Getenv("HIGHWATER_WRITE_GOLDEN") == "1" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			_, err = f.Write(fresh)
			if closeErr := f.Close(); err == nil {
				err = closeErr
			}
		}
		if err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
