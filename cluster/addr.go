package cluster

// checkAdvertised refuses an address that others cannot dial: a wildcard, port
// 0, or a loopback address while others (host:port each) are not on loopback.
// flag is named in the error.
func checkAdvertised(flag, addr string, others []string) error { return nil }
