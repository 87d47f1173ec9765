package cluster

import (
	"strings"
	"testing"
)

func TestC46UndiallableAddressesAreRefused(t *testing.T) {
	far := []string{"10.0.0.2:8401", "n3.example.org:8401"}
	near := []string{"127.0.0.2:8401", "localhost:8411", "[::1]:8421"}
	for _, tt := range []struct {
		addr   string
		others []string
		want   string // empty: accepted
	}{
		{"10.0.0.1:8401", far, ""},
		{"n1:8401", far, ""},
		{"node_1.example.org.:8401", far, ""},
		{"[2001:db8::1]:8401", far, ""},
		{"[fe80::1%eth0]:8401", far, ""},
		{"127.0.0.1:8401", near, ""},
		{"localhost:8401", near, ""},
		{"127.0.0.1:8401", nil, ""},
		{"0.0.0.0:8401", near, "wildcard"},
		{"[::]:8401", far, "wildcard"},
		{"[::%eth0]:8401", far, "wildcard"},
		{"[::ffff:0.0.0.0]:8401", far, "wildcard"},
		{":8401", far, "host is missing"},
		{"10.0.0.1:0", far, "from 1 to 65535"},
		{"10.0.0.1:", far, "from 1 to 65535"},
		{"10.0.0.1:65536", far, "from 1 to 65535"},
		{"10.0.0.1:http", far, "from 1 to 65535"},
		{"10.0.0.1:+1", far, "from 1 to 65535"},
		{"10.0.0.1:08401", far, "from 1 to 65535"},
		{"10.0.0.1", far, "host:port"},
		{"::1:8401", near, "host:port"},
		{"", far, "host:port"},
		{"0:8401", far, "the host must be"},
		{"127.1:8401", far, "the host must be"},
		{"n1 :8401", far, "the host must be"},
		{"n1@n2:8401", far, "the host must be"},
		{"n1..x:8401", far, "the host must be"},
		{"*:8401", far, "the host must be"},
		{"127.0.0.1:8401", far, "loopback"},
		{"127.9.9.9:8401", far, "loopback"},
		{"[::1]:8401", far, "loopback"},
		{"[::ffff:127.0.0.1]:8401", far, "loopback"},
		{"localhost:8401", far, "loopback"},
		{"LocalHost.:8401", far, "loopback"},
	} {
		err := checkAdvertised("--cluster-advertise", tt.addr, tt.others)
		if tt.want == "" {
			if err != nil {
				t.Errorf("%q among %q: %v", tt.addr, tt.others, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%q among %q is accepted", tt.addr, tt.others)
			continue
		}
		for _, part := range []string{"--cluster-advertise", tt.want} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: error %q lacks %q", tt.addr, err, part)
			}
		}
	}
}

func TestInitialClusterIsParsed(t *testing.T) {
	got, err := parseInitialCluster("n2=b:8401,n1=a:8401")
	if err != nil || len(got) != 2 || got[0] != (member{ID: "n2", ClusterAddr: "b:8401"}) || got[1] != (member{ID: "n1", ClusterAddr: "a:8401"}) {
		t.Fatalf("got %v, %v", got, err)
	}
	if _, err := parseInitialCluster("n1=127.0.0.1:8401,n2=127.0.0.1:8411,n3=localhost:8421"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ list, want string }{
		{"", "not NODE=HOST:PORT"},
		{"n1", "not NODE=HOST:PORT"},
		{"n1=a:8401,", "not NODE=HOST:PORT"},
		{"n1=a:8401,,n2=b:8401", "not NODE=HOST:PORT"},
		{"=a:8401", "node ID"},
		{"n 1=a:8401", "node ID"},
		{"n.1=a:8401", "node ID"},
		{"n1=a", "host:port"},
		{"n1=a:0", "from 1 to 65535"},
		{"n1=0.0.0.0:8401", "wildcard"},
		{"n1=a=b:8401", "the host must be"},
		{"n1=a:8401,n1=b:8401", "n1 is listed twice"},
		{"n1=a:8401,n2=a:8401", "a:8401 is listed twice"},
		{"n1=127.0.0.1:8401,n2=b:8401", "loopback"},
		{strings.Repeat("n=a:1,", 31) + "n=a:1", "at most 31"},
	} {
		_, err := parseInitialCluster(tt.list)
		wantError(t, err, "--initial-cluster", tt.want)
	}
}

func FuzzInitialCluster(f *testing.F) {
	f.Add("n1=a:8401,n2=b:8402")
	f.Add("n1=[::1]:1")
	f.Fuzz(func(t *testing.T, s string) {
		members, err := parseInitialCluster(s)
		if err != nil {
			return
		}
		again, err := parseInitialCluster(formatMembers(members))
		if err != nil || !sameList(members, again) {
			t.Fatalf("%q reads as %v, and written out as %v (%v)", s, members, again, err)
		}
	})
}
