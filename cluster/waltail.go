package cluster

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// repairTail cures two faults of raft-wal v0.4.1 that leave a log to which
// nothing can ever be appended ("segment is sealed"). It runs before the log is
// opened, and changes nothing that was acknowledged.
//
// The append that fills a segment also writes the segment's index and commits
// it; the list of segments is changed after that, in the background. A process
// that ends in between, be it by an orderly stop, opens a last segment that the
// list calls open and the file calls sealed, and never starts the next. Here the
// list is changed as it would have been.
//
// If such an append was cut short, its bytes stay behind the last commit.
// raft-wal leaves out its entries, rightly, but takes its index for a sign that
// the segment is sealed; and later appends may be followed by what is left of
// it. Here everything behind the last commit is cleared.
func repairTail(dir string, segmentBytes int) error {
	if !exists(filepath.Join(dir, walMetaFile)) {
		return nil
	}
	meta := &metadb.BoltMetaDB{}
	state, err := meta.Load(dir)
	if err != nil {
		return err
	}
	defer meta.Close()
	if len(state.Segments) == 0 {
		return nil
	}
	last := &state.Segments[len(state.Segments)-1]
	if !last.SealTime.IsZero() {
		return nil
	}
	path := filepath.Join(dir, segment.FileName(*last))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // raft-wal makes it
	}
	if err != nil {
		return err
	}
	defer f.Close()
	tail, err := scanTail(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := tail.agrees(dir, *last); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if !tail.sealed {
		return clearFrom(f, tail.end)
	}
	last.SealTime = time.Now()
	last.MaxIndex = last.BaseIndex + tail.entries - 1
	last.IndexStart = uint64(tail.index)
	state.Segments = append(state.Segments, types.SegmentInfo{
		ID:         state.NextSegmentID,
		BaseIndex:  last.MaxIndex + 1,
		MinIndex:   last.MaxIndex + 1,
		SizeLimit:  uint32(segmentBytes),
		Codec:      last.Codec,
		CreateTime: time.Now(),
	})
	state.NextSegmentID++
	return meta.CommitState(state)
}

// The format of a segment file, version 0: a header, then frames of which each
// has its kind and, little endian, the length of what follows, or in a commit
// the CRC-32C of all since the commit before. Frames are padded.
const (
	walHeader = 32 // of the file
	walFrame  = 8  // header of a frame, and what frames are aligned to
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// walTail is what the last segment holds.
type walTail struct {
	entries uint64 // committed
	end     int64  // where the last commit ends; 0 if there is none
	sealed  bool   // the last commit commits an index
	index   int64  // of that: where its offsets begin
}

// walCommit is a commit that the scan has passed.
type walCommit struct {
	start, end int64 // of what it covers; it is at end, walFrame long
	crc        uint32
	entries    uint64
	index      int64 // 0 if it covers no index
}

// spoilt says whether what a commit covers is not what was written.
func (c walCommit) spoilt(f io.ReaderAt) (bool, error) {
	sum := crc32.New(castagnoli)
	_, err := io.Copy(sum, io.NewSectionReader(f, c.start, c.end-c.start))
	return sum.Sum32() != c.crc, err
}

// scanTail reads a segment by raft-wal's rules: the file ends at the first frame
// that is none. A commit behind which entries follow was complete, for the next
// append had begun; the very last one counts only if its sum is right.
//
// raft-wal does not look at the sum of one that was complete. When what follows
// is cleared away, it would, and would drop acknowledged entries without a word;
// so a wrong sum there is an error.
func scanTail(f *os.File) (walTail, error) {
	info, err := f.Stat()
	if err != nil {
		return walTail{}, err
	}
	size := info.Size()
	r := bufio.NewReaderSize(io.NewSectionReader(f, walHeader, max(0, size-walHeader)), 1<<20)
	var before, final walCommit // the last two commits
	var entries uint64
	var index int64
	for at := int64(walHeader); ; {
		head, err := r.Peek(walFrame)
		if err == io.EOF {
			break
		}
		if err != nil {
			return walTail{}, err
		}
		kind, value := head[0], binary.LittleEndian.Uint32(head[4:])
		length := int64(0)
		switch kind {
		case segment.FrameEntry:
			entries++
			length = int64(value)
		case segment.FrameIndex:
			index = at + walFrame
			length = int64(value)
		case segment.FrameCommit:
			before, final = final, walCommit{end: at, crc: value, entries: entries, index: index}
			if before.end != 0 {
				final.start = before.end + walFrame
			}
			index = 0
		default:
			kind = segment.FrameInvalid
		}
		if kind == segment.FrameInvalid {
			break
		}
		length = walFrame + (length+walFrame-1)/walFrame*walFrame
		if _, err := r.Discard(int(length)); err == io.EOF {
			break
		} else if err != nil {
			return walTail{}, err
		}
		at += length
	}
	torn := final.end != 0 && final.entries == entries
	if torn {
		if torn, err = final.spoilt(f); err != nil {
			return walTail{}, err
		}
	}
	followed := torn || final.entries < entries
	if torn {
		final = before
	}
	if final.end == 0 {
		return walTail{}, nil
	}
	if followed {
		if bad, err := final.spoilt(f); err != nil {
			return walTail{}, err
		} else if bad {
			return walTail{}, fmt.Errorf("the append that ends at byte %d was complete, and is damaged: remove the node from the cluster, empty its data directory, then start it with --join", final.end)
		}
	}
	return walTail{entries: final.entries, end: final.end + walFrame, sealed: final.index != 0, index: final.index}, nil
}

// agrees compares with what raft-wal itself finds. If the two differed, one of
// them would be wrong about what was acknowledged, and nothing may be changed.
func (t walTail) agrees(dir string, info types.SegmentInfo) error {
	w, err := segment.NewFiler(dir, fs.New()).RecoverTail(info)
	if err != nil {
		return err
	}
	defer w.Close()
	want := uint64(0)
	if t.entries > 0 {
		want = info.BaseIndex + t.entries - 1
	}
	if got := w.LastIndex(); got != want {
		return fmt.Errorf("the end of the log is at entry %d or at %d", got, want)
	}
	sealed, index, err := w.Sealed()
	if err != nil {
		return err
	}
	if t.sealed && (!sealed || int64(index) != t.index) {
		return fmt.Errorf("the index of the segment is at %d or at %d", index, t.index)
	}
	return nil
}

// clearFrom makes everything from an offset on zero, durably, and keeps the size
// that the file was given in advance.
func clearFrom(f *os.File, end int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	dirty := false
	zero, buf := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := end; at < info.Size(); {
		n, err := f.ReadAt(buf[:min(int64(len(buf)), info.Size()-at)], at)
		if err != nil && err != io.EOF {
			return err
		}
		if n == 0 {
			break
		}
		if string(buf[:n]) != string(zero[:n]) {
			if _, err := f.WriteAt(zero[:n], at); err != nil {
				return err
			}
			dirty = true
		}
		at += int64(n)
	}
	if !dirty {
		return nil
	}
	return f.Sync()
}
