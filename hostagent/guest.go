package hostagent

import (
	"context"
	"io"
	"strconv"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/spool"
)

// Guest is what callers want of one boot's guest (H11). Processes and their
// output are read from the host's own spool, so that it works while the guest is
// frozen and when it is gone (contract: A14); everything else needs it RUNNING
// and is FAILED_PRECONDITION otherwise, never an implicit resume. An older boot
// than the current one is FAILED_PRECONDITION, reason STALE_INCARNATION.
func (a *Agent) Guest(_ context.Context, ref holdfast.InstanceRef) (holdfast.Guest, error) {
	m := a.find(ref.Instance)
	if m == nil {
		return holdfast.Guest{}, unknown(ref.Instance)
	}
	m.mu.Lock()
	newest := m.newest()
	r, ok := m.records[ref.Incarnation]
	m.mu.Unlock()
	switch {
	case ref.Incarnation < newest:
		return holdfast.Guest{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation,
			"incarnation %d of %s was followed by incarnation %d", ref.Incarnation, ref.Instance, newest).
			On(string(ref.Instance)).With("seen", strconv.FormatInt(newest, 10))
	case !ok || ref.Incarnation != newest || r.State == holdfast.InstanceAbsent:
		return holdfast.Guest{}, unknown(ref.Instance)
	}
	b := boot{machine: m, ref: ref}
	b.spool = spool.Open(a.places.spool(ref), spool.Options{Notifier: a.notifier, Alive: b.alive})
	return holdfast.Guest{Processes: processes{b}, Files: files{b}, Log: b.log, Status: b.status}, nil
}

// boot is one incarnation, as callers of its guest address it.
type boot struct {
	machine *machine
	ref     holdfast.InstanceRef
	spool   *spool.Reader
}

func (b boot) state() holdfast.InstanceState {
	b.machine.mu.Lock()
	defer b.machine.mu.Unlock()
	r, ok := b.machine.records[b.ref.Incarnation]
	if !ok {
		return holdfast.InstanceAbsent
	}
	return r.state()
}

// alive reports whether something may still be written to the spool.
func (b boot) alive() bool {
	s := b.state()
	return s != holdfast.InstanceExited && s != holdfast.InstanceAbsent
}

// live is the guest itself, where it can be asked.
func (b boot) live() (holdfast.Guest, error) {
	switch s := b.state(); s {
	case holdfast.InstanceRunning, holdfast.InstanceBooting:
		// The orchestrator may have heard from the guest itself that it is ready, before
		// this host wrote it down; a guest that is not says so itself.
		return b.machine.guest(b.ref), nil
	default:
		return holdfast.Guest{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState,
			"the instance is %s; this needs it RUNNING", s).On(string(b.ref.Instance)).With("state", string(s))
	}
}

func (b boot) log(ctx context.Context, offset int64, follow bool, yield func(holdfast.OutputChunk) error) error {
	return b.spool.Console(ctx, offset, follow, nil, yield)
}

func (b boot) status(ctx context.Context) (holdfast.GuestStatus, error) {
	g, err := b.live()
	if err != nil {
		return holdfast.GuestStatus{}, err
	}
	return g.Status(ctx)
}

// tail is the end of an incarnation's console, for its failure; at most 4 KiB.
func (a *Agent) tail(ref holdfast.InstanceRef) string {
	raw, err := spool.ConsoleFile{Path: consolePath(a.places.spool(ref))}.Tail(maxMessage)
	if err != nil {
		a.log.Warn("the console cannot be read", "instance", ref.Instance, "incarnation", ref.Incarnation, "error", err)
	}
	return clip(string(raw), maxMessage)
}

// processes reads from the spool and hands the rest to the guest.
type processes struct{ boot }

func (p processes) GetProcess(ctx context.Context, id holdfast.ProcessID) (holdfast.Process, error) {
	return p.spool.Get(ctx, id)
}

func (p processes) ListProcesses(ctx context.Context) ([]holdfast.Process, error) {
	return p.spool.List(ctx)
}

func (p processes) StreamProcessOutput(ctx context.Context, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	return p.spool.Stream(ctx, in, yield)
}

func (p processes) StartProcess(ctx context.Context, in holdfast.StartProcess) (holdfast.Process, error) {
	g, err := p.live()
	if err != nil {
		return holdfast.Process{}, err
	}
	return g.Processes.StartProcess(ctx, in)
}

func (p processes) WriteProcessInput(ctx context.Context, in holdfast.ProcessInput) (int64, error) {
	g, err := p.live()
	if err != nil {
		return 0, err
	}
	return g.Processes.WriteProcessInput(ctx, in)
}

func (p processes) SignalProcess(ctx context.Context, id holdfast.ProcessID, signal string) error {
	g, err := p.live()
	if err != nil {
		return err
	}
	return g.Processes.SignalProcess(ctx, id, signal)
}

func (p processes) ResizeTerminal(ctx context.Context, id holdfast.ProcessID, size holdfast.TerminalSize) error {
	g, err := p.live()
	if err != nil {
		return err
	}
	return g.Processes.ResizeTerminal(ctx, id, size)
}

// files hands every call to the guest: no path of an instance is ever resolved
// by its host.
type files struct{ boot }

func (f files) ReadFile(ctx context.Context, in holdfast.ReadFile) (holdfast.FileInfo, io.ReadCloser, error) {
	g, err := f.live()
	if err != nil {
		return holdfast.FileInfo{}, nil, err
	}
	return g.Files.ReadFile(ctx, in)
}

func (f files) WriteFile(ctx context.Context, in holdfast.WriteFile, content io.Reader) (holdfast.FileWritten, error) {
	g, err := f.live()
	if err != nil {
		return holdfast.FileWritten{}, err
	}
	return g.Files.WriteFile(ctx, in, content)
}

func (f files) StatFile(ctx context.Context, path string) (holdfast.FileInfo, error) {
	g, err := f.live()
	if err != nil {
		return holdfast.FileInfo{}, err
	}
	return g.Files.StatFile(ctx, path)
}

func (f files) ListDirectory(ctx context.Context, path string) ([]holdfast.FileInfo, error) {
	g, err := f.live()
	if err != nil {
		return nil, err
	}
	return g.Files.ListDirectory(ctx, path)
}

func (f files) MakeDirectory(ctx context.Context, path string, mode uint32) (holdfast.FileInfo, error) {
	g, err := f.live()
	if err != nil {
		return holdfast.FileInfo{}, err
	}
	return g.Files.MakeDirectory(ctx, path, mode)
}

func (f files) MoveFile(ctx context.Context, from, to string) (holdfast.FileInfo, error) {
	g, err := f.live()
	if err != nil {
		return holdfast.FileInfo{}, err
	}
	return g.Files.MoveFile(ctx, from, to)
}

func (f files) RemoveFile(ctx context.Context, path string, recursive bool) error {
	g, err := f.live()
	if err != nil {
		return err
	}
	return g.Files.RemoveFile(ctx, path, recursive)
}

func (f files) WatchDirectory(ctx context.Context, in holdfast.WatchDirectory, yield func(holdfast.FileEvent) error) error {
	g, err := f.live()
	if err != nil {
		return err
	}
	return g.Files.WatchDirectory(ctx, in, yield)
}
