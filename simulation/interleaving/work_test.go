package interleaving

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/store"
)

// work is what a world has beyond sandboxes: blobs, guests, and the sessions, tasks,
// builds and checkpoints that a race is about.
type work struct {
	*shelf
	guests *inhabitants
	db     store.DB

	session    holdfast.SessionID
	waiting    holdfast.SessionID // for the build
	task, next holdfast.TaskID
	build      holdfast.BuildID
	checkpoint holdfast.CheckpointID
	unheard    ending         // of a process, that its guest has not told yet
	got        map[string]any // what actors were told
}

// employ gives a world what sessions need, and lets its events be recorded.
func (w *world) employ(ctx context.Context) error {
	w.equip(w.odb)
	w.sched.serial = replicas
	return w.odb.Update(ctx, func(tx store.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO event_project (project, recording, sequence, purged, asked_at) VALUES ($1, TRUE, 1, 0, 0)`, string(holdfast.ProjectDefault))
		return err
	})
}

func (w *world) equip(db store.DB) {
	w.work = &work{shelf: &shelf{sched: w.sched, has: map[string][]byte{}}, db: db, got: map[string]any{}}
	w.work.guests = &inhabitants{world: w, boots: map[holdfast.InstanceRef]map[string]*holdfast.Process{}, starts: map[string]int{}}
	for _, h := range w.hosts {
		h.inside = w.work.guests
	}
}

// replicas is what the names of those begin with who do what goes on without a caller.
const replicas = "replica "

// into makes an orchestrator one of this world's; what it does without a caller, it
// does in the name that the context has.
func (k *work) into(ctx context.Context, config *orchestrator.Config, replica int) context.Context {
	config.Blobs, config.Guest = k.shelf, k.guests.guest
	return as(ctx, replicas+strconv.Itoa(replica))
}

// tells is an actor whose answer a check looks at.
func tells[T any](name string, do func(ctx context.Context, w *world) (T, error)) actor {
	return plain(name, func(ctx context.Context, w *world) error {
		out, err := do(ctx, w)
		if err == nil {
			w.mu.Lock()
			w.work.got[name] = out
			w.mu.Unlock()
		}
		return err
	})
}

// told is what an actor was told; false where it was told an error.
func told[T any](w *world, name string) (out T, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out, ok = w.work.got[name].(T)
	return out, ok
}

// How races of sessions begin.

func base(requestID string) holdfast.CreateSession {
	return holdfast.CreateSession{RequestID: requestID, Environment: "base"}
}

// isSession is a READY session.
func isSession(change ...func(*holdfast.CreateSession)) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		in := base("session")
		for _, c := range change {
			c(&in)
		}
		se, err := w.orch[0].CreateSession(ctx, alice, in)
		if err != nil {
			return err
		}
		w.work.session = se.ID
		return w.settle(ctx)
	}
}

// settle lets what goes on in the background end, and finds the session's sandbox.
func (w *world) settle(ctx context.Context) error {
	pass(2 * time.Minute)
	se, err := w.orch[0].GetSession(ctx, alice, w.work.session)
	if err != nil {
		return err
	}
	w.sandbox = se.Sandbox
	sb, err := w.orch[0].GetSandbox(ctx, alice, se.Sandbox)
	w.instance = sb.Instance
	return err
}

func restartsAnew(in *holdfast.CreateSession) { in.Restart = holdfast.RestartFresh }

var fetched = &holdfast.Repository{URL: "https://example.com/tools.git"}

func ofRepository(in *holdfast.CreateSession) { in.Repository = fetched }

// sleeps is a SUSPENDED session.
func sleeps(ctx context.Context, w *world) error {
	if err := isSession()(ctx, w); err != nil {
		return err
	}
	_, err := w.orch[0].SuspendSession(ctx, alice, holdfast.MutateSession{ID: w.work.session})
	pass(time.Minute)
	return err
}

// isIdle is a session that nothing was done with for its idle time.
func isIdle(ctx context.Context, w *world) error {
	err := isSession()(ctx, w)
	pass(holdfast.DefaultIdle)
	return err
}

// works is a session in which a task runs, and n more wait.
func works(n int, change ...func(*holdfast.CreateSession)) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		if err := isSession(change...)(ctx, w); err != nil {
			return err
		}
		t, err := w.submit(ctx, 0, "task")
		w.work.task = t.ID
		for i := range n {
			more, failed := w.submit(ctx, 0, fmt.Sprintf("more-%d", i))
			err = errors.Join(err, failed)
			w.work.next = more.ID
		}
		pass(time.Minute)
		return err
	}
}

// isPreparing is a session whose preparation runs.
func isPreparing(ctx context.Context, w *world) error {
	if err := isSession(ofRepository)(ctx, w); err != nil {
		return err
	}
	page, err := w.orch[0].ListTasks(ctx, alice, holdfast.ListTasks{Session: w.work.session})
	if err == nil && len(page.Tasks) != 1 {
		err = fmt.Errorf("a session has %d preparations", len(page.Tasks))
	}
	if err == nil {
		w.work.task = page.Tasks[0].ID
	}
	return err
}

// building is an environment whose setup runs, and a session that waits for it.
func building(ctx context.Context, w *world) error {
	_, err := w.orch[0].CreateEnvironment(ctx, alice, holdfast.CreateEnvironment{Name: "tools",
		Recipe: holdfast.Recipe{Base: "base", Setup: "make", Repository: fetched, Timeout: 20 * time.Minute}})
	if err != nil {
		return err
	}
	b, err := w.orch[0].BuildEnvironment(ctx, alice, holdfast.BuildEnvironment{RequestID: "build", Environment: "tools"})
	if err != nil {
		return err
	}
	w.work.build = b.ID
	pass(time.Minute)
	_, err = w.orch[0].CreateSession(ctx, alice, holdfast.CreateSession{RequestID: "waits", Environment: "tools"})
	if holdfast.CodeOf(err) != holdfast.Unavailable {
		return fmt.Errorf("a session of an environment that is being built: %w", err)
	}
	w.work.waiting = holdfast.SessionID(holdfast.AsError(err).Resource)
	pass(time.Minute)
	if b, err = w.orch[0].GetBuild(ctx, alice, b.ID); err == nil && b.Process == "" {
		err = errors.New("the setup does not run")
	}
	return err
}

// isLate is the same once the build's time is over.
func isLate(ctx context.Context, w *world) error {
	err := building(ctx, w)
	pass(20 * time.Minute)
	return err
}

// isRebuilt is the same once another build has taken the first one's place, whose setup
// had ended by then: nobody has heard of it yet.
func isRebuilt(ctx context.Context, w *world) error {
	if err := building(ctx, w); err != nil {
		return err
	}
	var ok bool
	if w.work.unheard, ok = w.work.guests.end(string(w.work.build), 0); !ok {
		return errors.New("the setup does not run")
	}
	_, err := w.orch[0].BuildEnvironment(ctx, alice, holdfast.BuildEnvironment{RequestID: "again", Environment: "tools"})
	pass(time.Minute)
	return err
}

// isCopied is a sandbox of which there is a checkpoint.
func isCopied(ctx context.Context, w *world) error {
	if err := isReady(ctx, w); err != nil {
		return err
	}
	return w.copied(ctx, string(w.sandbox))
}

// isSessionCopied is a session of which there is one.
func isSessionCopied(ctx context.Context, w *world) error {
	if err := works(0)(ctx, w); err != nil {
		return err
	}
	return w.copied(ctx, string(w.work.session))
}

func (w *world) copied(ctx context.Context, source string) error {
	c, err := w.orch[0].CreateCheckpoint(ctx, alice, holdfast.CreateCheckpoint{RequestID: "checkpoint", Source: source})
	w.work.checkpoint = c.ID
	pass(time.Minute)
	return err
}

// isForked is a fork whose checkpoint and whose source are gone: the fork alone needs the copy.
func isForked(ctx context.Context, w *world) error {
	if err := isCopied(ctx, w); err != nil {
		return err
	}
	fork, err := w.fork(ctx, 0, "fork")
	if err != nil {
		return err
	}
	_, first := w.orch[0].DeleteCheckpoint(ctx, alice, holdfast.MutateCheckpoint{ID: w.work.checkpoint})
	_, second := w.orch[0].DeleteSandbox(ctx, alice, holdfast.MutateSandbox{ID: w.sandbox})
	w.sandbox, w.instance = fork.ID, fork.Instance
	pass(time.Minute)
	return errors.Join(first, second)
}

// The actors.

func (w *world) submit(ctx context.Context, replica int, requestID string) (holdfast.Task, error) {
	return w.orch[replica].SubmitTask(ctx, alice, holdfast.SubmitTask{RequestID: requestID, Session: w.work.session, Command: "work"})
}

func (w *world) fork(ctx context.Context, replica int, requestID string) (holdfast.Sandbox, error) {
	return w.orch[replica].CreateSandbox(ctx, alice, holdfast.CreateSandbox{RequestID: requestID, Source: w.work.checkpoint, TTL: 24 * time.Hour})
}

func submits(replica int, requestID string) actor {
	return tells("submit "+strconv.Itoa(replica), func(ctx context.Context, w *world) (holdfast.Task, error) {
		return w.submit(ctx, replica, requestID)
	})
}

// changes is a verb on the race's session.
func changes(verb holdfast.OperationKind, replica int, force bool) actor {
	return tells(fmt.Sprintf("%s session %d", strings.ToLower(string(verb)), replica), func(ctx context.Context, w *world) (holdfast.Session, error) {
		in := holdfast.MutateSession{ID: w.work.session, Force: force}
		switch verb {
		case suspend:
			return w.orch[replica].SuspendSession(ctx, alice, in)
		case resume:
			return w.orch[replica].ResumeSession(ctx, alice, in)
		default:
			return w.orch[replica].DeleteSession(ctx, alice, in)
		}
	})
}

func createsSession(replica int, in holdfast.CreateSession) actor {
	return tells("create session "+strconv.Itoa(replica), func(ctx context.Context, w *world) (holdfast.Session, error) {
		if in.Environment == "" {
			in.Source = w.work.checkpoint
		}
		return w.orch[replica].CreateSession(ctx, alice, in)
	})
}

func cancels(replica int, which func(*work) holdfast.TaskID) actor {
	return tells("cancel "+strconv.Itoa(replica), func(ctx context.Context, w *world) (holdfast.Task, error) {
		return w.orch[replica].CancelTask(ctx, alice, which(w.work))
	})
}

func running(k *work) holdfast.TaskID { return k.task }
func queued(k *work) holdfast.TaskID  { return k.next }

// finishes is the running task's process ending with a code, and its guest saying so.
func finishes(replica int, code int) actor {
	return plain("turn complete "+strconv.Itoa(replica), func(ctx context.Context, w *world) error {
		w.sched.step(ctx, "its process ends")
		return w.says(ctx, replica, holdfast.ReportTask, saying{string(w.work.task), code})
	})
}

// saysBuilt is the setup of the race's first build ending, and its guest saying so.
func saysBuilt(replica int, code int) actor {
	return plain("setup ended "+strconv.Itoa(replica), func(ctx context.Context, w *world) error {
		w.sched.step(ctx, "its process ends")
		return w.says(ctx, replica, holdfast.ReportSetup, saying{string(w.work.build), code})
	})
}

// saying is what a guest says: the process of a request id ended with a code.
type saying struct {
	request string
	code    int
}

// says is H5: a process has ended. What no longer runs says nothing, but for a word
// that was on its way before.
func (w *world) says(ctx context.Context, replica int, kind holdfast.ReportKind, what saying) error {
	e, ok := w.work.guests.end(what.request, what.code)
	if !ok {
		return nil
	}
	return w.tell(ctx, replica, kind, e)
}

// saysLate is what the guest of a superseded build had to say.
func saysLate(replica int) actor {
	return plain("a late setup "+strconv.Itoa(replica), func(ctx context.Context, w *world) error {
		return w.tell(ctx, replica, holdfast.ReportSetup, w.work.unheard)
	})
}

// tell delivers the end of a process as its guest does.
func (w *world) tell(ctx context.Context, replica int, kind holdfast.ReportKind, e ending) error {
	p := e.process
	report := holdfast.ProcessReport{Instance: e.ref.Instance, Incarnation: e.ref.Incarnation, Process: p.ID, RequestID: p.RequestID,
		ExitCode: p.ExitCode, StartedAt: p.StartedAt, FinishedAt: p.FinishedAt}
	body, err := json.Marshal(report)
	if err != nil {
		return err
	}
	id := string(e.ref.Instance)
	return w.post(ctx, replica, "/deliveries/instances",
		delivery.Message{ID: delivery.DeriveID(string(kind), id, e.ref.Incarnation, p.RequestID), Kind: string(kind.Delivery(p.ExitCode)), Body: body},
		source{delivery.InstanceSecret(clusterKey, id, e.ref.Incarnation), http.Header{
			holdfast.HeaderInstance: {id}, holdfast.HeaderIncarnation: {strconv.FormatInt(e.ref.Incarnation, 10)}}})
}

func rebuilds(replica int) actor {
	return tells("rebuild "+strconv.Itoa(replica), func(ctx context.Context, w *world) (holdfast.Build, error) {
		return w.orch[replica].BuildEnvironment(ctx, alice, holdfast.BuildEnvironment{RequestID: "again", Environment: "tools"})
	})
}

func takes(replica int, of func(*world) string) actor {
	return tells("checkpoint "+strconv.Itoa(replica), func(ctx context.Context, w *world) (holdfast.Checkpoint, error) {
		return w.orch[replica].CreateCheckpoint(ctx, alice, holdfast.CreateCheckpoint{RequestID: "taken", Source: of(w)})
	})
}

func ofSandbox(w *world) string { return string(w.sandbox) }
func ofSession(w *world) string { return string(w.work.session) }

func deletesCheckpoint(replica int) actor {
	return tells("delete checkpoint "+strconv.Itoa(replica), func(ctx context.Context, w *world) (holdfast.Checkpoint, error) {
		return w.orch[replica].DeleteCheckpoint(ctx, alice, holdfast.MutateCheckpoint{ID: w.work.checkpoint})
	})
}

func forks(replica int, requestID string) actor {
	return tells("fork "+requestID, func(ctx context.Context, w *world) (holdfast.Sandbox, error) {
		return w.fork(ctx, replica, requestID)
	})
}

// What holds of them.

// restWork runs the sweeps of what a world has beyond sandboxes, once all that ran has
// ended and nobody said so.
func (w *world) restWork(ctx context.Context) error {
	w.work.guests.endAll()
	var swept []error
	for _, name := range []string{orchestrator.SweepSessionOperations, orchestrator.SweepSessionWaiting, orchestrator.SweepTasks, orchestrator.SweepBuilds,
		orchestrator.SweepBuilders, orchestrator.SweepDeletions, orchestrator.SweepCheckpoints, orchestrator.SweepBlobs} {
		swept = append(swept, w.sweep(ctx, 0, name))
	}
	return errors.Join(swept...)
}

// rule is a query whose number is zero.
type rule struct{ what, query string }

// none fails for the first query whose number is not zero.
func (w *world) none(rules []rule) error {
	for _, r := range rules {
		if n, err := w.count(w.work.db, r.query); err != nil || n != 0 {
			return errors.Join(err, fmt.Errorf("%s: %d", r.what, n))
		}
	}
	return nil
}

// unrestWork is what is still under way of it.
func (w *world) unrestWork() error {
	err := w.none([]rule{
		{"deletes of sessions are wanted", `SELECT COUNT(*) FROM session WHERE delete_wanted AND state NOT IN ('DELETED', 'DELETING')`},
		{"sessions are on their way", `SELECT COUNT(*) FROM session WHERE state IN ('WAITING', 'CREATING', 'DELETING')`},
		{"tasks are on their way", `SELECT COUNT(*) FROM task WHERE state = 'RUNNING' OR state = 'QUEUED'`},
		{"output of tasks is not kept", `SELECT COUNT(*) FROM task WHERE look_at > 0`},
		{"builds are on their way", `SELECT COUNT(*) FROM environment_build WHERE state = 'BUILDING' OR cleared = FALSE`},
		{"checkpoints are on their way", `SELECT COUNT(*) FROM checkpoint WHERE state IN ('CREATING', 'DELETING') OR copying`},
	})
	if err != nil {
		return err
	}
	w.work.mu.Lock()
	defer w.work.mu.Unlock()
	for key := range w.work.has {
		if !strings.HasPrefix(key, "checkpoints/") {
			continue
		}
		if n, err := w.count(w.work.db, `SELECT COUNT(*) FROM layer_use WHERE key = $1`, key); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("nothing is made of %s", key))
		}
	}
	return nil
}

// ended are the kinds of the events that say that a task has ended.
const ended = `('task.succeeded', 'task.failed', 'task.cancelled', 'task.timed_out')`

// checkWork is what holds of it at rest, whatever the scenario.
func (w *world) checkWork(ctx context.Context) error {
	w.work.guests.mu.Lock()
	broken := w.work.guests.broken
	w.work.guests.mu.Unlock()
	errs := []error{broken, w.none([]rule{
		{"a session is not what its sandbox is (E3, A13)", `SELECT COUNT(*) FROM session s JOIN sandbox b ON b.id = s.sandbox WHERE s.state <> b.state
			AND NOT (s.state = 'DELETED' AND b.state = 'DELETED')`},
		{"a sandbox is a session's that has another", `SELECT COUNT(*) FROM sandbox b WHERE b.owner LIKE 'se-%' AND NOT EXISTS (SELECT 1 FROM session s WHERE s.id = b.owner AND s.sandbox = b.id)`},
		{"a session that no request made (A3)", `SELECT COUNT(*) FROM session s WHERE NOT EXISTS (SELECT 1 FROM request r WHERE r.resource = s.id)`},
		{"a session's door is closed for good", `SELECT COUNT(*) FROM session WHERE door_closed AND state IN ('READY', 'SUSPENDED')`},
		{"a session was prepared more than once (E2)", `SELECT COUNT(*) FROM (SELECT session FROM task WHERE system GROUP BY session HAVING COUNT(*) > 1) p`},
		{"a task's end was told more or less than once (E3)", `SELECT COUNT(*) FROM task t WHERE 1 <> (SELECT COUNT(*) FROM event e WHERE e.resource = t.id AND e.kind IN ` + ended + `)`},
		{"the last event of a session is not of its state", `SELECT COUNT(*) FROM session s, event e WHERE e.resource = s.id
			AND e.at = (SELECT MAX(l.at) FROM event l WHERE l.resource = s.id) AND e.kind <> 'session.' || LOWER(s.state) AND NOT (s.state = 'READY' AND e.kind = 'session.resumed')`},
		{"a session has a sandbox of a build that is not READY (E2)", `SELECT COUNT(*) FROM session s JOIN environment_build b ON b.id = s.build WHERE b.state <> 'READY' AND s.sandbox <> ''`},
		{"a READY checkpoint names no copy (E4)", `SELECT COUNT(*) FROM checkpoint c WHERE c.state = 'READY' AND NOT EXISTS (SELECT 1 FROM layer_use u WHERE u.used_by = c.id)`},
	}), w.copiesAreThere(ctx), w.neverRan(ctx)}
	return errors.Join(errs...)
}

// copiesAreThere: what something is made of is in the blob store (E4).
func (w *world) copiesAreThere(ctx context.Context) error {
	keys, err := w.strings(ctx, `SELECT DISTINCT key FROM layer_use`)
	for _, key := range keys {
		if !w.work.holds(key) {
			err = errors.Join(err, fmt.Errorf("something is made of %s, which is gone", key))
		}
	}
	return err
}

// neverRan: a task that was cancelled before it started has no process.
func (w *world) neverRan(ctx context.Context) error {
	ids, err := w.strings(ctx, `SELECT id FROM task WHERE state = 'CANCELLED' AND process = ''`)
	w.work.guests.mu.Lock()
	defer w.work.guests.mu.Unlock()
	for _, id := range ids {
		if w.work.guests.starts[id] > 0 {
			err = errors.Join(err, errors.New("a task that was cancelled before it started ran"))
		}
	}
	return err
}

func (w *world) strings(ctx context.Context, query string) (all []string, err error) {
	err = w.work.db.View(ctx, func(tx store.Tx) (err error) {
		all = nil
		rows, err := tx.QueryContext(ctx, query)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var one string
			if err := rows.Scan(&one); err != nil {
				return err
			}
			all = append(all, one)
		}
		return rows.Err()
	})
	return all, err
}
