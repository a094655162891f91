package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"time"

	modernc "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/holdfast-dev/holdfast/store"
)

var errVanished = errors.New("the function ended its goroutine")

// writer is the one goroutine that writes: it commits waiting updates in groups. Members that fail are rare, so a group begins
// without savepoints; the first failure undoes it and runs it again with a savepoint for each member, as the next groups run
// too. A savepoint costs a copy of every page that is changed after it: with the statements about it that was a twentieth of a
// create's processor time (measured).
//
// While a group waits for its fsync the next one gathers in the queue. A group takes all that wait, and those that come
// while it runs, up to its limit. It runs on no caller's context.
//
// The members' functions run in the writer's goroutine. In their callers' they would cost two switches each, and SQLite
// needs a deep stack, which each caller's would have to grow into: together a fifth of a create's processor time
// (measured). A panic goes on in the caller, and so does the end of the goroutine, see [writer.call].
type writer struct {
	queue    queue
	pool     *sql.DB // one connection: conn
	readers  *sql.DB
	conn     *sql.Conn
	direct   *conn // conn's own, which is this goroutine's alone: to reach it through conn costs a closure and a lock
	gate     chan struct{}
	clock    func() time.Time
	log      *slog.Logger
	maxGroup int
	stopped  chan struct{}
	stats    counters
	group    *group // in progress; nil between groups
	pages    int    // about how many the log has and the file has not
	foldAt   int    // of those: when to fold them
	folding  bool   // a fold beside the writer is under way, or over and not looked at
	folded   chan error
	wary     int // how many more groups have savepoints from their beginning
	// lost is why conn was given up, while it is nil.
	lost error
	// fault lets a test make a step fail; nil otherwise.
	fault func(step string) error
}

// Steps of a group, in order, as the fault hook hears of them.
const (
	stepBegin     = "BEGIN IMMEDIATE"
	stepSavepoint = "SAVEPOINT member"
	stepRelease   = "RELEASE member"
	stepUndo      = "ROLLBACK TO member"
	stepCommit    = "COMMIT"
	stepRollback  = "ROLLBACK"
)

func newWriter(ctx context.Context, pool, readers *sql.DB, gate chan struct{}, cfg Config) (*writer, error) {
	w := &writer{
		queue: queue{wake: make(chan struct{}, 1)},
		pool:  pool, readers: readers, gate: gate,
		foldAt: checkpointAfter, folded: make(chan error, 1),
		clock: cfg.Clock, log: cfg.Log, maxGroup: cfg.MaxGroup,
		stopped: make(chan struct{}),
	}
	if err := w.connect(ctx); err != nil {
		return nil, err
	}
	go w.loop()
	return w, nil
}

// Update implements store.DB. The function waits for its turn in a group of concurrent updates.
//
// A context that ends before the function has its turn takes it out of the queue; one that ends while it runs makes it
// fail; later, Update waits for the commit and tells what came of it.
func (db *DB) Update(ctx context.Context, fn func(store.Tx) error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("update: %w", ended(ctx))
	}
	m := newMember(ctx, fn)
	if err := db.writer.queue.put(m); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	return m.wait()
}

// group is some updates on their way into one commit.
type group struct {
	members  []*member
	outcomes []outcome
	told     int // of a group that failed: how many members know
}

// outcome is what a run of a member's function left.
type outcome struct {
	err      error // the function's, or what stands for its panic
	panicked any   // its panic
	vanished bool  // it ended its goroutine: it cannot run again
}

func (o outcome) verdict() verdict { return verdict(o) }

func (w *writer) loop() {
	defer func() {
		if w.group != nil { // a member's function ended this goroutine: another one goes on
			go w.loop()
			return
		}
		close(w.stopped)
	}()
	if w.group != nil {
		w.alone(w.apart)
	}
	for m := w.queue.next(); m != nil; m = w.queue.next() {
		w.alone(func() { w.gather(m) })
	}
}

// alone runs work alone with the database.
func (w *writer) alone(work func()) {
	if w.gate != nil {
		w.gate <- struct{}{}
		defer func() { <-w.gate }()
	}
	work()
}

// stop ends the loop after its present group.
func (w *writer) stop() {
	w.queue.close()
	<-w.stopped
	if w.folding {
		if err := <-w.folded; err != nil { // the last connection to close folds what is left
			w.log.Error("the write-ahead log could not be folded into the database's file", "error", err)
		}
	}
}

func (w *writer) close() error {
	var err error
	if w.conn != nil {
		err = w.conn.Close()
	}
	return errors.Join(err, w.pool.Close())
}

// gather commits the first member together with all that wait.
func (w *writer) gather(first *member) {
	if err := w.begin(); err != nil {
		// Nothing was begun, so the outcome is known; who waits would only wait for the same refusal. Whoever comes once
		// the first of them has been told finds out anew.
		var waiting []*member
		for m := first; m != nil; m = w.queue.poll() {
			waiting = append(waiting, m)
		}
		for _, m := range waiting {
			m.tell(verdict{err: err})
		}
		return
	}
	g := &group{}
	w.group = g
	for m := first; m != nil; m = w.more(len(g.members)) {
		if m.ctx.Err() != nil {
			m.tell(verdict{err: fmt.Errorf("update: %w", ended(m.ctx))})
			continue
		}
		g.members, g.outcomes = append(g.members, m), append(g.outcomes, outcome{})
		if err := w.add(g); err != nil {
			w.stats.apart.Add(1)
			w.apart()
			return
		}
	}
	err := w.commit(len(g.members))
	w.group, w.wary = nil, max(0, w.wary-1)
	for i, m := range g.members {
		v := g.outcomes[i].verdict()
		if err != nil {
			v.err = err
		}
		m.tell(v)
	}
	w.fold()
}

// fold has the log's pages written into the file once there are many. That takes many times what a group takes, so it is done
// on another connection, beside the next groups; the log can begin anew only when all of it is folded, so the
// writer itself does the little that came meanwhile.
func (w *writer) fold() {
	if w.gate != nil || w.pages < w.foldAt || w.conn == nil {
		return
	}
	if !w.folding {
		w.folding = true
		go func() {
			w.folded <- onConn(context.Background(), w.readers, func(c *conn) error {
				_, err := c.checkpoint()
				return err
			})
		}()
		return
	}
	select {
	case err := <-w.folded:
		w.folding = false
		left := 0
		if err == nil {
			left, err = w.direct.checkpoint()
		}
		if err != nil { // nothing is lost: the log goes on
			w.log.Error("the write-ahead log could not be folded into the database's file", "error", err)
			left = w.foldAt / 2
		}
		w.pages = left
	default:
	}
}

// more takes the next member into a group of so many. Those whom the last commit released are often just about to come
// again, and to let them run for a moment brings groups from 19 of 32 writers to 31 (measured). Throughput followed at 8
// and 32 writers; at 1 and 64 no difference stood out from the disk's noise.
func (w *writer) more(have int) *member {
	if have >= w.maxGroup {
		return nil
	}
	m := w.queue.poll()
	for tries := 0; m == nil && tries < 2; tries++ {
		runtime.Gosched()
		m = w.queue.poll()
	}
	return m
}

// waryFor is for how many groups a failure among several members makes the writer wary: where many updates fail, one group in
// so many runs twice.
const waryFor = 100

// add runs the group's last member. An error means that the group has failed.
func (w *writer) add(g *group) error {
	last := len(g.members) - 1
	if w.wary > 0 {
		return w.inSavepoint(&g.outcomes[last], g.members[last])
	}
	if w.play(&g.outcomes[last], g.members[last]); g.outcomes[last].err == nil {
		return nil
	}
	w.reset()
	if err := w.begin(); err != nil || last == 0 {
		return err // of a first member nothing is left that anybody else depends on, or it on them
	}
	w.stats.repeated.Add(1)
	w.wary = waryFor
	for i, m := range g.members {
		if m.ctx.Err() != nil {
			g.outcomes[i] = outcome{err: fmt.Errorf("update: %w", ended(m.ctx))}
			continue
		}
		if err := w.inSavepoint(&g.outcomes[i], m); err != nil {
			return err
		}
	}
	return nil
}

// inSavepoint runs a member within the group. An error means that savepoints no longer hold: the group has failed.
func (w *writer) inSavepoint(out *outcome, m *member) error {
	if err := w.exec(stepSavepoint); err != nil {
		return err
	}
	w.play(out, m)
	if out.err != nil {
		if err := w.exec(stepUndo); err != nil {
			return err
		}
	}
	return w.exec(stepRelease)
}

// play runs a member's function, and closes all that it held.
func (w *writer) play(out *outcome, m *member) {
	t := &tx{ctx: m.ctx, conn: w.conn, direct: w.direct, clock: w.clock}
	w.call(out, m, t)
	w.conclude(out, t)
}

func (w *writer) conclude(out *outcome, t *tx) {
	out.err = t.end(out.err)
	settled := w.direct.settle()
	if out.err == nil && settled != nil { // otherwise it repeats the function's own error
		out.err = fmt.Errorf("nothing was written: %w", settled)
	}
}

// call calls a member's function. Where that ends this goroutine call never returns: it takes back the whole group, whose
// other members the loop's next goroutine runs apart.
func (w *writer) call(out *outcome, m *member, t *tx) {
	*out = outcome{}
	returned := false
	defer func() {
		if returned {
			return
		}
		if out.panicked = recover(); out.panicked != nil {
			out.err = fmt.Errorf("panic: %v", out.panicked)
			w.log.Error("a transaction's function panicked", "panic", out.panicked, "stack", string(debug.Stack()))
			return
		}
		out.err, out.vanished = errVanished, true
		w.conclude(out, t)
		w.reset()
	}()
	out.err = m.fn(t)
	returned = true
}

// apart runs each member of the failed group again, alone: one member's failure neither sinks nor frees the others
// (hazard T48).
func (w *writer) apart() {
	g := w.group
	w.reset()
	for ; g.told < len(g.members); g.told++ {
		m, out := g.members[g.told], &g.outcomes[g.told]
		if !out.vanished {
			w.again(out, m)
		}
		m.tell(out.verdict())
	}
	w.group = nil
}

// again runs a member in a transaction of its own.
func (w *writer) again(out *outcome, m *member) {
	*out = outcome{}
	if m.ctx.Err() != nil {
		out.err = fmt.Errorf("update: %w", ended(m.ctx))
		return
	}
	if out.err = w.begin(); out.err != nil {
		return
	}
	if w.play(out, m); out.err != nil {
		w.reset()
		w.stats.updates.Add(1)
		return
	}
	out.err = w.commit(1)
}

// begin opens a transaction, on a new connection if the last one was given up.
func (w *writer) begin() error {
	err := w.connect(context.Background())
	if err == nil {
		err = w.exec(stepBegin)
	}
	if err != nil {
		w.reset()
		return fmt.Errorf("begin update: %w", err)
	}
	return nil
}

// commit makes n members' work durable. Its failure leaves open whether it is.
func (w *writer) commit(n int) error {
	before, errBefore := w.direct.written()
	err := w.exec(stepCommit)
	after, errAfter := w.direct.written()
	if wrote := after - before; errBefore == nil && errAfter == nil && wrote > 0 {
		w.pages += wrote
	}
	if err != nil {
		w.stats.unknown.Add(1)
		w.reset()
		return fmt.Errorf("update: %w: %w", store.ErrUnknownOutcome, err)
	}
	w.stats.committed(n)
	return nil
}

// exec runs one of the steps.
func (w *writer) exec(step string) error {
	if w.fault != nil {
		if err := w.fault(step); err != nil {
			return err
		}
	}
	if step == stepCommit {
		return w.direct.commit()
	}
	return w.direct.exec(step)
}

// reset leaves no transaction open. A connection that cannot even roll back is given up: closing it rolls back.
func (w *writer) reset() {
	if w.conn == nil {
		return
	}
	err := w.exec(stepRollback)
	var e *modernc.Error
	if err == nil || errors.As(err, &e) && e.Code() == sqlite3.SQLITE_ERROR { // no transaction is active
		return
	}
	w.stats.replaced.Add(1)
	discard := w.conn.Raw(func(any) error { return driver.ErrBadConn })
	w.lost = errors.Join(fmt.Errorf("the writer's connection was given up: %w", err), ignoreBad(discard), ignoreBad(w.conn.Close()))
	w.conn, w.direct = nil, nil
}

// connect makes sure that there is a connection.
func (w *writer) connect(ctx context.Context) error {
	if w.conn != nil {
		return nil
	}
	c, err := w.pool.Conn(ctx)
	var direct *conn
	if err == nil {
		err = raw(c, func(dc *conn) error {
			direct = dc
			return dc.guard()
		})
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}
	if err != nil {
		return errors.Join(err, w.lost)
	}
	w.conn, w.direct, w.lost = c, direct, nil
	return nil
}

// ignoreBad leaves out the errors by which database/sql says that a connection is gone, where that was the purpose.
func ignoreBad(err error) error {
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		return nil
	}
	return err
}
