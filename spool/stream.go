package spool

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// Stream yields a process's output from the given offsets, in chunks of at most
// MaxChunk, in order within a stream, and returns the process as it was before
// the last look. Without Follow it yields what there is. With it, it ends when
// the process ended and all that it wrote was yielded; what its children write
// after that is for a later call. An offset beyond what there is: OUT_OF_RANGE.
// contract: A14
func (r *Reader) Stream(ctx context.Context, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	dir, err := r.openProcess(ctx, in.Process)
	if err != nil {
		return holdfast.Process{}, err
	}
	follower := &follower{reader: r, dir: dir, in: in, yield: yield}
	follower.out = cursor{dir: dir, stream: holdfast.Stdout, offset: in.StdoutOffset}
	follower.err = cursor{dir: dir, stream: holdfast.Stderr, offset: in.StderrOffset}
	p, err := follower.run(ctx)
	return p, errors.Join(err, follower.out.close(), follower.err.close(), dir.Close())
}

type follower struct {
	reader   *Reader
	dir      *os.File
	in       holdfast.ReadOutput
	yield    func(holdfast.OutputChunk) error
	out, err cursor
}

func (f *follower) run(ctx context.Context) (holdfast.Process, error) {
	var woken *subscription
	if f.in.Follow {
		woken = f.reader.options.Notifier.subscribe(filepath.Join(f.reader.dir, string(f.in.Process)))
		defer woken.close()
	}
	for first := true; ; first = false {
		// In this order: what was written before the process ended, or before
		// its instance did, is there when its end is.
		alive := f.reader.alive()
		p, _, err := readProcess(f.dir, f.in.Process, MaxRecord)
		if err != nil {
			return p, err
		}
		p = f.reader.judge(p, alive)
		if first {
			if err := checkOffsets(f.in, p); err != nil {
				return p, err
			}
		}
		if err := f.pass(ctx, p); err != nil {
			return p, err
		}
		if !f.in.Follow || p.State == holdfast.ProcessExited {
			return p, nil
		}
		if err := woken.wait(ctx); err != nil {
			return p, holdfast.AsError(err)
		}
	}
}

func checkOffsets(in holdfast.ReadOutput, p holdfast.Process) error {
	for _, o := range []struct {
		field        string
		offset, size int64
	}{{"stdout_offset", in.StdoutOffset, p.StdoutSize}, {"stderr_offset", in.StderrOffset, p.StderrSize}} {
		if o.offset < 0 {
			return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "%s is negative", o.field).With("field", o.field)
		}
		if o.offset > o.size {
			return holdfast.E(holdfast.OutOfRange, holdfast.ReasonBadField, "%s is %d, but only %d bytes were written",
				o.field, o.offset, o.size).With("field", o.field)
		}
	}
	return nil
}

// pass yields what was there when p was read, a chunk of each stream in turn: a
// process that writes faster than its reader reads does not make it endless.
func (f *follower) pass(ctx context.Context, p holdfast.Process) error {
	outMore, errMore := true, true
	for outMore || errMore {
		if err := ctx.Err(); err != nil {
			return holdfast.AsError(err)
		}
		var err error
		if outMore {
			if outMore, err = f.out.yield(p.StdoutSize, f.yield); err != nil {
				return err
			}
		}
		if errMore {
			if errMore, err = f.err.yield(p.StderrSize, f.yield); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait returns when there may be something new, or with ctx's error.
func (s *subscription) wait(ctx context.Context) error {
	timer := time.NewTimer(s.poll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.woken:
	case <-timer.C:
	}
	return nil
}

// cursor reads one stream over its segments.
type cursor struct {
	dir    *os.File
	stream holdfast.Stream
	offset int64 // of the next byte

	file *os.File // the segment being read, nil before the first
	base int64    // its offset
}

// yield hands out the next chunk below end and reports whether there was one.
func (c *cursor) yield(end int64, yield func(holdfast.OutputChunk) error) (bool, error) {
	if c.offset >= end {
		return false, nil
	}
	data := make([]byte, min(MaxChunk, end-c.offset))
	n, err := c.read(data)
	if err != nil || n == 0 {
		return false, err
	}
	chunk := holdfast.OutputChunk{Stream: c.stream, Offset: c.offset, Data: data[:n]}
	c.offset += int64(n)
	return true, yield(chunk)
}

// read fills from the segment that has the offset, or from the first one after it.
func (c *cursor) read(data []byte) (int, error) {
	for range maxKept {
		if n, err := c.readOpen(data); n > 0 || err != nil {
			return n, err
		}
		// A segment is complete once there is a later one, so the list is taken
		// before the segment is found at its end.
		segments, err := listSegments(c.dir)
		if err != nil {
			return 0, err
		}
		if n, err := c.readOpen(data); n > 0 || err != nil {
			return n, err
		}
		moved, err := c.move(segments.of(c.stream))
		if err != nil || !moved {
			return 0, err
		}
	}
	return 0, nil
}

// readOpen reads from the open segment; 0 means that it has no more for now.
func (c *cursor) readOpen(data []byte) (int, error) {
	at := c.offset - c.base
	if c.file == nil || at < 0 || at >= maxSegment {
		return 0, nil
	}
	n, err := c.file.ReadAt(data[:min(int64(len(data)), maxSegment-at)], at)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, unreadable(holdfast.ProcessID(filepath.Base(c.dir.Name())), err)
	}
	return n, nil
}

// move opens the segment to go on with: the last that begins at or before the
// offset, or else, where the bytes there are gone, the first after it.
func (c *cursor) move(offsets []int64) (bool, error) {
	i, found := slices.BinarySearch(offsets, c.offset)
	if !found {
		i--
	}
	if i < 0 || c.file != nil && offsets[i] <= c.base {
		i++
	}
	for ; i < len(offsets); i++ {
		file, err := openRegular(c.dir, segmentName(c.stream, offsets[i]))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular) {
			continue
		}
		if err != nil {
			return false, unreadable(holdfast.ProcessID(filepath.Base(c.dir.Name())), err)
		}
		err = c.close()
		c.file, c.base, c.offset = file, offsets[i], max(c.offset, offsets[i])
		return true, err
	}
	return false, nil
}

func (c *cursor) close() error {
	if c.file == nil {
		return nil
	}
	err := c.file.Close()
	c.file = nil
	return err
}

// segmentList is the offsets of both streams' segments, ascending.
type segmentList struct{ stdout, stderr []int64 }

func listSegments(dir *os.File) (segmentList, error) {
	var list segmentList
	all, err := names(dir)
	if err != nil {
		return list, err
	}
	for _, name := range all {
		if offset, ok := segmentOffset(holdfast.Stdout, name); ok {
			list.stdout = append(list.stdout, offset)
		} else if offset, ok := segmentOffset(holdfast.Stderr, name); ok {
			list.stderr = append(list.stderr, offset)
		}
	}
	slices.Sort(list.stdout)
	slices.Sort(list.stderr)
	return list, nil
}

func (l segmentList) of(s holdfast.Stream) []int64 {
	if s == holdfast.Stderr {
		return l.stderr
	}
	return l.stdout
}

// end is the offset after the last byte on disk, 0 where there is none.
func (l segmentList) end(dir *os.File, s holdfast.Stream) int64 {
	offsets := l.of(s)
	for i := len(offsets) - 1; i >= 0; i-- {
		if size, err := regularSize(dir, segmentName(s, offsets[i])); err == nil {
			return offsets[i] + min(size, maxSegment)
		}
	}
	return 0
}
