package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// output writes what a process prints, and remembers how far that came.
type output struct {
	*app
	stdout, stderr int64 // offsets of the next bytes
	unwritten      error
}

// take writes one chunk: as it is for people, as a record for programs.
func (o *output) take(c holdfast.OutputChunk) error {
	if o.app.output == "json" {
		o.unwritten = o.record("output", c)
	} else if c.Stream == holdfast.Stderr {
		o.unwritten = write(o.err, c.Data)
	} else {
		o.unwritten = write(o.out, c.Data)
	}
	if c.Stream == holdfast.Stderr {
		o.stderr = c.Offset + int64(len(c.Data))
	} else {
		o.stdout = c.Offset + int64(len(c.Data))
	}
	return o.unwritten
}

// finish says how the process ended, by the exit code too.
func (o *output) finish(p holdfast.Process) error {
	if o.app.output == "json" {
		if err := o.record("finished", p); err != nil {
			return err
		}
	}
	switch {
	case p.Lost:
		return hintError{fmt.Errorf("process %s ended with its instance: no exit code is known", p.ID), "look at the sandbox: holdfast sandbox list"}
	case p.State != holdfast.ProcessExited:
		return fmt.Errorf("the output ended, but process %s is %s", p.ID, p.State)
	case p.ExitCode != 0:
		return exitError{p.ExitCode}
	}
	return nil
}

// interrupted says how to go on following a process that runs on.
func (o *output) interrupted(err error, sandbox holdfast.SandboxID, id holdfast.ProcessID) error {
	if o.unwritten != nil {
		return err
	}
	var known *client.InterruptedError
	if !errors.As(err, &known) {
		err = &client.InterruptedError{StdoutOffset: o.stdout, StderrOffset: o.stderr, Last: err}
	}
	if o.app.output == "json" {
		if failed := o.interruptedRecord(err, id); failed != nil {
			return errors.Join(err, failed)
		}
	}
	return hintError{err, fmt.Sprintf("the process may run on: holdfast sandbox wait %s %s --stdout-offset %d --stderr-offset %d", sandbox, id, o.stdout, o.stderr)}
}

func (o *output) interruptedRecord(err error, id holdfast.ProcessID) error {
	cause, failed := client.JSON(holdfast.AsError(err))
	if failed != nil {
		return failed
	}
	line, failed := json.Marshal(map[string]any{"interrupted": map[string]any{
		"processId": id, "stdoutOffset": fmt.Sprint(o.stdout), "stderrOffset": fmt.Sprint(o.stderr), "error": json.RawMessage(cause),
	}})
	if failed != nil {
		return fmt.Errorf("write the interruption as JSON: %w", failed)
	}
	return write(o.out, append(line, '\n'))
}
