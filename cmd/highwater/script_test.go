package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets this test binary be the command: called by the name highwater,
// it is highwater.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"highwater": main})
}

// TestScripts runs the command line against one development cluster.
func TestScripts(t *testing.T) {
	dev := Dev{Nodes: 3, LogLevel: "off"}
	if err := dev.Validate(); err != nil {
		t.Fatal(err)
	}
	cluster, err := dev.Start(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(cluster.dataDir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the temporary directory %s is left behind", cluster.dataDir)
		}
	})
	// The scripts run in parallel, after this function has returned; the
	// cleanup waits for them.
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HIGHWATER_ENDPOINTS", strings.Join(cluster.endpoints(), ","))
			env.Setenv("ENDPOINT", cluster.endpoints()[0])
			env.Setenv("LONG", strings.Repeat("x", 257))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": code,
			"keep": keep,
		},
	})
}

// code N CMD ARGS: CMD must end with exit code N.
func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command args...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		got = ended.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// keep VAR: the last standard output, without its newline, in a variable.
func keep(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: keep variable")
	}
	ts.Setenv(args[0], strings.TrimSuffix(ts.ReadFile("stdout"), "\n"))
}

// eventually polls a condition until it holds; the states of processes have no
// events to wait for.
func eventually(t *testing.T, what string, holds func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		err := holds(ctx)
		if err == nil {
			return
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}
