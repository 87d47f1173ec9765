// Package pgtest runs a PostgreSQL server for the tests of one package, from the
// binaries that are installed, in a directory of its own and on a Unix socket
// only. A crash of the test binary takes the server with it.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// long is when a test gives up on something that should have happened.
const long = 30 * time.Second

// Server is one server. Its methods fail the test they are given.
type Server struct {
	bin, dir string
	why      string // why there is none
	attr     *syscall.SysProcAttr
	config   []string

	keep io.Closer // closing it ends the server
	done chan struct{}
	next atomic.Int64
}

// Main runs the tests of a package with a server that is started at its first
// use and stopped at the end: func TestMain(m *testing.M) { pgtest.Main(m, &server) }
func Main(m *testing.M, server **Server, config ...string) {
	s, err := create(config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	*server = s
	code := m.Run()
	if s.keep != nil {
		s.Stop()
	}
	if s.dir != "" {
		os.RemoveAll(s.dir)
	}
	os.Exit(code)
}

func create(config []string) (*Server, error) {
	s := &Server{config: config}
	if s.bin = binaries(); s.bin == "" {
		s.why = "no PostgreSQL server is installed: neither initdb on PATH nor /usr/lib/postgresql/*/bin"
		return s, nil
	}
	var err error
	// Not the test's own directory: a socket's path has at most 107 bytes.
	if s.dir, err = os.MkdirTemp("", "hwpg"); err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 { // initdb and postgres refuse to run as root
		uid, gid, err := unprivileged()
		if err != nil {
			return nil, err
		}
		if err := os.Chown(s.dir, uid, gid); err != nil {
			return nil, err
		}
		s.attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	if err := s.run("initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"); err != nil {
		return nil, err
	}
	return s, s.start()
}

// binaries is the directory of the newest server installed, or empty.
func binaries() string {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path)
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		return n
	}
	slices.SortFunc(found, func(a, b string) int { return version(a) - version(b) })
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[len(found)-1])
}

func unprivileged() (uid, gid int, err error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil {
			return 0, 0, err
		}
		gid, err := strconv.Atoi(u.Gid)
		return uid, gid, err
	}
	return 0, 0, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody")
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = s.attr
	return cmd
}

func (s *Server) run(name string, args ...string) error {
	out, err := s.command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// Run runs one of PostgreSQL's own programs against the server and returns what
// it printed.
func (s *Server) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	return s.client(t, nil, name, args...)
}

// Feed runs a program, or sh, with a file as its standard input.
func (s *Server) Feed(t testing.TB, file string, command ...string) string {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	return s.client(t, in, command[0], command[1:]...)
}

func (s *Server) client(t testing.TB, in io.Reader, name string, args ...string) string {
	t.Helper()
	s.need(t)
	cmd := s.command(name, args...)
	if name == "sh" {
		cmd = exec.Command(name, args...)
	}
	cmd.Env = append(os.Environ(), "PATH="+s.bin+":"+os.Getenv("PATH"), "PGHOST="+s.dir, "PGPORT=5432", "PGUSER=postgres", "LC_ALL=C")
	cmd.Stdin = in
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s%s", name, args, err, out, &stderr)
	}
	return string(out)
}

// start starts the server below a shell that ends it when its standard input
// is closed, which the end of this process does.
func (s *Server) start() error {
	args := []string{filepath.Join(s.bin, "postgres"), "-D", s.data(), "-k", s.dir, "-c", "listen_addresses=", "-c", "fsync=on",
		"-c", "max_prepared_transactions=10", "-c", "wal_level=logical", "-c", "deadlock_timeout=50ms",
		"-c", "checkpoint_timeout=1h", "-c", "max_wal_size=4GB"}
	for _, c := range s.config {
		args = append(args, "-c", c)
	}
	cmd := exec.Command("/bin/sh", append([]string{"-c", `"$@" 2>>log & pid=$!
		(cat; kill -INT $pid) <&3 & killer=$!
		wait $pid; kill $killer`, "sh"}, args...)...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = s.attr
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.ExtraFiles = []*os.File{r}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.Close()
	s.keep, s.done = w, make(chan struct{})
	go func() { cmd.Wait(); close(s.done) }()

	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.url("postgres", "postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.done:
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("the server did not start: %w\n%s", err, log)
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the server in order: open transactions are rolled back, all is
// written.
func (s *Server) Stop() {
	s.keep.Close()
	<-s.done
}

// Restart stops the server in order and starts it again.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.need(t)
	s.Stop()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// Crash kills the server with SIGKILL, all its processes, and starts it again.
func (s *Server) Crash(t testing.TB) {
	t.Helper()
	s.need(t)
	pidfile, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(pidfile), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.done
	s.keep.Close()
	// Its children see that it is gone and end; a new server refuses to start
	// before the last of them has let go of the shared memory.
	stop := time.Now().Add(long)
	for err = s.start(); err != nil && time.Now().Before(stop); err = s.start() {
		<-s.done
	}
	if err != nil {
		t.Fatal(err)
	}
}

// need skips a test that has no server, and fails it in CI.
func (s *Server) need(t testing.TB) {
	t.Helper()
	if s.why == "" {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal(s.why)
	}
	t.Skip(s.why)
}

func (s *Server) url(role, database string) string {
	return fmt.Sprintf("host=%s port=5432 user=%s dbname=%s sslmode=disable", s.dir, role, database)
}

// Database makes a database of the test's own, as a copy of template if that is
// not empty, and returns its name. It goes with the server: to drop it would cost
// a checkpoint.
func (s *Server) Database(t testing.TB, template string) string {
	t.Helper()
	s.need(t)
	name := fmt.Sprintf("test_%d", s.next.Add(1))
	if template == "" {
		template = "template1"
	}
	admin := s.Connect(t, "postgres", "postgres")
	s.exec(t, admin, "create database "+name+" template "+template)
	return name
}

func (s *Server) exec(t testing.TB, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// URL is what to connect to a database with.
func (s *Server) URL(t testing.TB, role, database string) string {
	s.need(t)
	return s.url(role, database)
}

// Connect connects as a role; the connection is closed when the test ends.
func (s *Server) Connect(t testing.TB, role, database string) *pgx.Conn {
	t.Helper()
	s.need(t)
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url(role, database))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}
