package main

import (
	"fmt"
	"io"
	"runtime/debug"
)

// releaseVersion is set by the linker for released binaries.
var releaseVersion string

// buildVersion is the released version, or the one that the Go toolchain
// derived from the module or the checkout.
func buildVersion() string {
	if releaseVersion != "" {
		return releaseVersion
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

type version struct {
	printFlags
}

// Run prints the version.
func (v *version) Run(out *streams) error {
	return out.print(map[string]string{"version": buildVersion()}, func(w io.Writer) {
		fmt.Fprintln(w, "highwater", buildVersion())
	})
}
