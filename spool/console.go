package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/holdfast-dev/holdfast"
)

// ConsoleFile is the console of one boot: a plain file to which the runtime
// driver appends what PID 1 writes. Of a longer one the last MaxConsole bytes
// can be read.
type ConsoleFile struct {
	Path     string      // its directory is trusted, what is at the path is not
	Notifier *Notifier   // optional
	Ended    func() bool // reports that nothing more will be written; nil: never
}

// Console streams DIR/console; see ConsoleFile.Stream. A nil ended means that
// Options.Alive decides.
func (r *Reader) Console(ctx context.Context, offset int64, follow bool, ended func() bool, yield func(holdfast.OutputChunk) error) error {
	if ended == nil {
		ended = func() bool { return !r.alive() }
	}
	c := ConsoleFile{Path: filepath.Join(r.dir, consoleName), Notifier: r.options.Notifier, Ended: ended}
	return c.Stream(ctx, offset, follow, yield)
}

// Stream yields the console from offset; with follow until it ended. A missing
// file is an empty console, and an offset beyond what there is OUT_OF_RANGE.
func (c ConsoleFile) Stream(ctx context.Context, offset int64, follow bool, yield func(holdfast.OutputChunk) error) (err error) {
	if offset < 0 {
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "offset is negative").With("field", "offset")
	}
	var woken *subscription
	if follow {
		woken = c.Notifier.subscribe(filepath.Dir(c.Path))
		defer woken.close()
	}
	var file *os.File
	defer func() {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	for first := true; ; first = false {
		ended := !follow || c.Ended != nil && c.Ended()
		if file == nil {
			if file, err = c.open(); err != nil {
				return err
			}
		}
		if offset, err = c.pass(ctx, file, offset, yield); err != nil {
			if first || holdfast.CodeOf(err) != holdfast.OutOfRange {
				return err
			}
			return nil // the driver began a new file: this console is over
		}
		if ended {
			return nil
		}
		if err := woken.wait(ctx); err != nil {
			return holdfast.AsError(err)
		}
	}
}

// open returns nil where there is no console yet.
func (c ConsoleFile) open() (file *os.File, err error) {
	dir, err := os.Open(filepath.Dir(c.Path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("spool: open the console: %w", err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	file, err = openRegular(dir, filepath.Base(c.Path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("spool: open the console: %w", err)
	}
	return file, nil
}

// pass yields what is there now and returns the next offset.
func (c ConsoleFile) pass(ctx context.Context, file *os.File, offset int64, yield func(holdfast.OutputChunk) error) (int64, error) {
	size := int64(0)
	if file != nil {
		st, err := file.Stat()
		if err != nil {
			return offset, fmt.Errorf("spool: read the console: %w", err)
		}
		size = st.Size()
	}
	if offset > size {
		return offset, holdfast.E(holdfast.OutOfRange, holdfast.ReasonBadField, "offset is %d, but only %d bytes were written", offset, size).With("field", "offset")
	}
	offset = max(offset, size-MaxConsole)
	for offset < size {
		if err := ctx.Err(); err != nil {
			return offset, holdfast.AsError(err)
		}
		data := make([]byte, min(MaxChunk, size-offset))
		n, err := file.ReadAt(data, offset)
		if n == 0 {
			if err == nil || errors.Is(err, io.EOF) {
				return offset, nil
			}
			return offset, fmt.Errorf("spool: read the console: %w", err)
		}
		if err := yield(holdfast.OutputChunk{Stream: holdfast.Console, Offset: offset, Data: data[:n]}); err != nil {
			return offset, err
		}
		offset += int64(n)
	}
	return offset, nil
}

// Tail returns the last max bytes of the console, for a failure's message.
func (c ConsoleFile) Tail(max int) (tail []byte, err error) {
	file, err := c.open()
	if err != nil || file == nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	st, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("spool: read the console: %w", err)
	}
	from := st.Size() - int64(max)
	if from < 0 {
		from = 0
	}
	tail, err = io.ReadAll(io.NewSectionReader(file, from, int64(max)))
	if err != nil {
		return nil, fmt.Errorf("spool: read the console: %w", err)
	}
	return tail, nil
}
