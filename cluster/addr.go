package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// checkAdvertised refuses an address that others cannot dial: a wildcard, port
// 0, or a loopback address while one of others (host:port each) is not on
// loopback (C46). flag is named in the error.
func checkAdvertised(flag, addr string, others []string) error {
	host, err := splitAddr(addr)
	if err != nil {
		return fmt.Errorf("%s: %q: %w", flag, addr, err)
	}
	if !isLoopback(host) {
		return nil
	}
	for _, other := range others {
		otherHost, err := splitAddr(other)
		if err != nil {
			return fmt.Errorf("%s: %q: %w", flag, other, err)
		}
		if !isLoopback(otherHost) {
			return fmt.Errorf("%s: %q is a loopback address, and %s on another machine cannot dial it; give a name or address that all nodes can dial", flag, addr, other)
		}
	}
	return nil
}

// splitAddr returns the host of a host:port that a node can be dialled at.
func splitAddr(addr string) (host string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", errors.New("must be host:port")
	}
	if p, err := strconv.ParseUint(port, 10, 16); err != nil || p == 0 || port[0] == '0' {
		return "", fmt.Errorf("the port must be a number from 1 to 65535, not %q", port)
	}
	if host == "" {
		return "", errors.New("the host is missing")
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Unmap().WithZone("").IsUnspecified() {
			return "", fmt.Errorf("%s is a wildcard that nobody can dial; give a name or address that all nodes can dial", host)
		}
		return host, nil
	}
	if !validHost(host) {
		return "", fmt.Errorf("the host must be an IP address or a name of letters, digits, '-', '_' and '.', not %q", host)
	}
	return host, nil
}

// validHost takes what resolvers take, underscores included. A last label of
// digits only is refused: resolvers read "0" or "127.1" as IPv4 addresses.
func validHost(host string) bool {
	host = strings.TrimSuffix(host, ".")
	if len(host) == 0 || len(host) > 253 {
		return false
	}
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if !validNodeID(label) { // the same letters and length
			return false
		}
	}
	return strings.Trim(labels[len(labels)-1], "0123456789") != ""
}

func isLoopback(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().IsLoopback()
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}
