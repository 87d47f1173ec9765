package cluster

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// smallSegment makes raft-wal change its segment every few entries.
const smallSegment = 4 << 10

var bothKinds = []LogStore{LogStoreWAL, LogStoreBolt}

func eachKind(t *testing.T, f func(t *testing.T, kind LogStore)) {
	for _, kind := range bothKinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			f(t, kind)
		})
	}
}

func openTestStores(t testing.TB, dir string, kind LogStore) *stores {
	t.Helper()
	st, err := openStoresSized(dir, kind, smallSegment, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// reopen closes and opens again, as a restart does.
func reopen(t testing.TB, st *stores) *stores {
	t.Helper()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	return openTestStores(t, st.dir, st.record.LogStore)
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

func entry(index, term uint64) *raft.Log {
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: bytes.Repeat([]byte{byte(index)}, 100)}
}

func appendEntries(t testing.TB, log raft.LogStore, first, last, term uint64) {
	t.Helper()
	var entries []*raft.Log
	for i := first; i <= last; i++ {
		entries = append(entries, entry(i, term))
	}
	if err := log.StoreLogs(entries); err != nil {
		t.Fatal(err)
	}
}

func wantLog(t testing.TB, log raft.LogStore, first, last uint64) {
	t.Helper()
	f, err := log.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	l, err := log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	if f != first || l != last {
		t.Fatalf("log is %d to %d, want %d to %d", f, l, first, last)
	}
}

// takeSnapshot writes a snapshot as Raft would.
func takeSnapshot(t testing.TB, st *stores, index, term uint64) string {
	t.Helper()
	sink, err := st.snapshots.Create(1, index, term, raft.Configuration{}, 1, nullTransport{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Write([]byte("state")); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	return sink.ID()
}

// nullTransport is for encoding a configuration's addresses, and no more.
type nullTransport struct{ raft.Transport }

func (nullTransport) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }

// markBootstrapped makes a node that belongs to a cluster, its log as it is.
func markBootstrapped(t testing.TB, st *stores) {
	t.Helper()
	m := member{ID: "n1", Instance: st.identity().Instance, ClusterAddr: "n1:8401"}
	id := identity{NodeID: "n1", ClusterID: clusterID([]member{m}), Initial: []member{m}, Bootstrapped: true}
	if err := st.saveIdentity(id); err != nil {
		t.Fatal(err)
	}
}

func TestIdentityIsDrawnOnceAndKept(t *testing.T) {
	eachKind(t, func(t *testing.T, kind LogStore) {
		dir := filepath.Join(t.TempDir(), "a", "b")
		st := openTestStores(t, dir, kind)
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Fatalf("data directory: %v, %v; want mode 0700", info.Mode(), err)
		}
		first := st.identity()
		if !validInstance(first.Instance) || first.NodeID != "" || first.ClusterID != "" {
			t.Fatalf("first identity is %+v", first)
		}
		// The node ID may be corrected until the node belongs to a cluster.
		for _, id := range []string{"typo", "n1"} {
			if err := st.adoptNodeID(id); err != nil {
				t.Fatal(err)
			}
			if st.identity().NodeID != id {
				t.Fatalf("node ID is %q, want %q", st.identity().NodeID, id)
			}
		}
		st = reopen(t, st)
		if st.identity().Instance != first.Instance {
			t.Fatal("another instance ID after a restart")
		}
		appendEntries(t, st.log, 1, 1, 1)
		markBootstrapped(t, st)
		st = reopen(t, st)
		if got := st.identity(); got.NodeID != "n1" || !got.Bootstrapped || got.Initial[0].ClusterAddr != "n1:8401" {
			t.Fatalf("identity is %+v", got)
		}
		wantError(t, st.adoptNodeID("n2"), "--node-id", `"n1"`, `"n2"`)
		wantError(t, st.adoptNodeID("n.1"), "--node-id")
		if err := st.adoptNodeID("n1"); err != nil {
			t.Fatal(err)
		}
	})
}

func TestC47SecondProcessIsRefusedWithThePath(t *testing.T) {
	eachKind(t, func(t *testing.T, kind LogStore) {
		st := openTestStores(t, t.TempDir(), kind)
		// flock belongs to the open file, so a second opening in one process
		// meets the lock as a second process does.
		_, err := openStores(st.dir, kind, hclog.NewNullLogger())
		wantError(t, err, "--data-dir", st.dir, "in use by another process")
	})
}

func TestKindOfLogIsKept(t *testing.T) {
	for i, kind := range bothKinds {
		other := bothKinds[1-i]
		st := openTestStores(t, t.TempDir(), kind)
		st.Close()
		_, err := openStores(st.dir, other, hclog.NewNullLogger())
		wantError(t, err, "--log-store", st.dir, string(kind), string(other))
		reopen(t, st)
	}
	_, err := openStores(t.TempDir(), "rocks", hclog.NewNullLogger())
	wantError(t, err, "--log-store", `"wal"`, `"bolt"`, `"rocks"`)
}

func TestLostPartsAreRefused(t *testing.T) {
	eachKind(t, func(t *testing.T, kind LogStore) {
		logPath := boltLogFile
		if kind == LogStoreWAL {
			logPath = walDir
		}
		removed := func(names ...string) func(*testing.T, string) {
			return func(t *testing.T, dir string) {
				for _, name := range names {
					if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		tests := []struct {
			name     string
			snapshot bool
			cut      uint64 // entries removed from the front
			breakIt  func(*testing.T, string)
			want     []string
		}{
			{"vote forgotten", false, 0, removed(stableFile), []string{"--data-dir", stableFile, "--join"}},
			{"vote and log lost, snapshot left", true, 0, removed(stableFile, logPath), []string{stableFile, snapshotDir}},
			{"log lost", false, 0, removed(logPath), []string{logPath, "is missing", "remove node n1", "--join"}},
			{"log lost behind a snapshot", true, 0, removed(logPath), []string{logPath, "is missing"}},
			{"snapshots lost", true, 5, removed(snapshotDir), []string{"starts at entry 6", "from 1 on are missing"}},
			{"hole behind the snapshot", true, 15, nil, []string{"starts at entry 16", "from 11 on are missing"}},
			{"snapshot altered", true, 0, func(t *testing.T, dir string) {
				files, _ := filepath.Glob(filepath.Join(dir, snapshotDir, "*", "state.bin"))
				if err := os.WriteFile(files[0], []byte("stale"), 0o600); err != nil {
					t.Fatal(err)
				}
			}, []string{snapshotDir, "cannot be read", "--join"}},
			{"snapshot's description lost", true, 0, func(t *testing.T, dir string) {
				files, _ := filepath.Glob(filepath.Join(dir, snapshotDir, "*", "meta.json"))
				if err := os.Remove(files[0]); err != nil {
					t.Fatal(err)
				}
			}, []string{snapshotDir, "cannot be read"}},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				st := openTestStores(t, t.TempDir(), kind)
				markBootstrapped(t, st)
				appendEntries(t, st.log, 1, 20, 1)
				if tt.snapshot {
					takeSnapshot(t, st, 10, 1)
				}
				if tt.cut > 0 {
					if err := st.log.DeleteRange(1, tt.cut); err != nil {
						t.Fatal(err)
					}
				}
				st.Close()
				if tt.breakIt != nil {
					tt.breakIt(t, st.dir)
				}
				_, err := openStoresSized(st.dir, kind, smallSegment, hclog.NewNullLogger())
				wantError(t, err, tt.want...)
				// Refusing must not make a directory that the next start takes.
				_, again := openStoresSized(st.dir, kind, smallSegment, hclog.NewNullLogger())
				wantError(t, again, tt.want...)
			})
		}
		t.Run("bootstrapped with an empty log", func(t *testing.T) {
			st := openTestStores(t, t.TempDir(), kind)
			markBootstrapped(t, st)
			st.Close()
			_, err := openStoresSized(st.dir, kind, smallSegment, hclog.NewNullLogger())
			wantError(t, err, "is empty", "remove node n1", "--join")
		})
	})
}

// TestC64SnapshotStoredLogNotYetEmptied starts a node as it is found after a death between storing a received
// snapshot and emptying the log.
func TestC64SnapshotStoredLogNotYetEmptied(t *testing.T) {
	eachKind(t, func(t *testing.T, kind LogStore) {
		tests := []struct {
			name                  string
			logLast, logTerm      uint64
			snapIndex, snapTerm   uint64
			wantFirst, wantedLast uint64
		}{
			{"log ends below the snapshot", 5, 1, 10, 2, 0, 0},
			{"log diverged from the snapshot", 20, 1, 10, 2, 0, 0},
			{"log has the snapshot's entry", 20, 1, 10, 1, 1, 20},
			{"log ends with the snapshot's entry", 10, 1, 10, 1, 1, 10},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				st := openTestStores(t, t.TempDir(), kind)
				markBootstrapped(t, st)
				appendEntries(t, st.log, 1, tt.logLast, tt.logTerm)
				takeSnapshot(t, st, tt.snapIndex, tt.snapTerm)
				st = reopen(t, st)
				wantLog(t, st.log, tt.wantFirst, tt.wantedLast)
				// It catches up: the next entry is the one after what it has.
				next := max(tt.snapIndex, tt.wantedLast) + 1
				appendEntries(t, st.log, next, next+3, 3)
				st = reopen(t, st)
				_, err := st.log.LastIndex()
				if err != nil {
					t.Fatal(err)
				}
				var e raft.Log
				if err := st.log.GetLog(next+3, &e); err != nil || e.Term != 3 {
					t.Fatalf("entry after the restart: %+v, %v", e, err)
				}
			})
		}
	})
}

func TestHalfWrittenSnapshotsAreCleared(t *testing.T) {
	st := openTestStores(t, t.TempDir(), LogStoreBolt)
	half := filepath.Join(st.dir, snapshotDir, "1-7-1700000000000.tmp")
	if err := os.Mkdir(half, 0o700); err != nil {
		t.Fatal(err)
	}
	st = reopen(t, st)
	if exists(half) {
		t.Fatal("it is still there")
	}
	if list, err := st.snapshots.List(); err != nil || len(list) != 0 {
		t.Fatalf("snapshots are %v, %v", list, err)
	}
}

// TestLogAgainstModel does what Raft does with a log, in any order, with
// restarts between, against a map. raft-wal once lost the index of a segment
// that was cut at its end, so that a restart could not read it.
func TestLogAgainstModel(t *testing.T) {
	if os.Getenv("HIGHWATER_SOAK") == "" {
		checks := flag.Lookup("rapid.checks")
		defer checks.Value.Set(checks.Value.String())
		checks.Value.Set("10")
	}
	for _, kind := range bothKinds {
		t.Run(string(kind), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) { checkLog(t, rt, kind) })
		})
	}
}

func checkLog(t *testing.T, rt *rapid.T, kind LogStore) {
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		rt.Fatal(err)
	}
	var st *stores
	var log raft.LogStore
	open := func() {
		st = &stores{dir: dir}
		l, err := st.openLog(kind, smallSegment, hclog.NewNullLogger())
		if err != nil {
			rt.Fatal(err)
		}
		if log, err = raft.NewLogCache(8, l); err != nil {
			rt.Fatal(err)
		}
	}
	open()
	defer func() { st.Close(); os.RemoveAll(dir) }()
	terms := map[uint64]uint64{}
	var first, last, term uint64
	next := uint64(1)
	remove := func(from, to uint64) {
		if err := log.DeleteRange(from, to); err != nil {
			rt.Fatal(err)
		}
	}
	rt.Repeat(map[string]func(*rapid.T){
		"append": func(rt *rapid.T) {
			term++
			n := rapid.Uint64Range(1, 40).Draw(rt, "n")
			var entries []*raft.Log
			for i := next; i < next+n; i++ {
				entries = append(entries, entry(i, term))
				terms[i] = term
			}
			if err := log.StoreLogs(entries); err != nil {
				rt.Fatal(err)
			}
			if first == 0 {
				first = next
			}
			last, next = next+n-1, next+n
		},
		"cut front": func(rt *rapid.T) {
			if first == last {
				return
			}
			to := rapid.Uint64Range(first, last-1).Draw(rt, "to")
			remove(first, to)
			first = to + 1
		},
		"cut back": func(rt *rapid.T) {
			if first == last {
				return
			}
			from := rapid.Uint64Range(first+1, last).Draw(rt, "from")
			remove(from, last)
			last, next = from-1, from
		},
		"empty": func(rt *rapid.T) {
			if first == 0 {
				return
			}
			remove(first, last)
			// After a snapshot the log goes on further up or, after a
			// divergence, further down.
			next = rapid.Uint64Range(1, last+50).Draw(rt, "next")
			first, last = 0, 0
		},
		"restart": func(rt *rapid.T) {
			if err := st.Close(); err != nil {
				rt.Fatal(err)
			}
			open()
		},
		"": func(rt *rapid.T) {
			f, err1 := log.FirstIndex()
			l, err2 := log.LastIndex()
			if err := errors.Join(err1, err2); err != nil || f != first || l != last {
				rt.Fatalf("log is %d to %d (%v), want %d to %d", f, l, err, first, last)
			}
			for i := first; i <= last && i > 0; i++ {
				var e raft.Log
				if err := log.GetLog(i, &e); err != nil || e.Index != i || e.Term != terms[i] || !bytes.Equal(e.Data, entry(i, 0).Data) {
					rt.Fatalf("entry %d is %d of term %d (%v), want term %d", i, e.Index, e.Term, err, terms[i])
				}
			}
			// raft-wal still reads an entry that was cut from the front of a
			// segment it keeps; Raft does not ask for it.
			if err := log.GetLog(last+1, new(raft.Log)); err == nil {
				rt.Fatalf("entry %d behind the last one is there", last+1)
			}
		},
	})
}

// TestHalfStoredVoteIsNoVote dies between the two values of a vote.
func TestHalfStoredVoteIsNoVote(t *testing.T) {
	st := openTestStores(t, t.TempDir(), LogStoreBolt)
	vote := func(term uint64, cand string) {
		if err := st.stable.SetUint64(lastVoteTermKey, term); err != nil {
			t.Fatal(err)
		}
		if cand == "" {
			return
		}
		if err := st.stable.Set(lastVoteCandKey, []byte(cand)); err != nil {
			t.Fatal(err)
		}
	}
	vote(7, "n2:8401")
	vote(8, "") // it dies here
	st = reopen(t, st)
	term, err := st.stable.GetUint64(lastVoteTermKey)
	if err != nil || term != 8 {
		t.Fatalf("term is %d, %v", term, err)
	}
	cand, err := st.stable.Get(lastVoteCandKey)
	if err != nil || cand != nil {
		t.Fatalf("candidate is %q (nil: %t), %v; Raft takes any that is not nil for the vote of term 8", cand, cand == nil, err)
	}
	vote(9, "n3:8401")
	if cand, err := st.stable.Get(lastVoteCandKey); err != nil || string(cand) != "n3:8401" {
		t.Fatalf("candidate is %q, %v", cand, err)
	}
}

func TestFailedWriteIsReportedOnce(t *testing.T) {
	eachKind(t, func(t *testing.T, kind LogStore) {
		st := openTestStores(t, t.TempDir(), kind)
		var got []error
		st.onFailure(func(err error) { got = append(got, err) })
		st.Close()
		if st.log.StoreLog(entry(1, 1)) == nil || st.stable.SetUint64(raftTermKey, 1) == nil {
			t.Fatal("a closed store takes writes")
		}
		if len(got) != 1 || !strings.Contains(got[0].Error(), st.dir) {
			t.Fatalf("reported %v, want one failure with the path", got)
		}
		// Set late, it still hears of it.
		st.onFailure(func(err error) { got = append(got, err) })
		if len(got) != 2 {
			t.Fatalf("reported %v, want the failure again", got)
		}
	})
}

func TestServerIDs(t *testing.T) {
	instance := newInstance()
	if n, i := splitServerID(serverID("n-1_A", instance)); n != "n-1_A" || i != instance {
		t.Fatalf("got %q, %q", n, i)
	}
	for _, bad := range []string{"", "n1", "n1.", ".", "." + instance, "n1." + instance[1:], "n1." + strings.ToUpper("ab"+instance[2:]), "n 1." + instance, "n1." + instance + ".x"} {
		if n, i := splitServerID(raft.ServerID(bad)); n != "" || i != "" {
			t.Errorf("%q gives %q, %q", bad, n, i)
		}
	}
	for _, bad := range []string{"", "n.1", "n/1", "é", strings.Repeat("n", 65)} {
		wantError(t, checkNodeID("--node-id", bad), "--node-id", "64")
	}
}

func TestClusterID(t *testing.T) {
	a, b := newInstance(), newInstance()
	id := clusterID([]member{{ID: "n1", Instance: a}, {ID: "n2", Instance: b}})
	if len(id) != 32 {
		t.Fatalf("%q is not 16 bytes of hex", id)
	}
	if clusterID([]member{{ID: "n2", Instance: b}, {ID: "n1", Instance: a, ClusterAddr: "x:1"}}) != id {
		t.Error("order or addresses matter")
	}
	for _, other := range [][]member{
		{{ID: "n1", Instance: b}, {ID: "n2", Instance: a}},
		{{ID: "n1", Instance: a}},
		{{ID: "n1" + a, Instance: "n2" + b}},
		{{ID: "n1" + a + "n2", Instance: b}},
	} {
		if clusterID(other) == id {
			t.Errorf("%v makes the same cluster", other)
		}
	}
}

// A folder that cannot be made is an error, and not tried for ever, although
// the one above it is there.
func TestDataDirThatCannotBeMade(t *testing.T) {
	if err := makeDir("/proc/self/no-such-folder"); err == nil {
		t.Error("made a folder in /proc")
	}
	dir := filepath.Join(t.TempDir(), "a", "b", "c")
	if err := makeDir(dir); err != nil || !exists(dir) {
		t.Errorf("makeDir: %v", err)
	}
}
