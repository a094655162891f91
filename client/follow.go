package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-dev/holdfast"
)

// maxBreaks bounds how often in a row a stream may break without a byte.
const maxBreaks = 10

// InterruptedError says that a stream of output ended early, and from which
// offsets another call can go on.
type InterruptedError struct {
	StdoutOffset int64 // bytes; also of a console
	StderrOffset int64 // bytes
	Last         error
}

// Error says how far the stream came.
func (e *InterruptedError) Error() string {
	return fmt.Sprintf("output interrupted at stdout offset %d, stderr offset %d: %v", e.StdoutOffset, e.StderrOffset, e.Last)
}

// Unwrap returns what ended the stream.
func (e *InterruptedError) Unwrap() error { return e.Last }

// follower yields a stream once, however often it has to be opened again.
type follower struct {
	client         *Client
	yield          func(holdfast.OutputChunk) error
	stdout, stderr int64 // the offsets to go on from
	progress, any  bool  // whether a byte came from this connection, and from any
	refused        error // what yield said
}

// run opens a stream from the follower's offsets until it ends well, or breaks
// too often.
func (f *follower) run(ctx context.Context, open func(ctx context.Context, take func(holdfast.OutputChunk) error) error) error {
	for breaks := 1; ; breaks++ {
		f.progress = false
		err := open(ctx, f.take)
		switch {
		case err == nil:
			return nil
		case f.refused != nil:
			return f.refused
		}
		if f.progress {
			breaks = 1
		}
		interrupted := &InterruptedError{StdoutOffset: f.stdout, StderrOffset: f.stderr, Last: err}
		if !broken(err) {
			if !f.any {
				return err // refused before anything came
			}
			return interrupted
		}
		if breaks >= maxBreaks || ctx.Err() != nil || !sleep(ctx, wait(breaks, f.client.settings.random(), 0)) {
			return interrupted
		}
	}
}

// take yields what was not yielded before.
func (f *follower) take(c holdfast.OutputChunk) error {
	at := &f.stdout
	if c.Stream == holdfast.Stderr {
		at = &f.stderr
	}
	if known := *at - c.Offset; known > 0 {
		if known >= int64(len(c.Data)) {
			return nil
		}
		c.Data, c.Offset = c.Data[known:], *at
	}
	if err := f.yield(c); err != nil {
		f.refused = err
		return err
	}
	f.progress, f.any = true, true
	*at = c.Offset + int64(len(c.Data))
	return nil
}

// broken reports whether opening the stream again can help.
func broken(err error) bool {
	var e *holdfast.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case holdfast.Unavailable, holdfast.DeadlineExceeded, holdfast.Cancelled:
		return true
	}
	return false
}
