package chaos

import "syscall"

// dieWithParent has the kernel kill a child whose parent ended without killing
// it, so that a test that is cut off leaves nothing behind.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
