package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/holdfast-dev/holdfast/client"
)

// showRequestID prints a request id that was made, so that it can be kept
// (contract: A10).
func (a *app) showRequestID(_, id string) { a.note("request-id: " + id) }

// retryNotice shows on a terminal what is waited for; in a pipe it is quiet.
func (a *app) retryNotice() func(client.Retry) {
	if _, ok := terminal(a.err); !ok {
		return func(client.Retry) {}
	}
	return func(r client.Retry) {
		a.note(fmt.Sprintf("waiting %s after attempt %d: %s", r.Wait.Round(10*time.Millisecond), r.Attempt, oneLine(r.Cause.Error())))
	}
}

// note prints a line to standard error. That nobody reads it changes nothing.
func (a *app) note(line string) { _, _ = io.WriteString(a.err, line+"\n") }

// terminal returns the descriptor of a stream that is a terminal.
func terminal(stream any) (int, bool) {
	f, ok := stream.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	return int(f.Fd()), true
}
