package fsm

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/highwater/highwater/lease"
)

// filled returns a state with n live leases, as many resources of a customer's
// naming, holders and request ids as real ones have, and no metadata.
func filled(tb testing.TB, n int) *State {
	tb.Helper()
	s := New()
	apply := func(commands ...Command) {
		tb.Helper()
		data := entryOf(1, int64(s.index)*1000, 1_700_000_000_000, commands...)
		out, err := s.Apply(s.index+1, 1, data)
		if err != nil {
			tb.Fatal(err)
		}
		for _, r := range out.Results {
			if r.Err != nil {
				tb.Fatal(r.Err)
			}
		}
	}
	apply(SetFloor{Floor: 1 << 40})
	for i := 0; i < n; {
		var commands []Command
		for ; i < n && len(commands) < 10_000; i++ {
			// Scattered, as real names arrive: in order is kinder to a tree.
			j := uint32(i) * 2654435761
			commands = append(commands, Acquire{
				Resource: fmt.Sprintf("invoices/%010d", j),
				Holder:   fmt.Sprintf("worker-%03d.example", i%1000),
				TTL:      lease.MaxTTL.Milliseconds(),
				Request:  lease.RequestID{byte(i), byte(i >> 8), byte(i >> 16), 1},
			})
		}
		apply(commands...)
	}
	return s
}

// entryOf encodes an entry.
func entryOf(term uint64, now, wall int64, commands ...Command) []byte {
	encoded := make([][]byte, len(commands))
	for i, c := range commands {
		encoded[i] = AppendCommand(nil, c)
	}
	return AppendEntry(nil, term, now, wall, encoded...)
}

const million = 1_000_000

// BenchmarkMemory measures what the state machine keeps for one lease, all
// views included, filled by entries and after a restore. The target is 400
// bytes.
//
//	go test ./fsm -run '^$' -bench Memory -benchtime 1x
func BenchmarkMemory(b *testing.B) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var snapshot bytes.Buffer
	b.Run("filled", func(b *testing.B) {
		for b.Loop() {
			before := heap()
			s := filled(b, million)
			b.ReportMetric(float64(heap()-before)/million, "B/lease")
			snapshot.Reset()
			if _, err := s.Snapshot().WriteTo(&snapshot); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("restored", func(b *testing.B) {
		for b.Loop() {
			before := heap()
			s, err := ReadSnapshot(bytes.NewReader(snapshot.Bytes()))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(heap()-before)/million, "B/lease")
			runtime.KeepAlive(s)
		}
	})
}

// BenchmarkSnapshot writes and reads a snapshot of a million leases.
func BenchmarkSnapshot(b *testing.B) {
	s := filled(b, million)
	var file bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&file); err != nil {
		b.Fatal(err)
	}
	b.Run("take", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Snapshot()
		}
	})
	b.Run("write", func(b *testing.B) {
		b.SetBytes(int64(file.Len()))
		for b.Loop() {
			if _, err := s.Snapshot().WriteTo(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(file.Len())/million, "B/lease")
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(file.Len()))
		for b.Loop() {
			if _, err := ReadSnapshot(bytes.NewReader(file.Bytes())); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkApply executes entries of 64 commands on a state with 100,000 other
// leases; a figure is for one command.
func BenchmarkApply(b *testing.B) {
	run := func(name string, each func(s *State, i int) []Command) {
		b.Run(name, func(b *testing.B) {
			s := filled(b, 100_000)
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; {
				var commands []Command
				for i := range 64 {
					commands = append(commands, each(s, i)...)
				}
				data := entryOf(1, s.now+1000, 1_700_000_000_000, commands...)
				out, err := s.Apply(s.index+1, 1, data)
				if err != nil {
					b.Fatal(err)
				}
				for _, r := range out.Results {
					if r.Err != nil {
						b.Fatal(r.Err)
					}
				}
				n += len(commands)
			}
		})
	}
	run("acquire+release", func(s *State, i int) []Command {
		name := fmt.Sprintf("bench/%d", i)
		return []Command{
			Acquire{Resource: name, Holder: "bench", TTL: 15_000, Request: lease.RequestID{1}},
			Release{Resource: name, Token: s.counter + lease.Token(i) + 1},
		}
	})
	run("renew", func(s *State, i int) []Command {
		return []Command{Renew{Resource: fmt.Sprintf("invoices/%010d", uint32(i)*2654435761), Token: 1<<40 + lease.Token(i) + 1}}
	})
	run("next", func(*State, int) []Command {
		return []Command{Next{Sequence: "orders", Count: 1}}
	})
}

func BenchmarkQuery(b *testing.B) {
	s := filled(b, 100_000)
	for name, q := range map[string]Query{
		"lease": GetLease{Resource: fmt.Sprintf("invoices/%010d", 0)},
		"token": GetToken{Token: 1<<40 + 1},
		"list":  ListLeases{lease.Page{Prefix: "invoices/", Limit: lease.DefaultPage}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if a := s.Query(q); a.Err != nil {
					b.Fatal(a.Err)
				}
			}
		})
	}
}
