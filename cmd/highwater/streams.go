package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"

	"github.com/highwater/highwater/httpapi/wire"
	"github.com/highwater/highwater/lease"
)

// streams is where a command prints: results to Out, words for people to Err.
type streams struct {
	Out, Err io.Writer
	// JSON asks for one JSON value instead of text.
	JSON bool
}

// printFlags is embedded by every command that prints a result.
type printFlags struct {
	JSON bool `name:"json" help:"Print JSON; errors too, as problem details on stderr."`
}

// AfterApply is called by kong before the command runs.
func (p printFlags) AfterApply(out *streams) error {
	out.JSON = p.JSON
	return nil
}

// print writes a result: value as JSON, or what text writes.
func (s *streams) print(value any, text func(io.Writer)) error {
	if s.JSON {
		return lost(writeJSON(s.Out, value))
	}
	out := bufio.NewWriter(s.Out) // keeps the first error
	text(out)
	return lost(out.Flush())
}

// lost is for a result that nobody got: it must not look like success.
func lost(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the result could not be printed: %w", err)
}

// note writes words for people, which --json leaves out.
func (s *streams) note(format string, args ...any) {
	if !s.JSON {
		fmt.Fprintf(s.Err, format+"\n", args...)
	}
}

// fail says why a command failed.
func (s *streams) fail(err error) {
	var known *lease.Error
	if s.JSON && errors.As(err, &known) {
		writeJSON(s.Err, wire.FromError(known))
		return
	}
	fmt.Fprintf(s.Err, "highwater: %s\n", explain(err))
}

// misused says what is wrong with a command line.
func (s *streams) misused(err error, command string) {
	if !s.JSON {
		fmt.Fprintf(s.Err, "highwater: %s\nSee \"highwater %s--help\".\n", explain(err), command)
		return
	}
	var known *lease.Error
	if !errors.As(err, &known) {
		known = lease.BadRequest("", "%v", err)
	}
	writeJSON(s.Err, wire.FromError(known))
}

// explain is an error for people, with its members and a hint.
func explain(err error) string {
	var known *lease.Error
	if !errors.As(err, &known) {
		return err.Error()
	}
	switch known.Code {
	case lease.CodeBadRequest:
		return known.Field + ": " + known.Detail
	case lease.CodeLeaseHeld:
		return fmt.Sprintf("held by %s with token %d for another %v",
			known.Holder, known.CurrentToken, known.Remaining)
	case lease.CodeOutcomeUnknown:
		return err.Error() + "\nIt may have been applied, or may yet be; look before you send it again."
	default:
		return err.Error()
	}
}

func writeJSON(w io.Writer, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}
