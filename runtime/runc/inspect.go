package runc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"golang.org/x/sys/unix"
)

// sight is everything that can be seen of one boot.
type sight struct {
	directory bool // of ours
	prepared  bool
	started   bool
	copying   bool   // if it stands still, then for a checkpoint
	runtime   string // the OCI runtime's word; "" where it has no such container
	pid       int    // of the guest agent, as the OCI runtime says
	groups    bool   // a control group is there
	processes int    // living, in those
	address   string
}

// phase is what that amounts to, with a word for a person.
func (s sight) phase() (runtime.Phase, string) {
	switch {
	case s.runtime == "running":
		return runtime.PhaseRunning, ""
	case s.runtime == "paused" && s.copying:
		return runtime.PhaseRunning, "it stands still for a checkpoint"
	case s.runtime == "paused":
		return runtime.PhaseSuspended, ""
	case s.runtime == "created" && s.prepared:
		return runtime.PhasePrepared, ""
	case s.runtime == "" && s.started && s.processes > 0:
		return runtime.PhaseRunning, "the OCI runtime lost its record of it"
	case s.started:
		return runtime.PhaseExited, ""
	case s.remains():
		return runtime.PhaseAbsent, "remains of a set-up that did not finish"
	}
	return runtime.PhaseAbsent, ""
}

// remains reports whether anything at all is there.
func (s sight) remains() bool { return s.directory || s.runtime != "" || s.groups }

func (s sight) status(ref holdfast.InstanceRef) runtime.Status {
	phase, detail := s.phase()
	return runtime.Status{Ref: ref, Phase: phase, Detail: detail, Address: s.address}
}

// look sees one boot. It runs the OCI runtime only where there can be something
// to ask it about.
func (d *Driver) look(ctx context.Context, ref holdfast.InstanceRef) (sight, error) {
	s, err := d.lookAround(ref)
	if err != nil {
		return sight{}, err
	}
	theirs, err := exists(filepath.Join(d.oci.root, containerID(ref)))
	if err != nil {
		return sight{}, err
	}
	if s.pid, err = d.runs(ref, s); err != nil {
		return sight{}, err
	}
	if s.pid > 0 {
		s.runtime = "running"
		return s, nil
	}
	if s.remains() || theirs {
		c, found, err := d.oci.state(ctx, containerID(ref))
		if err != nil {
			return sight{}, err
		}
		if found {
			s.runtime, s.pid = c.Status, c.PID
		} else if theirs {
			s.directory = true // the OCI runtime's own remains
		}
	}
	return s, nil
}

// runs is the process of a started guest that certainly runs, as seen without the
// OCI runtime: to start that costs as much as a small guest's boot. It is 0 where
// only the OCI runtime can tell: not runc's own files, not let go yet, frozen, or
// no such process.
func (d *Driver) runs(ref holdfast.InstanceRef, s sight) (int, error) {
	id := containerID(ref)
	if !s.started || s.processes == 0 {
		return 0, nil
	}
	state, err := exists(filepath.Join(d.oci.root, id, "state.json"))
	if err != nil || !state {
		return 0, err
	}
	// What was created waits at this pipe until it is started.
	waits, err := exists(filepath.Join(d.oci.root, id, "exec.fifo"))
	if err != nil || waits {
		return 0, err
	}
	frozen, err := d.cgroups.frozen(id)
	if err != nil || frozen {
		return 0, err
	}
	pid, err := d.files(ref).readPID()
	if err != nil || pid == 0 || !alive(pid) || !d.cgroups.holds(id, pid) {
		return 0, err
	}
	return pid, nil
}

// lookAround sees what there is but for the OCI runtime.
func (d *Driver) lookAround(ref holdfast.InstanceRef) (sight, error) {
	f, id := d.files(ref), containerID(ref)
	var s sight
	var errs [7]error
	s.directory, errs[0] = exists(string(f))
	s.prepared, errs[1] = exists(f.prepared())
	s.started, errs[2] = exists(f.started())
	s.copying, errs[6] = exists(f.copying())
	groups, err := d.cgroups.directories(id)
	s.groups, errs[3] = len(groups) > 0, err
	if s.groups {
		pids, err := d.cgroups.processes(id)
		s.processes, errs[4] = len(pids), err
	}
	kept, known, err := f.readSettings()
	if errs[5] = err; known {
		s.address = d.network.address(kept.Index).String()
	}
	return s, errors.Join(errs[:]...)
}

// Inspect implements runtime.Driver. Remains of a Prepare that did not finish
// are ABSENT with a Detail.
func (d *Driver) Inspect(ctx context.Context, ref holdfast.InstanceRef) (runtime.Status, error) {
	s, err := d.look(ctx, ref)
	if err != nil {
		return runtime.Status{}, fmt.Errorf("runc: inspect: %w", err)
	}
	return s.status(ref), nil
}

// List implements runtime.Driver: what the OCI runtime has, what control groups
// there are and what directories, so that losing any one of them hides nothing.
// Remains of a Prepare that did not finish are EXITED with a Detail.
func (d *Driver) List(ctx context.Context) ([]runtime.Status, error) {
	containers, err := d.oci.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("runc: list: %w", err)
	}
	known := map[string]container{}
	ids, err := d.cgroups.list()
	if err != nil {
		return nil, fmt.Errorf("runc: list: %w", err)
	}
	for _, c := range containers {
		known[c.ID] = c
		ids = append(ids, c.ID)
	}
	for _, dir := range []string{d.instancesDirectory(), d.oci.root} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("runc: list: %w", err)
		}
		for _, e := range entries {
			ids = append(ids, e.Name())
		}
	}
	slices.Sort(ids)
	var all []runtime.Status
	for _, id := range slices.Compact(ids) {
		ref, ok := parseContainerID(id)
		if !ok {
			continue
		}
		s, err := d.lookAround(ref)
		if err != nil {
			return nil, fmt.Errorf("runc: list: %w", err)
		}
		s.runtime, s.pid = known[id].Status, known[id].PID
		s.directory = true // something is, or its name would not be here
		status := s.status(ref)
		if status.Phase == runtime.PhaseAbsent {
			// Nothing ran, yet something is left until Stop: a sweep must see it (contract: C4).
			status.Phase = runtime.PhaseExited
		}
		all = append(all, status)
	}
	return all, nil
}

// Wait implements runtime.Driver: it sleeps until the guest agent's process
// ends, and looks again then. What it cannot see it does not take for ended.
func (d *Driver) Wait(ctx context.Context, ref holdfast.InstanceRef) error {
	for {
		s, err := d.look(ctx, ref)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			if phase, _ := s.phase(); phase == runtime.PhaseExited || phase == runtime.PhaseAbsent {
				return nil
			}
		}
		if err == nil && s.pid > 0 {
			err = d.waitProcess(ctx, ref, s.pid)
		}
		if err != nil || s.pid == 0 {
			if err := pause(ctx, waitPoll); err != nil {
				return err
			}
		}
	}
}

// waitProcess returns when pid has ended; it need not be a child.
func (d *Driver) waitProcess(ctx context.Context, ref holdfast.InstanceRef, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	if !d.cgroups.holds(containerID(ref), pid) {
		return file.Close() // the number is another's by now: look again
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	// Closing it ends the wait below.
	stop := context.AfterFunc(ctx, func() { file.Close() }) //nolint:errcheck // a pidfd has nothing to lose
	err = conn.Read(func(fd uintptr) bool { return ready(int(fd)) })
	if stop() {
		err = errors.Join(err, file.Close())
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func ready(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}
