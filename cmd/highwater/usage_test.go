package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUsage: wrong usage is 2 and touches nothing; the message names the flag
// or argument and says what is allowed. DIR stands for a directory that does
// not exist yet.
func TestUsage(t *testing.T) {
	for _, test := range []struct{ args, says string }{
		{"", `expected one of "serve", "dev"`},
		{"unheard-of", "unexpected argument unheard-of"},
		{"acquire", `expected "<name>"`},
		{"acquire ''", "must be 1 to 512 bytes"},
		{"acquire a//b", "NAME: must not have an empty segment"},
		{"acquire a/../b", `NAME: must not have a segment ".."`},
		{"acquire a --ttl 0s", "--ttl: must be 1s to 24h0m0s"},
		{"acquire a --ttl 999ms", "--ttl: must be"},
		{"acquire a --ttl 24h1ms", "--ttl: must be"},
		{"acquire a --ttl 1500us", "--ttl: must be"},
		{"acquire a --ttl 15", "--ttl: expected duration"},
		{"acquire a --wait 1s", "--wait: waiting is not supported"},
		{"acquire a --holder " + strings.Repeat("x", 257), "--holder: must be 1 to 256 bytes"},
		{"acquire a --unheard-of", "unknown flag --unheard-of"},
		{"acquire a b", "unexpected argument b"},
		{"renew a", "missing flags: --token=N"},
		{"renew a --token 0", `--token: must be an integer from 1 to 999999999999999, not "0"`},
		{"renew a --token 1 --ttl 1ms", "--ttl: must be"},
		{"release a --token 1e3", "--token: must be an integer"},
		{"release a --token 1000000000000000", "--token: must be an integer"},
		{"token 01", "must be an integer"},
		{"list " + strings.Repeat("x", 513), "PREFIX: must be at most 512 bytes"},
		{"next s --count 0", "--count: must be an integer from 1 to 100000, not 0"},
		{"next s --count 100001", "--count: must be"},
		{"sequence", `expected "list"`},
		{"get a --endpoints 127.0.0.1:8400", `endpoints: must be URLs like http://127.0.0.1:8400, not "127.0.0.1:8400"`},
		{"bench --mode dance", "--mode must be one of"},
		{"bench --clients 0", "--clients: must be an integer from 1"},
		{"bench --duration 0s", "--duration: must be above 0s"},
		{"bench --warm-up 11m", "--warm-up: must be 0s to 10m0s"},
		{"dev --nodes 10", "--nodes: must be an integer from 1 to 9"},
		{"dev --port 0 --data-dir DIR", "--port: must not be 0 with --data-dir"},
		{"dev --port 70000", "--port: must be an integer from 0"},

		{"serve", "missing flags: --data-dir=STRING, --node-id=STRING"},
		{"serve --node-id n.1 --data-dir DIR", "--node-id: "},
		{"serve --node-id n1 --data-dir DIR --token-floor many", `--token-floor: must be auto or an integer from 0 to 999999999999999, not "many"`},
		{"serve --node-id n1 --data-dir DIR --raft-timeout 0s", "--raft-timeout: must be from"},
		{"serve --node-id n1 --data-dir DIR --raft-timeout 1ms", "--raft-timeout: must be from"},
		{"serve --node-id n1 --data-dir DIR --leader-wait 0s", "--leader-wait: must be above 0s"},
		{"serve --node-id n1 --data-dir DIR --log-store paper", "--log-store must be one of"},
		{"serve --node-id n1 --data-dir DIR --initial-cluster n1", "--initial-cluster: "},
		{"serve --node-id n1 --data-dir DIR --http-addr 8400", `--http-addr: must be HOST:PORT, not "8400"`},
		{"serve --node-id n1 --data-dir DIR --cluster-addr 127.0.0.1:0", "--cluster-addr: must have a port from 1 to 65535"},

		// Beyond loopback only if it is said.
		{"serve --node-id n1 --data-dir DIR --http-addr 0.0.0.0:8400", "unless --insecure-http is given"},
		{"serve --node-id n1 --data-dir DIR --http-addr :8400", "--http-addr: must be on loopback"},
		{"serve --node-id n1 --data-dir DIR --http-addr example.org:8400", "--http-addr: must be on loopback"},
		{"serve --node-id n1 --data-dir DIR --cluster-addr 10.0.0.1:8401", "unless --insecure-cluster is given"},

		// What others cannot dial is not advertised (C46).
		{"serve --node-id n1 --data-dir DIR --http-addr 0.0.0.0:8400 --insecure-http", "--http-advertise: "},
		{"serve --node-id n1 --data-dir DIR --cluster-addr [::]:8401 --insecure-cluster", "--cluster-advertise: "},
		{"serve --node-id n1 --data-dir DIR --cluster-advertise 127.0.0.1:8401 --initial-cluster n1=10.0.0.1:8401,n2=10.0.0.2:8401", "--cluster-advertise: "},
		{"serve --node-id n1 --data-dir DIR --initial-cluster n1=127.0.0.1:8401,n2=10.0.0.2:8401", "--initial-cluster: "},
	} {
		t.Run(test.args, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			args := strings.Fields(strings.ReplaceAll(test.args, "DIR", dir))
			for i := range args {
				args[i] = strings.Trim(args[i], "'")
			}
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), args, &stdout, &stderr); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if !strings.Contains(stderr.String(), test.says) {
				t.Errorf("it says:\n%swant: %s", stderr.String(), test.says)
			}
			if stdout.Len() > 0 {
				t.Errorf("stdout has %q", stdout.String())
			}
			if _, err := os.Stat(dir); err == nil {
				t.Error("the data directory was made")
			}
		})
	}
}

// TestEnvironment: every flag has a variable, and it is named when it is at
// fault.
func TestEnvironment(t *testing.T) {
	t.Setenv("HIGHWATER_TTL", "soon")
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"acquire", "a"}, &stdout, &stderr); code != exitUsage {
		t.Errorf("exit code %d, want %d", code, exitUsage)
	}
	if !strings.Contains(stderr.String(), "HIGHWATER_TTL") {
		t.Errorf("it says: %s", stderr.String())
	}
}
