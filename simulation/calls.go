package simulation

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// clients lets every client make its calls, and waits for the last.
func (r *runner) clients(ctx context.Context) {
	var all sync.WaitGroup
	begin := time.Now()
	for i := range r.world.Clients {
		all.Go(func() {
			for _, op := range r.schedule.Ops {
				if op.Client == i {
					wait(ctx, op.At-time.Since(begin))
					r.call(ctx, op)
				}
			}
		})
	}
	all.Wait()
}

// call makes one call and notes what came of it.
func (r *runner) call(ctx context.Context, op Op) {
	o := Outcome{Op: op, Project: r.projectOf(op.Client), Began: time.Now()}
	if op.GiveUp > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, op.GiveUp)
		defer cancel()
	}
	r.mu.Lock()
	o.ID = r.ids[slotKey(o.Project, op.Slot)]
	r.mu.Unlock()
	alone := r.begins(o.ID, op)
	c := r.world.Clients[op.Client]
	sent := r.send(ctx, c, &o)
	alone = r.ends(o.ID, op, o.Err) && alone
	if !sent {
		return
	}
	o.Ended = time.Now()
	r.world.Trace.Note(c.Name, "%s %d: %s %s", op.Verb, op.Slot, outcome(o.Err), cmp.Or(string(o.Sandbox.State), o.Answer.State))
	r.judge(&o)
	r.judgeWork(&o)
	if alone {
		r.trueNow(&o)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcomes = append(r.outcomes, o)
}

// send makes the call; false if there is nobody to call about yet.
func (r *runner) send(ctx context.Context, c *Client, o *Outcome) bool {
	op := o.Op
	to := holdfast.MutateSandbox{ID: o.ID}
	if o.ID == "" {
		switch op.Verb {
		case Suspend, Resume, Delete, Extend, SetLifetime, Get, Exec:
			return false
		}
	}
	switch op.Verb {
	case Create:
		o.Sandbox, o.Err = c.CreateSandbox(ctx, createOf(op.Slot))
	case CreateOther:
		other := createOf(op.Slot)
		other.Name = "another"
		o.Sandbox, o.Err = c.CreateSandbox(ctx, other)
	case Suspend:
		o.Sandbox, o.Err = c.SuspendSandbox(ctx, to)
	case Resume:
		o.Sandbox, o.Err = c.ResumeSandbox(ctx, to)
	case Delete:
		o.Sandbox, o.Err = c.DeleteSandbox(ctx, to)
	case Extend:
		o.Sandbox, o.Err = c.ExtendSandbox(ctx, holdfast.ExtendSandbox{ID: o.ID, TTL: op.TTL})
	case SetLifetime:
		o.Sandbox, o.Err = c.SetSandboxLifetime(ctx, holdfast.SetSandboxLifetime{ID: o.ID, TTL: op.TTL})
	case Get:
		o.Sandbox, o.Err = c.GetSandbox(ctx, o.ID)
	case List:
		_, o.Err = c.ListSandboxes(ctx, holdfast.ListSandboxes{})
	case Exec:
		o.Process, o.Err = c.StartProcess(ctx, o.ID, holdfast.StartProcess{RequestID: "exec", Command: "sleep", Args: []string{"30s"}})
	case Drain, Activate, Retire:
		o.Err = r.setDuty(ctx, c, op)
	case Quota:
		limit := int64(op.Slot)
		if limit == 0 {
			limit = holdfast.NoLimit
		}
		_, o.Err = c.SetQuotas(ctx, holdfast.SetQuotas{Project: string(o.Project), Quotas: holdfast.QuotaChange{Sandboxes: &limit}})
	default:
		return r.work(ctx, c, o)
	}
	return true
}

// createOf is the create of a slot: always the same, so that it may be repeated.
func createOf(slot int) holdfast.CreateSandbox {
	in := holdfast.CreateSandbox{RequestID: "slot-" + strconv.Itoa(slot), Environment: environment,
		TTL: []time.Duration{2 * time.Minute, 6 * time.Minute, 15 * time.Minute}[slot%3]}
	switch slot % 3 {
	case 1:
		in.OnExpiry = holdfast.ExpirySuspend
	case 2:
		in.Restart = holdfast.RestartFresh
	}
	return in
}

func (r *runner) setDuty(ctx context.Context, c *Client, op Op) error {
	hosts, err := c.ListHosts(ctx)
	if err != nil {
		return err
	}
	duty := map[Verb]holdfast.HostDuty{Drain: holdfast.HostDraining, Activate: holdfast.HostActive, Retire: holdfast.HostRetired}[op.Verb]
	for _, h := range hosts {
		if h.Name == r.world.Hosts[op.Slot%len(r.world.Hosts)].Name {
			_, err = c.SetHostDuty(ctx, holdfast.SetHostDuty{Host: h.ID, Duty: duty, Force: true})
		}
	}
	return err
}

// judge holds an answer against what is true at this instant, and against what was
// answered before.
func (r *runner) judge(o *Outcome) {
	if o.Err != nil {
		r.judgeRefusal(o)
		return
	}
	if o.Op.Verb == Create || o.Op.Verb == CreateOther {
		r.sameSandbox(o, o.Sandbox.ID)
	}
	if o.Op.Verb == Delete {
		if o.Sandbox.State != holdfast.SandboxDeleted {
			r.violated("a delete of %s succeeded and answered with %s", o.Sandbox.ID, o.Sandbox.State)
		}
		r.goneFromRuntimes(o)
	}
	if o.Op.Verb == Create && o.Sandbox.State == holdfast.SandboxReady && o.Sandbox.Instance != "" {
		ref := holdfast.InstanceRef{Instance: o.Sandbox.Instance, Incarnation: o.Sandbox.Incarnation}
		if r.world.boots.count(ref) == 0 {
			r.violated("a create answered that %s is READY, and %s/%d has never booted", o.Sandbox.ID, ref.Instance, ref.Incarnation)
		}
	}
}

// judgeRefusal looks at errors that no fault explains.
func (r *runner) judgeRefusal(o *Outcome) {
	var e *holdfast.Error
	if !errors.As(o.Err, &e) {
		return
	}
	if e.Code == holdfast.Internal && e.Reason == holdfast.ReasonBug {
		r.violated("%s answered INTERNAL BUG: %s", o.Op.Verb, e.Message)
	}
	if o.Op.Verb == Create && e.Code == holdfast.FailedPrecondition && e.Reason == holdfast.ReasonCreateFailed && e.Resource != "" {
		r.sameSandbox(o, holdfast.SandboxID(e.Resource))
	}
}

// sameSandbox holds the answers to one request id together (contract: A3).
func (r *runner) sameSandbox(o *Outcome, id holdfast.SandboxID) {
	key := slotKey(o.Project, o.Op.Slot)
	r.mu.Lock()
	known := r.ids[key]
	r.ids[key] = id
	r.mu.Unlock()
	o.ID = id
	if known != "" && known != id {
		r.violated("one request id gave two sandboxes: %s and %s", known, id)
	}
}

// goneFromRuntimes holds a confirmed delete against the machines. A host that could
// not be asked may have been given up, and is looked at in the end.
func (r *runner) goneFromRuntimes(o *Outcome) {
	if r.mayBeGivenUp() {
		return
	}
	for ref := range r.world.boots.of(o.Sandbox.Instance) {
		for _, h := range r.world.Hosts {
			if phase := h.phase(ref); phase == runtime.PhaseRunning || phase == runtime.PhaseSuspended {
				r.violated("a delete of %s succeeded while %s/%d was %s on %s", o.Sandbox.ID, ref.Instance, ref.Incarnation, phase, h.Name)
			}
		}
	}
}

// mayBeGivenUp reports whether a host may be given up, retired or lied about in this run.
func (r *runner) mayBeGivenUp() bool {
	for _, t := range r.schedule.Troubles {
		switch t.Kind {
		case Partition, Pause, Mute, LieCall, Crash, LoseHost, StallCall, Restart:
			if t.Kind == LieCall || t.For > time.Minute {
				return true
			}
		}
	}
	for _, op := range r.schedule.Ops {
		if op.Verb == Retire {
			return true
		}
	}
	return false
}

// activity is who calls about a sandbox, as far as its clients know.
type activity struct {
	now    int  // calls in progress
	calls  int  // that began
	unsure bool // one ended without a word of what it did
}

// changes reports whether a call may change what a sandbox is.
func (v Verb) changes() bool {
	switch v {
	case Create, CreateOther, Suspend, Resume, Delete, Drain, Activate, Retire:
		return true
	}
	return false
}

// begins notes a call, and reports whether nobody else is at its sandbox.
func (r *runner) begins(id holdfast.SandboxID, op Op) bool {
	if id == "" || !op.Verb.changes() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.busy[id]
	if a == nil {
		a = &activity{}
		r.busy[id] = a
	}
	a.now, a.calls = a.now+1, a.calls+1
	return a.now == 1 && !a.unsure
}

// ends notes a call's end, and reports whether nobody else was at it.
func (r *runner) ends(id holdfast.SandboxID, op Op, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.busy[id]
	if a == nil || !op.Verb.changes() {
		return false
	}
	a.now--
	a.unsure = a.unsure || err != nil
	return a.now == 0
}

// trueNow holds a success against the machines: nobody else is at the sandbox, and
// nothing but its own lifetime may have changed it since.
func (r *runner) trueNow(o *Outcome) {
	want := map[holdfast.SandboxState]runtime.Phase{holdfast.SandboxReady: runtime.PhaseRunning, holdfast.SandboxSuspended: runtime.PhaseSuspended}
	phase, known := want[o.Sandbox.State]
	if o.Err != nil || !known || o.Sandbox.Operation != nil || o.Sandbox.ExpiresAt.Before(time.Now().Add(time.Second)) || r.mayBreakByItself() {
		return
	}
	ref := holdfast.InstanceRef{Instance: o.Sandbox.Instance, Incarnation: o.Sandbox.Incarnation}
	for _, h := range r.world.Hosts {
		if h.phase(ref) == phase {
			return
		}
	}
	r.violated("%s answered that %s is %s, and no machine has %s/%d %s", o.Op.Verb, o.Sandbox.ID, o.Sandbox.State, ref.Instance, ref.Incarnation, phase)
}

// mayBreakByItself reports whether instances end, move or are lied about in this run
// without anybody calling.
func (r *runner) mayBreakByItself() bool {
	for _, t := range r.schedule.Troubles {
		switch t.Kind {
		case GuestDies, LoseHost, LieCall, Partition, Pause, Mute:
			return true
		case BadHop:
			if t.Hop == "late copy" || t.Hop == "delay" {
				return true
			}
		}
	}
	for _, op := range r.schedule.Ops {
		if op.Verb == Drain || op.Verb == Retire || op.GiveUp > 0 && op.Verb.changes() {
			return true
		}
	}
	return r.mayBeGivenUp()
}

// watch lets a watcher see everything from now on, where the schedule has one.
func (r *runner) watch(ctx context.Context) {
	if !r.watching {
		return
	}
	watcher, err := r.world.ClientOf("watcher", holdfast.ProjectDefault)
	if err != nil {
		r.violated("no watcher: %v", err)
		return
	}
	r.watchers.Go(func() {
		after, err := "", error(nil)
		for ctx.Err() == nil && (err == nil || holdfast.Transient(err)) { // a server that stays away ends a watch
			err = watcher.WatchSandboxes(ctx, holdfast.WatchSandboxes{After: after}, func(e holdfast.SandboxEvent) error {
				r.mu.Lock()
				defer r.mu.Unlock()
				if after = e.Version; e.Sandbox != nil {
					r.watched[e.Sandbox.ID] = *e.Sandbox
				}
				return nil
			})
		}
		if ctx.Err() == nil {
			r.violated("a watch ended: %s", outcome(err))
		}
	})
}
