package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// soak runs the tests at their full size.
var soak = os.Getenv("HIGHWATER_SOAK") == "1"

// size is full in a soak and small otherwise.
func size(small, full int) int {
	if soak {
		return full
	}
	return small
}

// longStop ends a wait for something that never comes. No test passes because
// of it.
const longStop = 60 * time.Second

var workDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "highwater-chaos-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	workDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// binary builds the program once. HIGHWATER_CHAOS_RACE=1 has its nodes run
// under the race detector as well.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(workDir, "highwater")
	args := []string{"build", "-o", path}
	if os.Getenv("HIGHWATER_CHAOS_RACE") == "1" {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "github.com/highwater/highwater/cmd/highwater")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func program(t *testing.T) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// newCluster makes a cluster whose nodes do not run yet. At the end of the test
// the nodes that run must agree; after a failure their logs are shown.
func newCluster(t *testing.T, config ClusterConfig) *Cluster {
	t.Helper()
	config.Binary, config.Dir = program(t), t.TempDir()
	c, err := NewCluster(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			checkAgreement(t, c)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for i := range c.Size() {
				t.Logf("log of n%d:\n%s", i+1, lastLines(c.Log(i), 80))
			}
		}
	})
	return c
}

// startCluster starts a cluster and waits until all nodes are ready.
func startCluster(t *testing.T, config ClusterConfig) *Cluster {
	t.Helper()
	c := newCluster(t, config)
	must(t, c.StartAll())
	awaitReady(t, c, all(c)...)
	return c
}

func all(c *Cluster) []int {
	var nodes []int
	for i := range c.Size() {
		nodes = append(nodes, i)
	}
	return nodes
}

func others(c *Cluster, not int) []int {
	var nodes []int
	for i := range c.Size() {
		if i != not {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until a condition holds; the condition says why it does not.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	stop := time.NewTimer(longStop)
	defer stop.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-stop.C:
			t.Fatalf("%s: not after %v: %v", what, longStop, err)
		}
	}
}

func awaitReady(t *testing.T, c *Cluster, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		eventually(t, fmt.Sprintf("n%d is ready", i+1), func() error {
			if p := c.Process(i); !p.Running() {
				t.Fatalf("n%d has ended with code %d instead of getting ready", i+1, p.ExitCode())
			}
			return c.Ready(t.Context(), i)
		})
	}
}

// awaitLeader waits until a node other than not leads, and returns it.
func awaitLeader(t *testing.T, c *Cluster, not int) int {
	t.Helper()
	leader := -1
	eventually(t, "there is a leader", func() error {
		leader = c.Leader(t.Context())
		if leader < 0 || leader == not {
			return errors.New("no leader")
		}
		return nil
	})
	return leader
}

// awaitSuccesses waits until n more requests of a history were answered ok.
func awaitSuccesses(t *testing.T, h *History, n int) {
	t.Helper()
	want := h.Succeeded() + n
	eventually(t, fmt.Sprintf("%d more requests succeed", n), func() error {
		if got := h.Succeeded(); got < want {
			return fmt.Errorf("%d are missing", want-got)
		}
		return nil
	})
}

// checkAgreement waits until all running nodes have applied the same entry, and
// compares their states.
func checkAgreement(t *testing.T, c *Cluster) {
	ctx, cancel := context.WithTimeout(context.Background(), longStop)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		digests := map[uint64]map[string]string{} // by index, by digest: a node
		nodes := 0
		for i := range c.Size() {
			p := c.Process(i)
			if p == nil || !p.Running() || p.Paused() {
				continue
			}
			v, err := c.View(ctx, i)
			if err != nil || v.Leader == "" {
				nodes++ // it does not agree yet
				continue
			}
			nodes++
			if digests[v.AppliedIndex] == nil {
				digests[v.AppliedIndex] = map[string]string{}
			}
			digests[v.AppliedIndex][v.Digest] += v.Node + " "
		}
		for index, by := range digests {
			if len(by) > 1 {
				t.Errorf("the states after entry %d differ: %v", index, by)
				return
			}
		}
		if nodes < 2 || nodes <= c.Size()/2 {
			return // without a quorum there is nothing to agree on
		}
		if len(digests) == 1 {
			for _, by := range digests {
				for _, who := range by {
					if strings.Count(who, " ") == nodes {
						return
					}
				}
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Errorf("the nodes never get to one entry: %v", digests)
			return
		}
	}
}

// judge checks a history. A broken one is kept as a file.
func judge(t *testing.T, h *History, rules Rules) {
	t.Helper()
	records := h.Records()
	outcomes := map[Outcome]int{}
	for i := range records {
		outcomes[records[i].Outcome]++
	}
	t.Logf("%d requests: %v", len(records), outcomes)
	found := Check(records, rules)
	for _, v := range found {
		t.Error(v)
	}
	if len(found) > 0 {
		path := filepath.Join(os.TempDir(), "highwater-history-"+strings.ReplaceAll(t.Name(), "/", "-")+".jsonl")
		must(t, SaveRecords(path, records))
		t.Logf("the history is in %s", path)
	}
}

// underLoad puts load on for as long as during takes.
func underLoad(t *testing.T, load Load, h *History, during func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		load.Run(ctx, h)
	}()
	defer func() {
		stop()
		<-done
	}()
	during()
}

// newCaller is a client whose connections end with the test.
func newCaller(t *testing.T, name string, h *History) *Caller {
	c := NewCaller(name, h)
	t.Cleanup(c.Close)
	return c
}

// wantOK fails the test unless a request was answered ok.
func wantOK(t *testing.T, r Record) Record {
	t.Helper()
	if r.Outcome != OK {
		t.Fatalf("want ok, got %v", r)
	}
	return r
}

func bothStores(t *testing.T, test func(t *testing.T, store string)) {
	for _, store := range []string{"wal", "bolt"} {
		t.Run(store, func(t *testing.T) { test(t, store) })
	}
}
