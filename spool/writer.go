package spool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
)

// Limits bound one stream of one process, in bytes. Zero fields take the defaults.
type Limits struct {
	Segment int64 // one file; default 4 MiB, at most 64 MiB
	Keep    int64 // all files of a stream; default 64 MiB; the oldest go first
}

// The defaults of Limits.
const (
	DefaultSegment int64 = 4 << 20
	DefaultKeep    int64 = 64 << 20
)

func (l Limits) withDefaults() Limits {
	if l.Segment <= 0 {
		l.Segment = DefaultSegment
	}
	l.Segment = min(l.Segment, maxSegment)
	if l.Keep <= 0 {
		l.Keep = DefaultKeep
	}
	l.Keep = max(l.Keep, l.Segment)
	return l
}

// Writer is the guest's side of a spool.
type Writer struct {
	dir    string
	limits Limits
	late   bool // the directory is made with the first process
}

// NewWriter makes the directory where it is missing, and proves that it takes a
// file, so that a guest without a spool says so before it is ready.
func NewWriter(dir string, limits Limits) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("spool: make the directory: %w", err)
	}
	probe, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return nil, fmt.Errorf("spool: the directory takes no file: %w", err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return nil, fmt.Errorf("spool: the directory takes no file: %w", err)
	}
	return &Writer{dir: dir, limits: limits.withDefaults()}, nil
}

// LateWriter is NewWriter for a simulation, whose guests are many and mostly run
// nothing: it makes the directory with the first process, and proves nothing before.
func LateWriter(dir string, limits Limits) *Writer {
	return &Writer{dir: dir, limits: limits.withDefaults(), late: true}
}

// Begin makes a process's part of the spool, with p as its first record.
func (w *Writer) Begin(p holdfast.Process) (*Log, error) {
	if err := holdfast.CheckID("process", holdfast.PrefixProcess, string(p.ID)); err != nil {
		return nil, err
	}
	if w.late {
		if err := os.MkdirAll(w.dir, 0o700); err != nil {
			return nil, fmt.Errorf("spool: make the directory: %w", err)
		}
	}
	l := &Log{dir: filepath.Join(w.dir, string(p.ID))}
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		return nil, fmt.Errorf("spool: begin %s: %w", p.ID, err)
	}
	l.stdout = &StreamWriter{dir: l.dir, stream: holdfast.Stdout, limits: w.limits}
	l.stderr = &StreamWriter{dir: l.dir, stream: holdfast.Stderr, limits: w.limits}
	if err := l.Record(p); err != nil {
		return nil, errors.Join(err, w.Remove(p.ID))
	}
	return l, nil
}

// Remove removes what the spool has of a process; of an unknown one it has nothing.
func (w *Writer) Remove(id holdfast.ProcessID) error {
	if err := os.RemoveAll(filepath.Join(w.dir, string(id))); err != nil {
		return fmt.Errorf("spool: remove %s: %w", id, err)
	}
	return nil
}

// Log is one process's part of a spool.
type Log struct {
	dir            string
	stdout, stderr *StreamWriter
}

// growth is how much longer, in bytes, the record of a process's end may be than
// the one before it.
const growth = 512

// Record replaces the process's record. While it runs, room for its next record
// is kept on the disk: one that fills the disk can still be recorded as ended.
// Calls must not overlap.
func (l *Log) Record(p holdfast.Process) error {
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false) // scripts are full of what it makes six bytes of
	if err := encoder.Encode(p); err != nil {
		return fmt.Errorf("spool: encode the record of %s: %w", p.ID, err)
	}
	raw := encoded.Bytes()
	if len(raw) > MaxRecord {
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonTooLarge, "the process's record is larger than %d bytes", MaxRecord)
	}
	next := filepath.Join(l.dir, recordName+".next")
	err := overwrite(next, raw)
	if err == nil {
		err = os.Rename(next, filepath.Join(l.dir, recordName))
	}
	if err == nil && p.State == holdfast.ProcessRunning {
		err = reserve(next, int64(len(raw))+growth)
	}
	if err == nil {
		return nil
	}
	// What the full disk took of the new record is of no use; the old one stays.
	if rm := os.Remove(next); rm != nil && !errors.Is(rm, fs.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	return fmt.Errorf("spool: record %s: %w", p.ID, err)
}

// overwrite makes content all that is in a file, on the room that was reserved
// for it where some was. The guest may have put something else there: a link is
// not followed and a pipe not waited for.
func overwrite(path string, content []byte) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Write(content); err != nil {
		return err
	}
	return file.Truncate(int64(len(content)))
}

// reserve makes a file of room. A file system that cannot reserve has none.
func reserve(path string, size int64) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	err = unix.Fallocate(int(file.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

// Stream returns the writer of STDOUT or STDERR.
func (l *Log) Stream(s holdfast.Stream) *StreamWriter {
	if s == holdfast.Stderr {
		return l.stderr
	}
	return l.stdout
}

// DropOutput removes all output that is on disk; offsets go on from where they are.
func (l *Log) DropOutput() error { return errors.Join(l.stdout.drop(), l.stderr.drop()) }
