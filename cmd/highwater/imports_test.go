package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/highwater/highwater/"

const (
	raftModule = "github.com/hashicorp/raft"
	muxModule  = "github.com/gorilla/mux"
)

// house says for each package which of ours, and whether raft and mux, it may
// import. Other libraries are free. A package that is not listed belongs to the
// one that it is below; one that is below none may not be.
var house = map[string][]string{
	"lease":        {},
	"fsm":          {"lease", raftModule},
	"cluster":      {"lease", "fsm", raftModule},
	"httpapi":      {"lease", "httpapi/wire", muxModule},
	"httpapi/wire": {"lease"},
	"client":       {"lease", "httpapi/wire"},
	"fence":        {"lease", "httpapi/wire", "client"},
	"chaos":        {"lease", "client", "fence"},
}

// free packages may import every other.
var free = []string{"cmd/highwater"}

// fsmTypes is what the state machine may use of raft: what an FSM is made of.
var fsmTypes = []string{
	"FSM", "FSMSnapshot", "SnapshotSink", "Log", "LogType", "LogCommand", "LogNoop", "LogConfiguration",
}

type listedPackage struct {
	ImportPath, Dir  string
	Imports, GoFiles []string
}

// TestImports holds the packages to the house: who may know whom.
func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if slices.Contains(free, name) {
			continue
		}
		own := room(name)
		allowed, listed := house[own]
		if !listed {
			t.Errorf("package %s is not in the house: say what it may import", name)
			continue
		}
		for _, imported := range p.Imports {
			if other, ok := governed(imported); ok && other != own && !slices.Contains(allowed, other) {
				t.Errorf("package %s must not import %s; it may import %q", name, imported, allowed)
			}
		}
	}
}

// room is the listed package that name is or is below; name if there is none.
func room(name string) string {
	for at := name; at != "."; at = path.Dir(at) {
		if _, listed := house[at]; listed {
			return at
		}
	}
	return name
}

// governed is an import path as the house writes it, if the house has a rule
// for it.
func governed(imported string) (string, bool) {
	if ours, ok := strings.CutPrefix(imported, module); ok {
		return room(ours), true
	}
	for _, m := range []string{raftModule, muxModule} {
		// raft-boltdb and raft-wal are stores for raft, and raft's business.
		if imported == m || strings.HasPrefix(imported, m+"/") || strings.HasPrefix(imported, m+"-") {
			return m, true
		}
	}
	return "", false
}

// TestDeterminism: what every replica must compute alike reads no clock and no
// randomness, does no I/O and starts nothing.
func TestDeterminism(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if name != "lease" && name != "fsm" {
			continue
		}
		for _, file := range p.GoFiles {
			fset := gotoken.NewFileSet()
			parsed, err := parser.ParseFile(fset, filepath.Join(p.Dir, file), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, broken := range determinism(parsed) {
				t.Errorf("%s: %s", fset.Position(broken.at), broken.rule)
			}
		}
	}
}

type violation struct {
	at   gotoken.Pos
	rule string
}

var (
	bannedImports = []string{
		"math/rand", "math/rand/v2", "crypto/rand", "hash/maphash", // randomness
		"os", "os/exec", "net", "net/http", "syscall", "log", "log/slog", // I/O
		"runtime", "unsafe",
	}
	bannedTime = []string{
		"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Local", "LoadLocation",
	}
)

func determinism(file *ast.File) (found []violation) {
	names := map[string]string{} // as the file says it -> import path
	for _, imported := range file.Imports {
		to, _ := strconv.Unquote(imported.Path.Value)
		if slices.Contains(bannedImports, to) {
			found = append(found, violation{imported.Pos(), "must not import " + to})
		}
		name := path.Base(to)
		if imported.Name != nil {
			name = imported.Name.Name
		}
		if name == "." {
			found = append(found, violation{imported.Pos(), "must not import into its own scope"})
		}
		names[name] = to
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, violation{n.Pos(), "must not start a goroutine"})
		case *ast.SelectorExpr:
			of, ok := n.X.(*ast.Ident)
			if !ok {
				break
			}
			switch {
			case names[of.Name] == "time" && slices.Contains(bannedTime, n.Sel.Name):
				found = append(found, violation{n.Pos(), "must not use time." + n.Sel.Name})
			case names[of.Name] == raftModule && !slices.Contains(fsmTypes, n.Sel.Name):
				found = append(found, violation{n.Pos(), "must not use raft." + n.Sel.Name + ": only the FSM's types"})
			}
		}
		return true
	})
	return found
}

// TestDeterminismSeesViolations: the check above finds what it looks for.
func TestDeterminismSeesViolations(t *testing.T) {
	for _, source := range []string{
		`package p; import "time"; var x = time.Now()`,
		`package p; import clock "time"; var now = clock.Now`,
		`package p; import "math/rand/v2"; var x = rand.Int()`,
		`package p; import _ "crypto/rand"`,
		`package p; import . "time"; var x = Now()`,
		`package p; func f() { go f() }`,
		`package p; import "github.com/hashicorp/raft"; var x raft.Raft`,
	} {
		parsed, err := parser.ParseFile(gotoken.NewFileSet(), "p.go", source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(determinism(parsed)) == 0 {
			t.Errorf("not seen: %s", source)
		}
	}
}

func packages(t *testing.T) []listedPackage {
	t.Helper()
	command := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Imports,GoFiles", module+"...")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var listed []listedPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, p)
	}
	if len(listed) < 3 {
		t.Fatalf("go list found only %d packages", len(listed))
	}
	return listed
}
