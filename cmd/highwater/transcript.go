package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/highwater/highwater/lease"
)

// transcript prints what to try. Every command can be copied as it stands: the
// tokens are those that the cluster grants next, and the binary is called as it
// was called here. What "go run" made is gone when it ends, so its binary is
// built first.
func (c *DevCluster) transcript(w io.Writer) {
	first, other := c.members[0].URL, c.members[len(c.members)-1].URL
	next := lease.Token(c.nodes[0].cluster.Status().LastToken) + 1
	command, build := os.Args[0], false
	if madeByGoRun(command) {
		command, build = "./highwater", true
	}
	err := devTranscript.Execute(w, map[string]any{
		"Command": command, "Build": build,
		"Members": c.members, "DataDir": c.dataDir, "Temporary": c.temporary,
		"Any": first, "Other": other,
		"First": next, "Second": next + 1,
		// Names that an earlier try, on the same data, has not acquired.
		"Name": fmt.Sprintf("invoices/%d", next+41), "OtherName": fmt.Sprintf("invoices/%d", next+42),
		"Endpoints": strings.Join(c.endpoints(), ","),
		"Initial":   initialCluster(c.members),
	})
	if err != nil {
		fmt.Fprintln(w, err)
	}
}

// madeByGoRun says whether the go command made this binary for one run, in
// its temporary folder go-build…/b001/exe.
func madeByGoRun(path string) bool {
	exe := filepath.Dir(path)
	return filepath.Base(exe) == "exe" && strings.HasPrefix(filepath.Base(filepath.Dir(filepath.Dir(exe))), "go-build")
}

// devTranscript: commands are indented by four spaces and nothing else is; the
// tests run them.
var devTranscript = template.Must(template.New("dev").Parse(`Highwater is ready, {{len .Members}} node{{if gt (len .Members) 1}}s{{end}} in this process.

{{range .Members}}  {{.ID}}  {{.URL}}
{{end}}
Data: {{.DataDir}}{{if .Temporary}} (removed at the end){{end}}. Press Ctrl-C to stop.

Try, in another terminal. worker-A acquires a lease; its token is {{.First}}:

    curl -s {{.Any}}/v1/leases/{{.Name}} -d '{"holder":"worker-A","ttl_ms":60000}'

worker-B asks another node for the same lease and gets 409, lease-held:

    curl -s {{.Other}}/v1/leases/{{.Name}} -d '{"holder":"worker-B"}'

worker-A releases, and worker-B acquires with a larger token, {{.Second}}:

    curl -s -X DELETE '{{.Any}}/v1/leases/{{.Name}}?token={{.First}}'
    curl -s {{.Other}}/v1/leases/{{.Name}} -d '{"holder":"worker-B","ttl_ms":5000}'

Had worker-A slept through this and woken up, it could not renew any more, 410:

    curl -s -X PUT {{.Any}}/v1/leases/{{.Name}} -d '{"token":{{.First}}}'

The same from the command line:
{{if .Build}}
    go build -o {{.Command}} ./cmd/highwater{{end}}
    export HIGHWATER_ENDPOINTS={{.Endpoints}}
    TOKEN=$({{$.Command}} acquire {{.OtherName}} --holder worker-A --ttl 30s)
    {{$.Command}} list
    {{$.Command}} token $TOKEN
    {{$.Command}} release {{.OtherName}} --token $TOKEN
    {{$.Command}} next orders --count 3
    {{$.Command}} status
{{if gt (len .Members) 1}}
These nodes share one process. To kill a leader, stop this cluster and start
nodes that have processes of their own:

{{$initial := .Initial}}{{range .Members}}    {{$.Command}} serve --node-id {{.ID}} --data-dir ./{{.ID}} --http-addr {{.HTTPAddr}} --cluster-addr {{.ClusterAddr}} --initial-cluster {{$initial}} &
{{end}}
A moment later the status says which node leads. End that one, with kill -9 %2 if
it is the shell's second job, and acquire again: another leads within a second,
no lease is lost, and the tokens go on rising.

    {{$.Command}} status
    {{$.Command}} acquire {{.Name}}
{{end}}`))
