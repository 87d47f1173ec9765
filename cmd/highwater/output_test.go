package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

// full is an output that takes nothing, like /dev/full.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// A result that nobody got is no success, and a lease whose token nobody got is
// given back.
func TestLostOutput(t *testing.T) {
	dev := Dev{Nodes: 1, LogLevel: "off"}
	cluster, err := dev.Start(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	endpoints := cluster.endpoints()[0]
	for _, args := range [][]string{
		{"acquire", "lost/1"}, {"acquire", "lost/1", "--json"}, {"list"}, {"next", "lost"}, {"status"}, {"version"},
	} {
		if args[0] != "version" {
			args = append(args, "--endpoints", endpoints)
		}
		var stderr bytes.Buffer
		if code := run(t.Context(), args, full{}, &stderr); code != exitFailed {
			t.Errorf("%q: exit code %d, stderr %q", args, code, stderr.String())
		}
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"acquire", "lost/1", "--endpoints", endpoints}, &stdout, &stderr); code != exitDone {
		t.Errorf("the lease was not given back: exit code %d, %s", code, &stderr)
	}
}

// Arguments that are not UTF-8 are refused, never mended: two names would
// become one (C73).
func TestArgumentsAreUTF8(t *testing.T) {
	for _, args := range [][]string{
		{"acquire", "u8/\xffb"}, {"get", "\xfe"}, {"list", "\xfe"}, {"next", "u8/\xfd"},
		{"acquire", "a", "--holder", "h\xff"}, {"acquire", "a", "--holder=h\xff"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, &stdout, &stderr); code != exitUsage || !strings.Contains(stderr.String(), "UTF-8") {
			t.Errorf("%q: exit code %d, %s", args, code, &stderr)
		}
	}
	t.Setenv("HIGHWATER_HOLDER", "h\xff")
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"acquire", "a"}, &stdout, &stderr); code != exitUsage || !strings.Contains(stderr.String(), "HIGHWATER_HOLDER") {
		t.Errorf("environment: exit code %d, %s", code, &stderr)
	}
}

// --json covers wrong command lines as well.
func TestUsageAsJSON(t *testing.T) {
	for _, args := range [][]string{
		{"acquire", "a//b", "--json"}, {"acquire", "--json"}, {"token", "0", "--json"}, {"dev", "--json", "--nodes", "0"}, {"nonsense", "--json"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), args, &stdout, &stderr)
		var p wire.Problem
		if err := json.Unmarshal(stderr.Bytes(), &p); err != nil || code != exitUsage || p.ToError().Code != lease.CodeBadRequest || p.Detail == "" {
			t.Errorf("%q: exit code %d, %s (%v)", args, code, &stderr, err)
		}
	}
}

// A measurement counts what failed, and its exit code says why nothing succeeded.
func TestBenchCountsErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, []string{"bench", "--json", "--duration", "500ms", "--warm-up", "0s", "--clients", "2", "--endpoints", "http://127.0.0.1:1"}, &stdout, &stderr)
	var m measurement
	if err := json.Unmarshal(stdout.Bytes(), &m); err != nil || code != exitNoLeader || m.Operations != 0 || m.Errors[string(lease.CodeNoLeader)] == 0 {
		t.Errorf("exit code %d, %s%s (%v)", code, &stdout, &stderr, err)
	}
}
