package guestagent

import (
	"context"
	"io"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// Executor runs commands: the system's, or a simulation of a few.
type Executor interface {
	// Start starts c. What cannot be started is FAILED_PRECONDITION, reason
	// NO_SUCH_COMMAND, and then neither Stdout nor Stderr is closed.
	Start(c Command) (Child, error)
	// Close starts nothing more, asks all processes to end, and kills what is
	// left after grace.
	Close(grace time.Duration) error
}

// Command is what an Executor starts.
type Command struct {
	Name     string   // a path, or a name that is looked up in Env's PATH
	Args     []string // without the name
	Env      []string // all of it: nothing is inherited
	Dir      string
	User     *identity              // nil: as the agent
	Terminal *holdfast.TerminalSize // nil: pipes
	Stdin    bool                   // keep standard input open; a terminal's always is
	// Stdout and Stderr take what is written, and are closed once nothing can
	// write any more: after the end of the process where it left children that
	// hold them open. A terminal writes to Stdout alone.
	Stdout, Stderr io.WriteCloser
}

// Child is a started command.
type Child interface {
	PID() int
	// Wait returns the exit code, 128 + the signal's number where one ended it,
	// once all that the process itself wrote was given to Stdout and Stderr. It
	// does not wait for children that go on writing. It is called once.
	Wait() int
	// WriteInput writes until all is taken, ctx ends or the process does, and
	// returns how much was taken. Calls must not overlap.
	WriteInput(ctx context.Context, data []byte) (int, error)
	CloseInput() error
	Signal(name string) error // "TERM"; to its process group
	Resize(size holdfast.TerminalSize) error
}

func noSuchCommand(format string, args ...any) *holdfast.Error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNoSuchCommand, format, args...)
}

func ended() *holdfast.Error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonEnded, "the process has ended")
}

func noTerminal() *holdfast.Error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "the process has no terminal; start it with one")
}
