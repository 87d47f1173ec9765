//go:build unix && !linux

package chaos

import "syscall"

// dieWithParent is known to Linux only.
func dieWithParent() *syscall.SysProcAttr { return nil }
