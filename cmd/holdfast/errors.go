package main

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// The exit codes. exec and wait exit with the remote code instead.
const (
	exitOther      = 1
	exitUsage      = 2
	exitNotFound   = 3
	exitConflict   = 4
	exitIncomplete = 5
)

// usageError is a command line that cannot be meant.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// exitError ends with a code, when everything was said already.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// hintError is an error with what to do next.
type hintError struct {
	err  error
	next string
}

func (e hintError) Error() string { return e.err.Error() }
func (e hintError) Unwrap() error { return e.err }

// exitCode finds the exit code for an error.
func exitCode(err error) int {
	var incomplete *client.IncompleteError
	var interrupted *client.InterruptedError
	var e *holdfast.Error
	switch {
	case errors.As(err, &usageError{}):
		return exitUsage
	case errors.As(err, &incomplete), errors.As(err, &interrupted):
		return exitIncomplete
	case !errors.As(err, &e):
		return exitOther
	}
	switch e.Code {
	case holdfast.InvalidArgument:
		return exitUsage
	case holdfast.NotFound:
		return exitNotFound
	case holdfast.Aborted, holdfast.AlreadyExists:
		return exitConflict
	case holdfast.FailedPrecondition:
		if e.Reason == holdfast.ReasonGeneration {
			return exitConflict
		}
	}
	return exitOther
}

// explain says what happened in one line, and what to do next in another.
func (a *app) explain(err error) (message, next string) {
	message = oneLine(err.Error())
	var hint hintError
	var incomplete *client.IncompleteError
	var e *holdfast.Error
	switch {
	case errors.As(err, &hint):
		return message, oneLine(hint.next)
	case errors.As(err, &usageError{}):
		return message, "see holdfast --help, or --help of the command"
	case errors.As(err, &incomplete):
		return message, repeatHint(incomplete)
	case !errors.As(err, &e):
		return message, ""
	}
	return fmt.Sprintf("%s (%s %s)", message, e.Code, e.Reason), oneLine(a.hint(e))
}

// repeatHint says how what was given up is gone on with.
func repeatHint(e *client.IncompleteError) string {
	if e.RequestID == "" {
		return "it may have happened: run the same command again"
	}
	return "it may have happened: run the same command again with --request-id " + e.RequestID
}

// hint says what to do about an error of the API (contract: A8).
func (a *app) hint(e *holdfast.Error) string {
	if text, ok := hostHint(e); ok {
		return text
	}
	look := "look at the sandbox: holdfast sandbox get " + orWord(e.Resource, "ID")
	switch e.Reason {
	case holdfast.ReasonNoSuchFile, holdfast.ReasonNotAFile, holdfast.ReasonNotADirectory, holdfast.ReasonFileExists, holdfast.ReasonNotEmpty:
		return "list the directory: holdfast sandbox ls ID PATH"
	case holdfast.ReasonNoSuchCommand:
		return "correct the command, or use an environment that has it"
	case holdfast.ReasonNoSuchImage:
		return `use "base" or "debian", which always exist, or an environment: holdfast env list`
	case holdfast.ReasonCreateFailed:
		return "see why: holdfast sandbox logs " + orWord(e.Resource, "ID") + "; then create another"
	case holdfast.ReasonQuota:
		return "delete what is not needed (holdfast sandbox list), or ask an admin for more: holdfast project quota " + orWord(e.Resource, "PROJECT")
	case holdfast.ReasonNotAdmin:
		return "give an admin's key with --api-key or HOLDFAST_API_KEY"
	case holdfast.ReasonNameTaken:
		return "use another name, or change what there is: holdfast project quota " + orWord(e.Resource, "PROJECT") + differing(e)
	}
	switch e.Code {
	case holdfast.NotFound:
		if e.Details["environment"] != "" {
			return "list what there is: holdfast env list"
		}
		return "list what there is: " + listing(e.Resource)
	case holdfast.Unauthenticated, holdfast.PermissionDenied:
		return "give a key with --api-key or HOLDFAST_API_KEY, or run this where " + a.adminKeyFile() + " can be read"
	case holdfast.Unavailable, holdfast.DeadlineExceeded:
		return "is the server running at " + a.settings.server + "? holdfast serve starts one; then run this again"
	case holdfast.AlreadyExists:
		return "repeat the input that the request id was first used with, or use another --request-id for another sandbox" + differing(e)
	case holdfast.Aborted:
		return look + "; run this again when its operation has ended"
	case holdfast.ResourceExhausted:
		return "make room, or ask for less, then run this again"
	case holdfast.InvalidArgument, holdfast.OutOfRange:
		return "correct " + orWord(e.Details["field"], "the input") + ", then run this again"
	case holdfast.FailedPrecondition:
		return look
	case holdfast.Unimplemented:
		return "see what this server can do: holdfast doctor on its machine, holdfast version here and there"
	case holdfast.Internal:
		return "the server's log says more; please report it"
	}
	return ""
}

// listing is the command that lists what has such ids. What is no id is a
// project's name.
func listing(resource string) string {
	kind, _, _ := strings.Cut(resource, "-")
	_, none := holdfast.BornAt(resource)
	switch {
	case kind == holdfast.PrefixKey:
		return "holdfast key list --all"
	case kind == holdfast.PrefixBuild:
		return "holdfast env builds"
	case kind == holdfast.PrefixProject, resource != "" && none != nil:
		return "holdfast project list"
	}
	return "holdfast sandbox list --all"
}

func differing(e *holdfast.Error) string {
	if fields := e.Details["fields"]; fields != "" {
		return " (different: " + fields + ")"
	}
	return ""
}

func orWord(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// oneLine makes text safe to print in a line: no breaks, no control characters.
func oneLine(text string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)), " ")
}
