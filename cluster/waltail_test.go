package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// unlisted makes a log as a process leaves it that ends between the append that
// seals a segment and the change of the list: entries 1 to 10 in one append, 11
// to 40 in another. It returns the directory, the segment's file, and where the
// second append begins and ends.
func unlisted(t *testing.T) (dir, file string, begin, end int) {
	t.Helper()
	dir = t.TempDir()
	info := types.SegmentInfo{ID: 1, BaseIndex: 1, MinIndex: 1, SizeLimit: smallSegment, Codec: wal.CodecBinaryV1, CreateTime: time.Now()}
	meta := &metadb.BoltMetaDB{}
	if _, err := meta.Load(dir); err != nil {
		t.Fatal(err)
	}
	if err := meta.CommitState(types.PersistentState{NextSegmentID: 2, Segments: []types.SegmentInfo{info}}); err != nil {
		t.Fatal(err)
	}
	meta.Close()
	w, err := segment.NewFiler(dir, fs.New()).Create(info)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	file = filepath.Join(dir, segment.FileName(info))
	written := func() int {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return (len(bytes.TrimRight(b, "\x00")) + 7) / 8 * 8
	}
	for _, last := range []uint64{10, 40} {
		var entries []types.LogEntry
		for i := w.LastIndex() + 1; i <= last; i++ {
			var buf bytes.Buffer
			if err := (&wal.BinaryCodec{}).Encode(entry(i, 1), &buf); err != nil {
				t.Fatal(err)
			}
			entries = append(entries, types.LogEntry{Index: i, Data: buf.Bytes()})
		}
		begin = end
		if err := w.Append(entries); err != nil {
			t.Fatal(err)
		}
		end = written()
	}
	if sealed, _, err := w.Sealed(); !sealed || err != nil {
		t.Fatalf("sealed: %t, %v", sealed, err)
	}
	return dir, file, begin, end
}

// openTail opens a log that has entries 1 to last, appends to it, and opens it
// again, twice over.
func openTail(dir string, last uint64) error {
	for round := uint64(2); round < 4; round++ {
		if err := repairTail(dir, smallSegment); err != nil {
			return err
		}
		log, err := wal.Open(dir, wal.WithSegmentSize(smallSegment), wal.WithLogger(hclog.NewNullLogger()))
		if err != nil {
			return err
		}
		defer log.Close()
		if got, err := log.LastIndex(); err != nil || got != last {
			return fmt.Errorf("round %d: last entry is %d, %v; want %d", round, got, err, last)
		}
		for i := uint64(1); i <= last; i++ {
			var e raft.Log
			if err := log.GetLog(i, &e); err != nil || !bytes.Equal(e.Data, entry(i, 1).Data) {
				return fmt.Errorf("round %d: entry %d: %w", round, i, err)
			}
		}
		// One small append, so that a torn one is only partly written over, and
		// one that fills the segment.
		for _, n := range []uint64{1, 30} {
			var entries []*raft.Log
			for i := last + 1; i <= last+n; i++ {
				entries = append(entries, entry(i, round))
			}
			if err := log.StoreLogs(entries); err != nil {
				return fmt.Errorf("round %d: append: %w", round, err)
			}
			last += n
		}
		log.Close()
	}
	return nil
}

func TestSealedSegmentThatTheListCallsOpen(t *testing.T) {
	dir, _, _, _ := unlisted(t)
	// What this is about: raft-wal alone would never append again.
	log, err := wal.Open(dir, wal.WithSegmentSize(smallSegment), wal.WithLogger(hclog.NewNullLogger()))
	if err != nil {
		t.Fatal(err)
	}
	if err := log.StoreLog(entry(41, 1)); err == nil {
		t.Error("raft-wal can do without repairTail now")
	}
	log.Close()
	if err := openTail(dir, 40); err != nil {
		t.Fatal(err)
	}
}

// TestTornSealingAppend cuts the append that seals a segment at every frame's
// alignment, and loses any one sector of it. Its entries are gone, for nobody
// was told that they are stored; those before are there, and the log goes on.
func TestTornSealingAppend(t *testing.T) {
	dir, file, begin, end := unlisted(t)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	try := func(name string, from, to int, last uint64, flip ...int) {
		t.Helper()
		torn := bytes.Clone(whole)
		clear(torn[from:to])
		for _, at := range flip {
			torn[at] ^= 1
		}
		copied := t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(copied, filepath.Base(file)), torn, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := openTail(copied, last); err != nil {
			t.Errorf("%s at %d to %d of %d to %d: %v", name, from, to, begin, end, err)
		}
	}
	step := 8
	if os.Getenv("HIGHWATER_SOAK") == "" {
		step = 8 * 37
	}
	for cut := begin; cut < end; cut += step {
		try("cut", cut, len(whole), 10)
	}
	try("the commit is lost", end-8, len(whole), 10)
	try("the index and the commit are lost", end-8-40*4-8, len(whole), 10)
	for sector := begin / 512 * 512; sector < end; sector += 512 {
		if sector >= begin {
			try("lost sector", sector, min(sector+512, len(whole)), 10)
		}
	}
	try("a bit of the content is lost", len(whole), len(whole), 10, begin+50)
	try("a bit of the index is lost", len(whole), len(whole), 10, end-20)
	try("nothing is lost", len(whole), len(whole), 40)
}

// TestDamagedAppendIsRefused: what was complete, for more followed, is not
// dropped as if it had been cut short.
func TestDamagedAppendIsRefused(t *testing.T) {
	for _, follows := range []string{"entries", "a torn append"} {
		t.Run(follows, func(t *testing.T) {
			dir, file, begin, end := unlisted(t)
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			b[100] ^= 1 // in an entry of the first append
			if follows == "entries" {
				clear(b[begin+1000:])
			} else {
				b[end-20] ^= 1
			}
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
			wantError(t, repairTail(dir, smallSegment), file, fmt.Sprint(begin-8), "is damaged", "--join")
			if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, b) {
				t.Error("the file was changed")
			}
		})
	}
}

func TestTornFirstAppend(t *testing.T) {
	dir, file, begin, _ := unlisted(t)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	clear(whole[begin-8:])
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := repairTail(dir, smallSegment); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(file); err != nil || strings.Trim(string(b), "\x00") != "" || len(b) != len(whole) {
		t.Fatalf("%d bytes, %v; want %d zeros", len(b), err, len(whole))
	}
	if err := openTail(dir, 0); err != nil {
		t.Fatal(err)
	}
}

// TestRepairTouchesNothingElse: a log that was left in order is as it was.
func TestRepairTouchesNothingElse(t *testing.T) {
	st := openTestStores(t, t.TempDir(), LogStoreWAL)
	appendEntries(t, st.log, 1, 5, 1)
	appendEntries(t, st.log, 6, 9, 1)
	st.Close()
	dir := filepath.Join(st.dir, walDir)
	read := func() map[string]string {
		files := map[string]string{}
		paths, _ := filepath.Glob(filepath.Join(dir, "*.wal"))
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files[path] = string(b)
		}
		if len(files) == 0 {
			t.Fatal("no segments")
		}
		return files
	}
	before := read()
	if err := repairTail(dir, smallSegment); err != nil {
		t.Fatal(err)
	}
	after := read()
	if len(after) != len(before) {
		t.Fatalf("%d segments, were %d", len(after), len(before))
	}
	for path, b := range before {
		if after[path] != b {
			t.Errorf("%s has changed", path)
		}
	}
	if err := repairTail(t.TempDir(), smallSegment); err != nil {
		t.Errorf("no log yet: %v", err)
	}
}
