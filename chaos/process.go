//go:build unix

package chaos

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
)

// Process is a child of this process. Its signals can reach no other: package
// os sends none after the child was waited for.
type Process struct {
	cmd    *exec.Cmd
	done   chan struct{}
	paused atomic.Bool
}

// spawn starts every child from one locked thread: the request to be killed
// with the parent (Pdeathsig) is bound to the thread that made the child.
var spawn = sync.OnceValue(func() chan func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// StartProcess runs a program. What it prints is appended to the file at
// logPath.
func StartProcess(binary, logPath string, args ...string) (*Process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = dieWithParent()
	started := make(chan error)
	spawn() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	return p, nil
}

// Signal sends a signal; to an ended process it sends nothing, which is no
// error.
func (p *Process) Signal(s syscall.Signal) error {
	err := p.cmd.Process.Signal(s)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("signal %v to process %d: %w", s, p.cmd.Process.Pid, err)
	}
	switch s {
	case syscall.SIGSTOP:
		p.paused.Store(true)
	case syscall.SIGCONT:
		p.paused.Store(false)
	}
	return nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running says whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Paused says whether the process was stopped by Signal(SIGSTOP).
func (p *Process) Paused() bool { return p.paused.Load() }

// Pid is the process ID.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// ExitCode is the exit code of an ended process, -1 if a signal ended it. It
// is only for use after Done.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }
