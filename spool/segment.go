package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/holdfast-dev/holdfast"
)

// StreamWriter appends one stream to its segments. It holds no data in memory:
// who writes to it waits for the disk. It is safe for concurrent use.
type StreamWriter struct {
	dir    string
	stream holdfast.Stream
	limits Limits

	mu     sync.Mutex
	file   *os.File  // the last of kept, while it is open
	kept   []segment // oldest first
	total  int64     // bytes of kept
	offset int64     // of the next byte
}

type segment struct{ offset, length int64 }

// Write appends p. What the disk does not take is lost and counted, so that
// later offsets stay right; the error says so, and the next Write tries again.
func (w *StreamWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	written := 0
	for written < len(p) {
		n, err := w.append(p[written:])
		written += n
		w.offset += int64(n)
		if err != nil {
			w.offset += int64(len(p) - written)
			return written, fmt.Errorf("spool: %d bytes of %s are lost: %w", len(p)-written, w.stream, errors.Join(err, w.finish()))
		}
	}
	return written, nil
}

func (w *StreamWriter) append(p []byte) (int, error) {
	if w.file == nil || w.kept[len(w.kept)-1].length >= w.limits.Segment {
		if err := w.rotate(); err != nil {
			return 0, err
		}
	}
	last := &w.kept[len(w.kept)-1]
	n, err := w.file.Write(p[:min(int64(len(p)), w.limits.Segment-last.length)])
	last.length += int64(n)
	w.total += int64(n)
	return n, err
}

// rotate ends the current segment, makes room, and begins the next one.
func (w *StreamWriter) rotate() error {
	if err := w.finish(); err != nil {
		return err
	}
	for len(w.kept) > 0 && (w.total+w.limits.Segment > w.limits.Keep || len(w.kept) >= maxKept) {
		if err := w.dropFirst(); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(filepath.Join(w.dir, segmentName(w.stream, w.offset)), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	w.file = file
	w.kept = append(w.kept, segment{offset: w.offset})
	return nil
}

// finish closes the current segment. One that a full disk left empty goes, or
// every failed write would leave a file.
func (w *StreamWriter) finish() error {
	if w.file == nil {
		return nil
	}
	err := w.file.Close()
	w.file = nil
	last := len(w.kept) - 1
	if w.kept[last].length == 0 {
		err = errors.Join(err, w.remove(w.kept[last]))
		w.kept = w.kept[:last]
	}
	return err
}

func (w *StreamWriter) dropFirst() error {
	if err := w.remove(w.kept[0]); err != nil {
		return err
	}
	w.total -= w.kept[0].length
	w.kept = append(w.kept[:0], w.kept[1:]...)
	return nil
}

func (w *StreamWriter) remove(s segment) error {
	err := os.Remove(filepath.Join(w.dir, segmentName(w.stream, s.offset)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (w *StreamWriter) drop() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.finish()
	for len(w.kept) > 0 && err == nil {
		err = w.dropFirst()
	}
	return err
}

// Size is the bytes written so far, dropped and lost ones included.
func (w *StreamWriter) Size() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.offset
}

// Kept is the bytes that are on disk.
func (w *StreamWriter) Kept() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

// Close ends the stream.
func (w *StreamWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.finish()
}
