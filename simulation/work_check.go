package simulation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/store"
)

// sessionRow is what the orchestrators' database says of a session.
type sessionRow struct {
	id, build, sandbox, failure string
	state                       holdfast.SessionState
	generation, incarnation     int64
	closed                      bool
	prepared                    bool // it has a repository
}

// taskRow is one task.
type taskRow struct {
	id, session, process    string
	system, ended, lookedAt bool
	state                   holdfast.TaskState
	position, code          int64
	incarnation             int64
	named                   string // what its starts are counted as; "" of a preparation
	started, finished       time.Time
	log                     *struct {
		Lost           bool
		Stdout, Stderr struct {
			Key  string
			Size int64
		}
	}
}

// layered is a sandbox, checkpoint or build, and what it is made of.
type layered struct {
	id, state, sandbox string
	incarnation        int64
	layers             []holdfast.Layer
	open, ended        bool // a copy may go on; it is a build that has ended and been cleared
}

// work is what the database says of everything but sandboxes.
type work struct {
	sessions    map[string]sessionRow
	tasks       []taskRow // in the order of sessions and their queues
	checkpoints map[string]layered
	builds      map[string]layered
	uses        map[string]bool // "key user"
}

func (d *recorded) readWork(ctx context.Context, tx store.Tx) error {
	d.work = work{sessions: map[string]sessionRow{}, checkpoints: map[string]layered{}, builds: map[string]layered{}, uses: map[string]bool{}}
	return errors.Join(
		scan(ctx, tx, `SELECT id, build, sandbox, failure, state, generation, incarnation, door_closed, shape FROM session`, func(scan func(...any) error) error {
			var s sessionRow
			var shape struct{ Repository *holdfast.Repository }
			var text []byte
			err := scan(&s.id, &s.build, &s.sandbox, &s.failure, &s.state, &s.generation, &s.incarnation, &s.closed, &text)
			err = errors.Join(err, json.Unmarshal(text, &shape))
			s.prepared = shape.Repository != nil
			d.sessions[s.id] = s
			return err
		}), d.readTasks(ctx, tx),
		scan(ctx, tx, `SELECT id, state, sandbox, incarnation, spec, copying FROM checkpoint`, func(scan func(...any) error) error {
			var c layered
			var spec holdfast.InstanceSpec
			var text []byte
			err := scan(&c.id, &c.state, &c.sandbox, &c.incarnation, &text, &c.open)
			err = errors.Join(err, json.Unmarshal(text, &spec))
			c.layers = spec.Layers
			d.checkpoints[c.id] = c
			return err
		}),
		scan(ctx, tx, `SELECT id, state, sandbox, layers, cleared FROM environment_build`, func(scan func(...any) error) error {
			var b layered
			var text []byte
			err := scan(&b.id, &b.state, &b.sandbox, &text, &b.ended)
			if len(text) > 0 {
				err = errors.Join(err, json.Unmarshal(text, &b.layers))
			}
			d.builds[b.id] = b
			return err
		}),
		scan(ctx, tx, `SELECT key, used_by FROM layer_use`, func(scan func(...any) error) error {
			var key, by string
			err := scan(&key, &by)
			d.uses[key+" "+by] = true
			return err
		}))
}

func (d *recorded) readTasks(ctx context.Context, tx store.Tx) error {
	return scan(ctx, tx, `SELECT id, session, process, system, process_ended, look_at, state, position, exit_code, incarnation, command, started_at, finished_at, log
		FROM task ORDER BY session, position`, func(scan func(...any) error) error {
		var t taskRow
		var command struct{ Env map[string]string }
		var text, log []byte
		var look, started, finished int64
		err := scan(&t.id, &t.session, &t.process, &t.system, &t.ended, &look, &t.state, &t.position, &t.code, &t.incarnation, &text, &started, &finished, &log)
		if err = errors.Join(err, json.Unmarshal(text, &command)); len(log) > 0 {
			err = errors.Join(err, json.Unmarshal(log, &t.log))
		}
		if name := command.Env[TaskVariable]; name != "" {
			t.named = "task " + name
		}
		t.lookedAt, t.started, t.finished = look > 0, store.FromMicros(started), store.FromMicros(finished)
		d.tasks = append(d.tasks, t)
		return err
	})
}

// sessionsRest: no session is under way, and each is what its sandbox is.
func (c *checking) sessionsRest() {
	systems := map[string]int{}
	for _, t := range c.tasks {
		if t.system {
			systems[t.session]++
		}
	}
	for _, s := range c.sessions {
		box, has := c.sandboxes[s.sandbox]
		fits := map[holdfast.SessionState][]holdfast.SandboxState{
			holdfast.SessionReady: {holdfast.SandboxReady}, holdfast.SessionSuspended: {holdfast.SandboxSuspended},
			holdfast.SessionFailed:  {holdfast.SandboxFailed, holdfast.SandboxDeleting, holdfast.SandboxDeleted},
			holdfast.SessionDeleted: {holdfast.SandboxDeleted},
		}
		switch {
		case fits[s.state] == nil:
			c.breaks("%s is still %s", s.id, s.state)
		case !has && (s.state == holdfast.SessionReady || s.state == holdfast.SessionSuspended):
			c.breaks("%s is %s and has no sandbox", s.id, s.state)
		case has && !slices.Contains(fits[s.state], box.state):
			c.breaks("%s is %s, and its sandbox %s is %s", s.id, s.state, s.sandbox, box.state)
		case has && box.owner != s.id:
			c.breaks("%s has the sandbox %s, which is %q's", s.id, s.sandbox, box.owner)
		case s.state == holdfast.SessionReady && s.closed:
			c.breaks("%s is READY and takes no tasks", s.id)
		case s.state == holdfast.SessionFailed && s.failure == "":
			c.breaks("%s is FAILED, and nothing says why", s.id)
		}
		want := 0
		if s.prepared && s.sandbox != "" {
			want = 1
		}
		if systems[s.id] != want {
			c.breaks("%s has %d preparations; it is %s", s.id, systems[s.id], s.state)
		}
	}
	slices.Sort(c.broken)
}

// tasksRest: every task has ended, in its turn, ran at most once, and what it printed
// is kept.
func (c *checking) tasksRest() {
	c.world.boots.mu.Lock()
	defer c.world.boots.mu.Unlock()
	var before taskRow
	for _, t := range c.tasks {
		session := c.sessions[t.session]
		starts := len(c.world.boots.starts[t.named])
		switch {
		case t.state == holdfast.TaskQueued && session.state == holdfast.SessionSuspended:
		case t.state == holdfast.TaskQueued || t.state == holdfast.TaskRunning:
			c.breaks("%s of %s, which is %s, is still %s", t.id, t.session, session.state, t.state)
		case t.state == holdfast.TaskSucceeded && (!t.ended || t.code != 0):
			c.breaks("%s SUCCEEDED; its process ended: %v, with %d", t.id, t.ended, t.code)
		case t.named != "" && t.ended && starts != 1:
			c.breaks("the process of %s ended, and it was started %d times", t.id, starts)
		case t.lookedAt:
			c.breaks("%s is %s, and its output is still not kept", t.id, t.state)
		}
		if before.session == t.session && !before.started.IsZero() && !t.started.IsZero() &&
			(t.started.Before(before.started) || t.started.Before(before.finished) && before.incarnation == t.incarnation) {
			c.breaks("%s, in the queue before %s, began at %s and ended at %s; that one began at %s", before.id, t.id, before.started.Format(time.TimeOnly),
				before.finished.Format(time.TimeOnly), t.started.Format(time.TimeOnly))
		}
		c.outputOf(t)
		before = t
	}
	c.oneAtATime()
}

// outputOf holds what is kept of a task's output against what it printed.
func (c *checking) outputOf(t taskRow) {
	if t.log == nil || t.log.Lost || t.named == "" {
		if t.state == holdfast.TaskSucceeded && t.log == nil {
			c.breaks("%s SUCCEEDED, and nothing says where its output is", t.id)
		}
		return
	}
	if !t.ended || t.code > 128 { // by a signal, which may have come before it printed anything
		return
	}
	one, err := c.world.blobs.find(cmp.Or(t.log.Stdout.Key, "none"))
	if err != nil {
		c.breaks("the output of %s is kept under %q: %v", t.id, t.log.Stdout.Key, err)
	} else if string(one.data) != working+"\n" {
		c.breaks("the output of %s is kept as %q", t.id, one.data)
	}
}

// oneAtATime: two tasks of a session never ran at once in one boot.
func (c *checking) oneAtATime() {
	byBoot := map[holdfast.InstanceRef][]*start{}
	for what, all := range c.world.boots.starts {
		if strings.HasPrefix(what, "task ") || strings.HasPrefix(what, "preparation ") {
			for _, one := range all {
				byBoot[one.ref] = append(byBoot[one.ref], one)
			}
		}
	}
	for ref, all := range byBoot {
		slices.SortFunc(all, func(a, b *start) int { return a.at.Compare(b.at) })
		for i := 1; i < len(all); i++ {
			if all[i-1].ended.IsZero() || all[i-1].ended.After(all[i].at) {
				c.breaks("two tasks ran at once in %s/%d", ref.Instance, ref.Incarnation)
			}
		}
	}
}

// layersRest: checkpoints and builds have come to an end, what they are made of is in
// the blob store, and nothing is there that nobody needs.
func (c *checking) layersRest() {
	want := map[string]bool{}
	needs := func(id string, layers []holdfast.Layer) {
		for _, l := range layers {
			want[l.Key+" "+id] = true
			one, err := c.world.blobs.find(l.Key)
			if err != nil || int64(len(one.data)) != l.Size || sumOf(one.data) != l.SHA256 {
				c.breaks("%s is made of %s, of which the blob store has %d bytes instead of %d: %v", id, l.Key, len(one.data), l.Size, err)
			}
		}
	}
	for _, s := range c.sandboxes {
		if s.state != holdfast.SandboxDeleted {
			needs(s.id, s.layers)
		}
	}
	for _, one := range c.checkpoints {
		if one.state == string(holdfast.CheckpointCreating) || one.state == string(holdfast.CheckpointDeleting) || one.open {
			c.breaks("%s is still %s; a copy may go on: %v", one.id, one.state, one.open)
		}
		if one.state == string(holdfast.CheckpointReady) {
			needs(one.id, one.layers)
		}
	}
	for _, one := range c.builds {
		if one.state == string(holdfast.BuildBuilding) || !one.ended {
			c.breaks("%s is %s; its builder %s is gone: %v", one.id, one.state, one.sandbox, one.ended)
		}
		if box := c.sandboxes[one.sandbox]; one.sandbox != "" && box.state != holdfast.SandboxDeleted {
			c.breaks("%s is %s, and its builder %s is %s", one.id, one.state, one.sandbox, box.state)
		}
		needs(one.id, one.layers)
	}
	for use := range c.uses {
		if !want[use] {
			c.breaks("a use of a layer is left: %s", use)
		}
	}
	for use := range want {
		if !c.uses[use] {
			c.breaks("a use of a layer is not counted: %s", use)
		}
	}
	c.blobsRest(want)
	slices.Sort(c.broken)
}

func (c *checking) blobsRest(want map[string]bool) {
	needed := map[string]bool{}
	for use := range want {
		key, _, _ := strings.Cut(use, " ")
		needed[key] = true
	}
	c.world.blobs.mu.Lock()
	defer c.world.blobs.mu.Unlock()
	for key := range c.world.blobs.objects {
		if strings.HasPrefix(key, "checkpoints/") && !needed[key] {
			c.breaks("the blob store has %s, which nothing needs", key)
		}
	}
}

// holds reports whether a sandbox that runs has a file; false, false where none runs.
func (c *checking) holds(id, file string) (holds, runs bool) {
	s := c.sandboxes[id]
	if wanted(s) == runtime.PhaseAbsent {
		return false, false
	}
	root, known := c.world.boots.root(holdfast.InstanceRef{Instance: holdfast.InstanceID(s.instance), Incarnation: s.incarnation})
	if !known {
		return false, false
	}
	for _, h := range c.world.Hosts {
		if h.phase(holdfast.InstanceRef{Instance: holdfast.InstanceID(s.instance), Incarnation: s.incarnation}) == wanted(s) {
			_, err := os.Stat(filepath.Join(root, file))
			return err == nil, true
		}
	}
	return false, false
}

// toldOfWork: what a client saw of sessions, tasks, builds and checkpoints is still so.
func (c *checking) toldOfWork(o Outcome) {
	a := o.Answer
	if a.ID == "" {
		return
	}
	now, generation, known := c.stateOf(a)
	later := map[string][]string{
		"DELETED": {"DELETED"}, "DELETING": {"DELETING", "DELETED"}, "FAILED": {"FAILED", "DELETING", "DELETED"},
		"SUCCEEDED": {"SUCCEEDED"}, "CANCELLED": {"CANCELLED"}, "TIMED_OUT": {"TIMED_OUT"}, "SUPERSEDED": {"SUPERSEDED"},
	}
	if a.Kind == "build" || a.Kind == "checkpoint" {
		later["READY"] = []string{"READY", "DELETING", "DELETED"}
	}
	switch all, final := later[a.State]; {
	case !known:
		c.breaks("%s was answered by a %s and is not there", a.ID, o.Op.Verb)
	case final && !slices.Contains(all, now):
		c.breaks("%s was told %s and is %s", a.ID, a.State, now)
	case generation < a.Generation:
		c.breaks("%s was told at generation %d and is at %d", a.ID, a.Generation, generation)
	}
	want := map[Verb]string{DeleteSession: "DELETED", SuspendSession: "SUSPENDED", ResumeSession: "READY", DeleteCheckpoint: "DELETED"}[o.Op.Verb]
	if want != "" && a.State != want && !c.overtaken(o) {
		c.breaks("a %s of %s succeeded and answered with %s", o.Op.Verb, a.ID, a.State)
	}
}

// overtaken reports whether something else began about a session while a call about it
// waited: the call succeeded, and its answer is what came then (contract: A5).
func (c *checking) overtaken(o Outcome) bool {
	kind := map[Verb]holdfast.OperationKind{SuspendSession: holdfast.OperationSuspend, ResumeSession: holdfast.OperationResume}[o.Op.Verb]
	return kind != "" && slices.ContainsFunc(c.operations, func(op operationRow) bool {
		return op.sandbox == o.Answer.ID && op.kind != string(kind) && op.entered.After(o.Began) && op.entered.Before(o.Ended)
	})
}

func (c *checking) stateOf(a answer) (state string, generation int64, known bool) {
	switch a.Kind {
	case "session":
		s, known := c.sessions[a.ID]
		return string(s.state), s.generation, known
	case "build":
		b, known := c.builds[a.ID]
		return b.state, 0, known
	case "checkpoint":
		one, known := c.checkpoints[a.ID]
		return one.state, 0, known
	}
	i := slices.IndexFunc(c.tasks, func(t taskRow) bool { return t.id == a.ID })
	if i < 0 {
		return "", 0, false
	}
	return string(c.tasks[i].state), 0, true
}

// forks: a fork has what had been written before its checkpoint was asked for, and a
// session what its environment's build made. What is missing once is a violation, though
// it is no longer seen when its sandbox is over.
func (c *checking) forks(r *runner) {
	for _, o := range r.outcomes {
		checkpoint, taken := c.checkpoints[r.made["checkpoint "+slotKey(o.Project, o.Op.Slot)]]
		if o.Op.Verb != Fork || o.Err != nil || !taken || checkpoint.incarnation != 1 {
			continue
		}
		if has, runs := c.holds(string(o.Sandbox.ID), writtenFile); runs && !has && r.writtenBefore(o) {
			c.breaks("%s is a fork of %s, and has not what was written before that", o.Sandbox.ID, checkpoint.id)
		}
	}
	for _, s := range c.sessions {
		if has, runs := c.holds(s.sandbox, recipeFile); runs && !has && s.build != "" {
			c.breaks("%s is made of %s, and has not what that made", s.id, s.build)
		}
	}
}

// writtenBefore reports whether a write of the sandbox was acknowledged before anybody
// asked for its checkpoint. r.mu is held.
func (r *runner) writtenBefore(fork Outcome) bool {
	first := time.Time{}
	for _, o := range r.outcomes {
		if o.Op.Verb == Checkpoint && o.Op.Slot == fork.Op.Slot && o.Project == fork.Project && (first.IsZero() || o.Began.Before(first)) {
			first = o.Began
		}
	}
	return slices.ContainsFunc(r.outcomes, func(o Outcome) bool {
		return o.Op.Verb == Write && o.Err == nil && o.Op.Slot == fork.Op.Slot && o.Project == fork.Project && o.Ended.Before(first)
	})
}
