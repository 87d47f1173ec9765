package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDevTranscript: what dev prints to try can be copied as it stands, and
// does what is said there; Ctrl-C ends it and leaves nothing behind.
func TestDevTranscript(t *testing.T) {
	highwater := command(t)
	p := start(t, highwater, "dev", "--port", "0")
	var text string
	waitFor(t, "dev says what to try", p, func() bool {
		text = p.output.String()
		return strings.Contains(text, "acquire invoices/42\n")
	})
	printed := strings.Split(text, "\n")
	commands := indented(printed[:indexOf(t, printed, "These nodes share one process")])
	// curl without -f ends with 0 for a refusal as well.
	got, err := exec.Command("sh", "-e", "-c", strings.Join(commands, "\necho\n")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, got)
	}
	rest := string(got)
	for _, want := range []string{
		`"holder":"worker-A","token":1,"ttl_ms":60000`, // worker-A acquires
		`lease-held.*"current_token":1`,                // worker-B does not
		`{"released":true}`,                            // worker-A releases
		`"holder":"worker-B","token":2,"ttl_ms":5000`,  // worker-B acquires
		`lease-lost.*"status":410`,                     // worker-A wakes up
		`acquired invoices/43 as worker-A`,
		`invoices/43 +3 +worker-A`,
		`token 3: current, invoices/43`,
		`released invoices/43`,
		`1\n2\n3\n`,
		`node n1, leader n[123]`,
	} {
		at := regexp.MustCompile(want).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("after what was found before, no match for %s in:\n%s\nall of it:\n%s", want, rest, got)
		}
		rest = rest[at[1]:]
	}

	data := regexp.MustCompile(`Data: (\S+) \(removed at the end\)`).FindStringSubmatch(text)
	if data == nil {
		t.Fatal("the data directory is not named")
	}
	p.signal(t, syscall.SIGINT)
	if code := p.wait(t); code != exitDone {
		t.Errorf("exit code %d, want %d", code, exitDone)
	}
	if _, err := os.Stat(data[1]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left behind", data[1])
	}
	if strings.Contains(p.output.String(), "[ERROR]") {
		t.Error("it ends with errors")
	}

	// The second part, with processes of their own, on the ports that are free
	// again.
	dir := t.TempDir()
	var serves []*process
	rest2 := indented(printed[indexOf(t, printed, "These nodes share one process"):])
	for _, line := range rest2 {
		args := strings.Fields(line)
		if args[1] != "serve" {
			continue
		}
		if args[len(args)-1] != "&" {
			t.Fatalf("a serve in the foreground: %s", line)
		}
		serves = append(serves, startIn(t, dir, args[0], args[1:len(args)-1]...))
	}
	if len(serves) != 3 {
		t.Fatalf("%d serve commands", len(serves))
	}
	export := commands[indexOf(t, commands, "export ")]
	eventuallyRuns := func(line string) string {
		var out []byte
		waitFor(t, line, serves[0], func() bool {
			out, err = exec.Command("sh", "-e", "-c", export+"\n"+line).Output()
			return err == nil
		})
		return string(out)
	}
	eventuallyRuns(rest2[len(rest2)-2])
	if token := eventuallyRuns(rest2[len(rest2)-1]); !regexp.MustCompile(`^[0-9]{10,}\n$`).MatchString(token) {
		t.Errorf("acquire printed %q, want one token above the automatic floor", token)
	}
}

// TestDevKeepsData: with a directory, a cluster is there again, and its
// transcript goes on from where its tokens are.
func TestDevKeepsData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for _, want := range []string{"its token is 1:", "its token is 2:"} {
		var text strings.Builder
		dev := Dev{Nodes: 1, DataDir: dir, LogLevel: "error"}
		if err := dev.Validate(); err != nil {
			t.Fatal(err)
		}
		cluster, err := dev.Start(t.Context(), t.Output())
		if err != nil {
			t.Fatal(err)
		}
		cluster.transcript(&text)
		if !strings.Contains(text.String(), want) || strings.Contains(text.String(), "removed at the end") {
			t.Errorf("want %q, got:\n%s", want, text.String())
		}
		out, err := exec.Command("sh", "-c", indented(strings.Split(text.String(), "\n"))[0]).CombinedOutput()
		if err != nil || !strings.Contains(string(out), `"token":`) {
			t.Errorf("%v: %s", err, out)
		}
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "n1")); err != nil {
		t.Error(err)
	}
}

// indented is the commands of a transcript.
func indented(lines []string) (commands []string) {
	for _, line := range lines {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			commands = append(commands, command)
		}
	}
	return commands
}

func indexOf(t *testing.T, lines []string, prefix string) int {
	t.Helper()
	for i, line := range lines {
		if strings.HasPrefix(line, prefix) {
			return i
		}
	}
	t.Fatalf("no line begins with %q", prefix)
	return -1
}

// waitFor polls until the condition holds, the process ends or a minute is
// over.
func waitFor(t *testing.T, what string, p *process, holds func() bool) {
	t.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	stop := time.After(time.Minute)
	for !holds() {
		select {
		case <-poll.C:
		case <-p.ended:
			t.Fatalf("%s: the process has ended", what)
		case <-stop:
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// What "go run" built is gone when it ends, so the transcript must not name it.
func TestTranscriptKnowsGoRun(t *testing.T) {
	for path, want := range map[string]bool{
		"/tmp/go-build268997251/b001/exe/highwater": true,
		"/usr/local/bin/highwater":                  false,
		"./highwater":                               false,
		"exe/highwater":                             false,
		"highwater":                                 false,
	} {
		if got := madeByGoRun(path); got != want {
			t.Errorf("madeByGoRun(%q) = %t", path, got)
		}
	}
}
