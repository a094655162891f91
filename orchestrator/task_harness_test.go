package orchestrator

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
)

// guests are the guests of every boot: a request id starts one process per boot, as
// the guest agent does, and what it prints and how it ends is scripted. "hold" runs
// until it is ended, "exit N" ends at once.
type guests struct {
	holdfast.GuestProcesses
	t *testing.T

	mu        sync.Mutex
	processes map[holdfast.InstanceRef]map[string]*guestProcess
	starts    map[string]int // by request id, over all boots
	order     []string
	running   int
	most      int // that ran at once
	signals   map[string][]string
	fail      func(call, requestID string) error // an answer that is lost after the effect, where call is "start"
	ended     func(ref holdfast.InstanceRef, p holdfast.Process)
}

type guestProcess struct {
	holdfast.Process
	out  string
	done chan struct{}
}

func newGuests(t *testing.T) *guests {
	return &guests{t: t, processes: map[holdfast.InstanceRef]map[string]*guestProcess{}, starts: map[string]int{}, signals: map[string][]string{}}
}

// serve makes a harness's guests these.
func (g *guests) serve(h *harness) *guests {
	h.config.Guest = func(_ string, ref holdfast.InstanceRef) holdfast.Guest {
		return holdfast.Guest{Processes: guestOf{g, ref}}
	}
	return g
}

// guestOf is one boot's.
type guestOf struct {
	*guests
	ref holdfast.InstanceRef
}

func (g *guests) trouble(call, requestID string) error {
	if g.fail == nil {
		return nil
	}
	return g.fail(call, requestID)
}

func (o guestOf) StartProcess(_ context.Context, in holdfast.StartProcess) (holdfast.Process, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if in.Command == "missing" {
		return holdfast.Process{}, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonNoSuchCommand, "command not found: missing")
	}
	boot := o.processes[o.ref]
	if boot == nil {
		boot = map[string]*guestProcess{}
		o.processes[o.ref] = boot
	}
	p := boot[in.RequestID]
	if p == nil {
		o.starts[in.RequestID]++
		o.order = append(o.order, strings.Join(in.Args, " "))
		if o.running++; o.running > o.most {
			o.most = o.running
		}
		p = &guestProcess{Process: holdfast.Process{ID: holdfast.ProcessID(holdfast.IDs{}.New(holdfast.PrefixProcess)), RequestID: in.RequestID,
			Incarnation: o.ref.Incarnation, Command: in.Command, Args: in.Args, State: holdfast.ProcessRunning, StartedAt: time.Now()},
			out: "out of " + strings.Join(in.Args, " ") + "\n", done: make(chan struct{})}
		p.StdoutSize = int64(len(p.out))
		boot[in.RequestID] = p
		if in.Command == "exit" {
			code, err := strconv.Atoi(in.Args[0])
			if err != nil {
				o.t.Error(err)
			}
			o.finish(o.ref, p, code)
		}
	}
	return p.Process, o.trouble("start", in.RequestID)
}

// signalsOf are the signals that a task's process was sent.
func (g *guests) signalsOf(task holdfast.TaskID) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.signals[string(task)])
}

// finish ends a process; o.mu is held.
func (g *guests) finish(ref holdfast.InstanceRef, p *guestProcess, code int) {
	if p.State == holdfast.ProcessExited {
		return
	}
	p.State, p.ExitCode, p.FinishedAt = holdfast.ProcessExited, code, time.Now()
	g.running--
	close(p.done)
	if g.ended != nil {
		g.ended(ref, p.Process)
	}
}

// end ends the process of a task, wherever it runs.
func (g *guests) end(task holdfast.TaskID, code int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, ref := range slices.Collect(maps.Keys(g.processes)) {
		if p := g.processes[ref][string(task)]; p != nil {
			g.finish(ref, p, code)
		}
	}
}

func (o guestOf) find(id holdfast.ProcessID) (*guestProcess, error) {
	for _, p := range o.processes[o.ref] {
		if p.ID == id {
			return p, o.trouble("ask", p.RequestID)
		}
	}
	return nil, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no process %s", id).On(string(id))
}

func (o guestOf) GetProcess(_ context.Context, id holdfast.ProcessID) (holdfast.Process, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, err := o.find(id)
	if err != nil {
		return holdfast.Process{}, err
	}
	return p.Process, nil
}

func (o guestOf) SignalProcess(_ context.Context, id holdfast.ProcessID, signal string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, err := o.find(id)
	if err != nil {
		return err
	}
	o.signals[p.RequestID] = append(o.signals[p.RequestID], signal)
	if signal == "KILL" || !slices.Contains(p.Args, "stubborn") {
		o.finish(o.ref, p, map[string]int{"TERM": 143, "KILL": 137}[signal])
	}
	return nil
}

func (o guestOf) StreamProcessOutput(ctx context.Context, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	o.mu.Lock()
	p, err := o.find(in.Process)
	o.mu.Unlock()
	if err != nil {
		return holdfast.Process{}, err
	}
	if in.StdoutOffset < int64(len(p.out)) {
		if err := yield(holdfast.OutputChunk{Stream: holdfast.Stdout, Offset: in.StdoutOffset, Data: []byte(p.out[in.StdoutOffset:])}); err != nil {
			return holdfast.Process{}, err
		}
	}
	if in.Follow {
		select {
		case <-p.done:
		case <-ctx.Done():
			return holdfast.Process{}, holdfast.AsError(ctx.Err())
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return p.Process, nil
}

// reports lets each end be delivered home, as often and as late as deliver does it.
func (g *guests) reports(deliver func(func() int)) func(h *harness) {
	return func(h *harness) {
		g.ended = func(ref holdfast.InstanceRef, p holdfast.Process) {
			go deliver(func() int { return h.taskReport(ref, p) })
		}
	}
}

// taskReport posts the end of a task's process as its guest does.
func (h *harness) taskReport(ref holdfast.InstanceRef, p holdfast.Process) int {
	header := http.Header{holdfast.HeaderInstance: {string(ref.Instance)}, holdfast.HeaderIncarnation: {strconv.FormatInt(ref.Incarnation, 10)}}
	id := delivery.DeriveID(string(holdfast.ReportTask), string(ref.Instance), ref.Incarnation, p.RequestID)
	return h.post("/deliveries/instances", id, holdfast.DeliveryTaskComplete, holdfast.ProcessReport{Instance: ref.Instance, Incarnation: ref.Incarnation,
		Process: p.ID, RequestID: p.RequestID, ExitCode: p.ExitCode, StartedAt: p.StartedAt, FinishedAt: p.FinishedAt, LogTail: "the tail"},
		delivery.InstanceSecret([]byte("key"), string(ref.Instance), ref.Incarnation), header)
}

// session is a READY session.
func (h *harness) session(requestID string, change ...func(*holdfast.CreateSession)) holdfast.Session {
	h.t.Helper()
	in := holdfast.CreateSession{RequestID: requestID, Environment: "base"}
	for _, c := range change {
		c(&in)
	}
	se, err := h.CreateSession(h.t.Context(), alice, in)
	if err != nil {
		h.t.Fatal(err)
	}
	return se
}

func (h *harness) submit(session holdfast.SessionID, requestID, command string, args ...string) holdfast.Task {
	h.t.Helper()
	task, err := h.SubmitTask(h.t.Context(), alice, holdfast.SubmitTask{RequestID: requestID, Session: session, Command: command, Args: args})
	if err != nil {
		h.t.Fatal(err)
	}
	return task
}

func (h *harness) task(id holdfast.TaskID) holdfast.Task {
	h.t.Helper()
	task, err := h.GetTask(h.t.Context(), alice, id)
	if err != nil {
		h.t.Fatal(err)
	}
	return task
}

// awaitTask waits until a task is in a state, sweeping meanwhile where sweep says so.
func (h *harness) awaitTask(id holdfast.TaskID, sweep bool, states ...holdfast.TaskState) holdfast.Task {
	h.t.Helper()
	var task holdfast.Task
	h.eventually(fmt.Sprintf("task %s is one of %v", id, states), func() bool {
		if sweep {
			h.sweep(SweepTasks)
		}
		task = h.task(id)
		return slices.Contains(states, task.State)
	})
	return task
}
