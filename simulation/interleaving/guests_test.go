package interleaving

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/store"
)

// shelf is a blob store in memory; to list it and to remove from it are steps.
type shelf struct {
	sched *scheduler

	mu  sync.Mutex
	has map[string][]byte
}

// Put implements blob.Store.
func (s *shelf) Put(_ context.Context, key string, r io.Reader) (blob.Info, error) {
	body, err := io.ReadAll(r)
	if err != nil {
		return blob.Info{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has[key] = body
	sum := sha256.Sum256(body)
	return blob.Info{Key: key, Size: int64(len(body)), SHA256: hex.EncodeToString(sum[:]), Written: time.Now()}, nil
}

// Get implements blob.Store.
func (s *shelf) Get(_ context.Context, key string) (io.ReadCloser, blob.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, ok := s.has[key]
	if !ok {
		return nil, blob.Info{}, blob.ErrNotFound
	}
	return io.NopCloser(bytes.NewReader(body)), blob.Info{Key: key, Size: int64(len(body))}, nil
}

// Stat implements blob.Store.
func (s *shelf) Stat(ctx context.Context, key string) (blob.Info, error) {
	_, info, err := s.Get(ctx, key)
	return info, err
}

// List implements blob.Store.
func (s *shelf) List(ctx context.Context, prefix, after string, limit int) (infos []blob.Info, next string, err error) {
	s.sched.step(ctx, "lists the blobs")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(s.has)) {
		if !strings.HasPrefix(key, prefix) || key <= after {
			continue
		}
		if len(infos) == limit {
			return infos, infos[limit-1].Key, nil
		}
		infos = append(infos, blob.Info{Key: key, Size: int64(len(s.has[key]))})
	}
	return infos, "", nil
}

// Delete implements blob.Store.
func (s *shelf) Delete(ctx context.Context, key string) error {
	s.sched.step(ctx, "removes a blob")
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.has, key)
	return nil
}

func (s *shelf) holds(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.has[key]
	return ok
}

// inhabitants are the guests of every boot: a request id starts one process per boot.
// A task or a setup runs until it is ended, anything else ends at once.
type inhabitants struct {
	world *world

	mu     sync.Mutex
	boots  map[holdfast.InstanceRef]map[string]*holdfast.Process
	starts map[string]int // by request id, over all boots
	broken error          // what happened in a guest that never may
}

// guestOf is one boot's.
type guestOf struct {
	holdfast.GuestProcesses
	holdfast.GuestFiles
	in   *inhabitants
	host *keeper
	ref  holdfast.InstanceRef
}

// guest is the guest of a boot, as its host answers for it.
func (in *inhabitants) guest(url string, ref holdfast.InstanceRef) holdfast.Guest {
	host := in.world.hosts[1]
	if url == in.world.hosts[0].url() {
		host = in.world.hosts[0]
	}
	g := guestOf{in: in, host: host, ref: ref}
	return holdfast.Guest{Processes: g, Files: g}
}

// state is the boot's, if its host still has something of it.
func (g guestOf) state() (holdfast.InstanceState, error) {
	g.host.mu.Lock()
	defer g.host.mu.Unlock()
	o, ok := g.host.has[g.ref]
	switch {
	case g.ref.Incarnation < g.host.newest(g.ref.Instance):
		return "", holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation, "it was followed by another").On(string(g.ref.Instance))
	case !ok || o.State == holdfast.InstanceAbsent:
		return "", holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "there is no such instance").On(string(g.ref.Instance))
	}
	return o.State, nil
}

// live is whether the guest itself can be asked.
func (g guestOf) live() error {
	state, err := g.state()
	if err == nil && state != holdfast.InstanceRunning {
		err = holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "the instance is %s", state).On(string(g.ref.Instance))
	}
	return err
}

// StartProcess implements holdfast.GuestProcesses.
func (g guestOf) StartProcess(ctx context.Context, start holdfast.StartProcess) (holdfast.Process, error) {
	kind, _, _ := strings.Cut(start.RequestID, "-")
	g.in.world.sched.step(ctx, "starts a process, "+kind)
	if err := g.live(); err != nil {
		return holdfast.Process{}, err
	}
	g.in.mu.Lock()
	defer g.in.mu.Unlock()
	boot := g.in.boots[g.ref]
	if boot == nil {
		boot = map[string]*holdfast.Process{}
		g.in.boots[g.ref] = boot
	}
	if p := boot[start.RequestID]; p != nil {
		return *p, nil
	}
	p := &holdfast.Process{ID: holdfast.ProcessID(holdfast.DeriveID(holdfast.PrefixProcess, start.RequestID, fmt.Sprint(g.ref))), RequestID: start.RequestID,
		Incarnation: g.ref.Incarnation, Command: start.Command, State: holdfast.ProcessRunning, StartedAt: time.Now()}
	switch kind {
	case holdfast.PrefixTask:
		g.in.broken = errors.Join(g.in.broken, g.in.mayStart(g.ref, start.RequestID))
	case holdfast.PrefixBuild:
	default:
		p.State, p.FinishedAt = holdfast.ProcessExited, time.Now()
	}
	boot[start.RequestID] = p
	g.in.starts[start.RequestID]++
	return *p, nil
}

// mayStart is what is wrong with a task's process that starts now; in.mu is held.
func (in *inhabitants) mayStart(ref holdfast.InstanceRef, task string) error {
	var state string
	var incarnation int64
	ctx := context.Background()
	err := in.world.work.db.View(ctx, func(tx store.Tx) error {
		return tx.QueryRowContext(ctx, `SELECT state, incarnation FROM task WHERE id = $1`, task).Scan(&state, &incarnation)
	})
	switch {
	case err != nil:
		return err
	case in.starts[task] > 0:
		return fmt.Errorf("the task ran a second time, on incarnation %d", ref.Incarnation)
	case state != string(holdfast.TaskRunning) || incarnation != ref.Incarnation:
		return fmt.Errorf("a task was started on incarnation %d that is %s, on %d", ref.Incarnation, state, incarnation)
	}
	if other := in.task(ref); other != "" {
		return fmt.Errorf("two tasks run at once on incarnation %d", ref.Incarnation)
	}
	return nil
}

// task is the request id of a task that runs on a boot; in.mu is held.
func (in *inhabitants) task(ref holdfast.InstanceRef) string {
	for id, p := range in.boots[ref] {
		if p.State == holdfast.ProcessRunning && strings.HasPrefix(id, holdfast.PrefixTask) {
			return id
		}
	}
	return ""
}

// stops is told that a host is about to stop or remove a boot that runs: a task of its
// session has ended by then (contract: A13).
func (in *inhabitants) stops(ref holdfast.InstanceRef, to holdfast.Desired) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.task(ref) != "" && (to == holdfast.DesiredSuspended || to == holdfast.DesiredAbsent) {
		in.broken = errors.Join(in.broken, fmt.Errorf("incarnation %d is %s while a task runs on it", ref.Incarnation, to))
	}
}

// begins is told of a level that a host took: what a boot is made of is there.
func (in *inhabitants) begins(l holdfast.Level) {
	if l.Spec == nil || l.Desired != holdfast.DesiredRunning {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, layer := range l.Spec.Layers {
		if !in.world.work.holds(layer.Key) {
			in.broken = errors.Join(in.broken, fmt.Errorf("a boot begins of the layer %s, which is gone", layer.Key))
		}
	}
}

// GetProcess implements holdfast.GuestProcesses, from the host's spool.
func (g guestOf) GetProcess(ctx context.Context, id holdfast.ProcessID) (holdfast.Process, error) {
	g.in.world.sched.step(ctx, "asks for a process")
	return g.process(id)
}

func (g guestOf) process(id holdfast.ProcessID) (holdfast.Process, error) {
	state, err := g.state()
	if err != nil {
		return holdfast.Process{}, err
	}
	g.in.mu.Lock()
	defer g.in.mu.Unlock()
	for _, p := range g.in.boots[g.ref] {
		if p.ID != id {
			continue
		}
		if p.State == holdfast.ProcessRunning && state == holdfast.InstanceExited {
			p.State, p.ExitCode, p.Lost, p.FinishedAt = holdfast.ProcessExited, -1, true, time.Now()
		}
		return *p, nil
	}
	return holdfast.Process{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no process %s", id).On(string(id))
}

// SignalProcess implements holdfast.GuestProcesses.
func (g guestOf) SignalProcess(ctx context.Context, id holdfast.ProcessID, _ string) error {
	g.in.world.sched.step(ctx, "signals a process")
	if err := g.live(); err != nil {
		return err
	}
	p, err := g.process(id)
	if err == nil {
		g.in.end(p.RequestID, 143)
	}
	return err
}

// StreamProcessOutput implements holdfast.GuestProcesses: they print nothing.
func (g guestOf) StreamProcessOutput(_ context.Context, in holdfast.ReadOutput, _ func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	return g.process(in.Process)
}

// ending is a process that has ended, with its boot.
type ending struct {
	ref     holdfast.InstanceRef
	process holdfast.Process
}

// end ends the process of a request id where it runs in a boot that lives.
func (in *inhabitants) end(request string, code int) (ending, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for ref, boot := range in.boots {
		p := boot[request]
		if p == nil || !in.world.runs(ref) {
			continue
		}
		if p.State == holdfast.ProcessRunning {
			p.State, p.ExitCode, p.FinishedAt = holdfast.ProcessExited, code, time.Now()
		}
		return ending{ref, *p}, true
	}
	return ending{}, false
}

// endAll ends whatever runs, and nobody says so.
func (in *inhabitants) endAll() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for ref, boot := range in.boots {
		for _, p := range boot {
			if p.State == holdfast.ProcessRunning && in.world.runs(ref) {
				p.State, p.FinishedAt = holdfast.ProcessExited, time.Now()
			}
		}
	}
}

// runs reports whether a boot runs on some host.
func (w *world) runs(ref holdfast.InstanceRef) bool {
	for _, h := range w.hosts {
		h.mu.Lock()
		state := h.has[ref].State
		h.mu.Unlock()
		if state == holdfast.InstanceRunning {
			return true
		}
	}
	return false
}

// MakeDirectory implements holdfast.GuestFiles.
func (g guestOf) MakeDirectory(context.Context, string, uint32) (holdfast.FileInfo, error) {
	return holdfast.FileInfo{}, g.live()
}

// WriteFile implements holdfast.GuestFiles.
func (g guestOf) WriteFile(_ context.Context, _ holdfast.WriteFile, content io.Reader) (holdfast.FileWritten, error) {
	_, err := io.Copy(io.Discard, content)
	return holdfast.FileWritten{}, errors.Join(err, g.live())
}
