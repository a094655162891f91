package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/holdfast-dev/holdfast"
)

// inputPart bounds what one call writes of standard input, in bytes.
const inputPart = 64 << 10

// ExecIO connects a command to its caller. Every field may be nil.
type ExecIO struct {
	Stdin   io.Reader                        // forwarded until it ends, where the command keeps it open
	Started func(holdfast.Process)           // called once the process exists
	Output  func(holdfast.OutputChunk) error // each part of the output, in order for each stream
}

// Exec starts a command, forwards input and output, and returns the process as
// it ended. Without a request id it mints one, so that a start whose answer was
// lost (an IncompleteError) can be repeated by its caller. When ctx ends the
// command runs on.
//
// A reader that blocks is left to its read when the command ends first.
func (c *Client) Exec(ctx context.Context, sandbox holdfast.SandboxID, in holdfast.StartProcess, streams ExecIO) (holdfast.Process, error) {
	if in.RequestID == "" {
		in.RequestID = NewRequestID()
	}
	process, err := c.StartProcess(ctx, sandbox, in)
	if err != nil {
		return process, err
	}
	if streams.Started != nil {
		streams.Started(process)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if streams.Stdin != nil && in.Stdin {
		go func() {
			if err := c.forward(ctx, sandbox, process.ID, streams.Stdin); err != nil {
				cancel(fmt.Errorf("forward standard input: %w", err))
			}
		}()
	}
	output := streams.Output
	if output == nil {
		output = func(holdfast.OutputChunk) error { return nil }
	}
	ended, err := c.StreamProcessOutput(ctx, sandbox, holdfast.ReadOutput{Process: process.ID, Follow: true}, output)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = errors.Join(err, cause)
		}
		return process, err
	}
	return ended, nil
}

// forward writes a reader to a process's standard input, and closes it at its
// end. Each part carries its offset, so that one whose answer was lost is sent
// again. A process that has ended needs no more input.
func (c *Client) forward(ctx context.Context, sandbox holdfast.SandboxID, id holdfast.ProcessID, from io.Reader) error {
	part := make([]byte, inputPart)
	in := holdfast.ProcessInput{Process: id}
	for {
		n, err := from.Read(part)
		if err != nil && err != io.EOF { //nolint:errorlint // io.Reader's word for the end
			return err
		}
		in.Data, in.Close = part[:n], err != nil
		if sent := c.writeInput(ctx, sandbox, in); sent != nil {
			if ctx.Err() != nil || holdfast.ReasonOf(sent) == holdfast.ReasonEnded {
				return nil // nobody reads it any more
			}
			return sent
		}
		if in.Close {
			return nil
		}
		in.Offset += int64(n)
	}
}

// writeInput writes one part of the input, through broken connections.
func (c *Client) writeInput(ctx context.Context, sandbox holdfast.SandboxID, in holdfast.ProcessInput) error {
	for breaks := 1; ; breaks++ {
		_, err := c.WriteProcessInput(ctx, sandbox, in)
		if err == nil || !broken(err) || breaks >= maxBreaks {
			return err
		}
		if !sleep(ctx, wait(breaks, c.settings.random(), 0)) {
			return err
		}
	}
}
