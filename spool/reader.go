package spool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
)

// Options are what a Reader can be told. All are optional.
type Options struct {
	// Notifier wakes followers; without one they look every 50 ms.
	Notifier *Notifier
	// Alive reports whether the instance may still write. Once it does not, what
	// the spool has as RUNNING reads as EXITED and Lost. Nil: it may.
	Alive func() bool
}

// Reader is the host's side of one boot's spool. It keeps no file open between
// calls, needs no Close, and is safe for concurrent use. contract: A14
type Reader struct {
	dir     string
	options Options
}

// Open returns a Reader of dir, which need not exist yet: then there are no
// processes. The directory itself must be the host's own, and not replaceable
// from inside the instance.
func Open(dir string, options Options) *Reader { return &Reader{dir: dir, options: options} }

// Get returns one process, with the sizes of what the spool has of it.
func (r *Reader) Get(ctx context.Context, id holdfast.ProcessID) (holdfast.Process, error) {
	alive := r.alive()
	dir, err := r.openProcess(ctx, id)
	if err != nil {
		return holdfast.Process{}, err
	}
	p, _, err := readProcess(dir, id, MaxRecord)
	return r.judge(p, alive), errors.Join(err, dir.Close())
}

// List returns the processes by id, which is by time. Of more than MaxProcesses,
// or more than MaxList bytes of records, the newest are returned. What is not a
// readable record is left out.
func (r *Reader) List(ctx context.Context) (list []holdfast.Process, err error) {
	alive := r.alive()
	root, err := os.Open(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("spool: list: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	ids, err := names(root)
	if err != nil {
		return nil, fmt.Errorf("spool: list: %w", err)
	}
	ids = slices.DeleteFunc(ids, func(name string) bool { return holdfast.CheckID("process", holdfast.PrefixProcess, name) != nil })
	slices.SortFunc(ids, func(a, b string) int { return strings.Compare(b, a) })
	budget := int64(MaxList)
	for _, id := range ids[:min(len(ids), MaxProcesses)] {
		if err := ctx.Err(); err != nil {
			return nil, holdfast.AsError(err)
		}
		p, size, err := listed(root, holdfast.ProcessID(id), budget)
		if errors.Is(err, errOverBudget) {
			break
		}
		if err != nil {
			continue
		}
		budget -= size
		list = append(list, r.judge(p, alive))
	}
	slices.Reverse(list)
	return list, nil
}

func listed(root *os.File, id holdfast.ProcessID, budget int64) (p holdfast.Process, size int64, err error) {
	dir, err := openDirectory(root, string(id))
	if err != nil {
		return p, 0, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	return readProcess(dir, id, budget)
}

func (r *Reader) alive() bool { return r.options.Alive == nil || r.options.Alive() }

// judge turns a process whose instance can no longer end it into a lost one.
func (r *Reader) judge(p holdfast.Process, alive bool) holdfast.Process {
	if p.State == holdfast.ProcessRunning && !alive {
		p.State, p.Lost = holdfast.ProcessExited, true
	}
	return p
}

// openProcess opens a process's directory, or says NOT_FOUND.
func (r *Reader) openProcess(ctx context.Context, id holdfast.ProcessID) (dir *os.File, err error) {
	if err := holdfast.CheckID("process", holdfast.PrefixProcess, string(id)); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, holdfast.AsError(err)
	}
	root, err := os.Open(r.dir)
	if err == nil {
		dir, err = openDirectory(root, string(id))
		err = errors.Join(err, root.Close())
	}
	switch {
	case err == nil:
		return dir, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, unknown(id)
	}
	return nil, fmt.Errorf("spool: open %s: %w", id, err)
}

func unknown(id holdfast.ProcessID) error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no process %s in this boot of the instance", id).On(string(id))
}

var errOverBudget = errors.New("over the budget")

// readProcess reads and checks a record of at most limit bytes.
func readProcess(dir *os.File, id holdfast.ProcessID, limit int64) (p holdfast.Process, size int64, err error) {
	file, err := openRegular(dir, recordName)
	if errors.Is(err, fs.ErrNotExist) {
		return p, 0, unknown(id)
	}
	if err != nil {
		return p, 0, unreadable(id, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	limit = min(limit, MaxRecord)
	raw, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return p, 0, unreadable(id, err)
	}
	if int64(len(raw)) > limit {
		return p, 0, unreadable(id, errOverBudget)
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return holdfast.Process{}, 0, unreadable(id, err)
	}
	if p.ID != id || p.State != holdfast.ProcessRunning && p.State != holdfast.ProcessExited {
		return holdfast.Process{}, 0, unreadable(id, errors.New("it is not this process's"))
	}
	out, err := listSegments(dir)
	if err != nil {
		return holdfast.Process{}, 0, unreadable(id, err)
	}
	p.StdoutSize = max(0, p.StdoutSize, out.end(dir, holdfast.Stdout))
	p.StderrSize = max(0, p.StderrSize, out.end(dir, holdfast.Stderr))
	if p.StdoutSize > math.MaxInt64/2 || p.StderrSize > math.MaxInt64/2 {
		return holdfast.Process{}, 0, unreadable(id, errors.New("its sizes are impossible"))
	}
	return p, int64(len(raw)), nil
}

// unreadable says that the guest put something else where its agent's record was, or
// that its machine lost power before that was on its disk: nobody will ever read it.
// What the machine lacks at the moment is another matter.
func unreadable(id holdfast.ProcessID, cause error) error {
	for _, passing := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO} {
		if errors.Is(cause, passing) {
			return fmt.Errorf("spool: read the record of %s: %w", id, cause)
		}
	}
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStorage,
		"the record of process %s was changed inside the instance and cannot be read", id).On(string(id)).Because(cause)
}
