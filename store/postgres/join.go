package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-dev/holdfast/store"
)

const (
	// maxMembers bounds the rows of one run of a joint statement.
	maxMembers = 64
	// jointConns is how many joint statements run at once.
	jointConns = 4
)

// jointSettings are those of the sessions of joint statements. Many callers wait for one statement, so that it waits for
// nobody; and its plan is made once, by indexes, whatever the tables' statistics were at that time.
func jointSettings() map[string]string {
	return map[string]string{
		"lock_timeout": "100ms", "plan_cache_mode": "force_generic_plan", "jit": "off",
		"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
	}
}

// joints are the joint statements that were asked for, each with those who wait for its next run.
type joints struct {
	pool *sql.DB

	mu     sync.Mutex
	queues map[*store.Joint]*queue
}

// queue is one statement's. It runs once at a time, so that its runs do not wait for each other's locks.
type queue struct {
	text    string
	columns []string // their types
	running bool
	waiting []*member
}

// member is one caller of a run.
type member struct {
	row  []any
	over chan struct{} // closed when told and err are set
	told store.Told
	err  error
}

var _ store.Joiner = (*DB)(nil)

// openJoints makes the pool of their sessions, which are none until the first is asked for.
func (db *DB) openJoints() {
	conn := db.conn.Copy()
	for name, value := range jointSettings() {
		conn.RuntimeParams[name] = value
	}
	db.joints.pool = pool(conn, jointConns)
	db.joints.queues = map[*store.Joint]*queue{}
}

// Join implements store.Joiner. A context that ends takes its row back if the statement has not begun; later, Join waits
// and tells what came of it.
func (db *DB) Join(ctx context.Context, j *store.Joint, row ...any) (store.Told, error) {
	if err := db.enter(); err != nil {
		return store.Told{}, fmt.Errorf("join: %w", err)
	}
	defer db.running.Done()
	if ctx.Err() != nil {
		return store.Told{}, fmt.Errorf("join: %w", ended(ctx))
	}
	m := &member{row: storable(row), over: make(chan struct{})}
	q, lead, err := db.joints.add(j, m)
	if err != nil {
		return store.Told{}, fmt.Errorf("join: %w", err)
	}
	if lead {
		go db.lead(q)
	}
	select {
	case <-m.over:
	case <-ctx.Done():
		if db.joints.takeBack(q, m) {
			return store.Told{}, fmt.Errorf("join: %w", ended(ctx))
		}
		<-m.over
	}
	if m.err != nil {
		return store.Told{}, fmt.Errorf("join: %w", m.err)
	}
	return m.told, nil
}

// add queues a member; lead is that nobody runs the queue, so that the caller has to see to it.
func (js *joints) add(j *store.Joint, m *member) (q *queue, lead bool, err error) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if q = js.queues[j]; q == nil {
		if q, err = newQueue(j); err != nil {
			return nil, false, err
		}
		js.queues[j] = q
	}
	if err := q.fits(m.row); err != nil {
		return nil, false, err
	}
	q.waiting = append(q.waiting, m)
	lead, q.running = !q.running, true
	return q, lead, nil
}

// takeBack reports whether the member's run had not begun; then it is not part of it.
func (js *joints) takeBack(q *queue, m *member) bool {
	js.mu.Lock()
	defer js.mu.Unlock()
	i := slices.Index(q.waiting, m)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	return true
}

// next is the next run's members; none when the queue stops running.
func (js *joints) next(q *queue) []*member {
	js.mu.Lock()
	defer js.mu.Unlock()
	n := min(len(q.waiting), maxMembers)
	group := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	q.running = n > 0
	return group
}

// lead runs the queue until nobody waits.
func (db *DB) lead(q *queue) {
	for {
		group := db.joints.next(q)
		if len(group) == 0 {
			return
		}
		if err := db.runJoint(q.text, group); err != nil {
			for _, m := range group {
				m.told, m.err = store.Told{}, err
			}
		}
		for _, m := range group {
			close(m.over)
		}
	}
}

// runJoint runs the statement for a group. An error is that its outcome is not known; a failure that is known wrote
// nothing, and is left to the general way to meet again.
func (db *DB) runJoint(text string, group []*member) error {
	ctx, cancel := context.WithTimeout(context.Background(), db.cfg.CommitTimeout)
	defer cancel()
	c, err := db.joints.pool.Conn(ctx)
	if err != nil {
		return nil //nolint:nilerr // nothing was sent: the general way says what is wrong with the server
	}
	err = c.Raw(func(c any) error { return db.askJoint(ctx, c.(*stdlib.Conn).Conn(), text, group) })
	db.stats.updates.Add(done(group))
	switch {
	case err == nil:
		db.stats.commits.Add(1)
		return ignoreGone(c.Close())
	case rolledBack(err):
		forget(group)
		return ignoreGone(c.Close())
	case pgconn.SafeToRetry(err):
		forget(group)
		db.stats.replaced.Add(1)
		return drop(c)
	}
	db.stats.unknown.Add(1)
	return errors.Join(fmt.Errorf("%w: %w", store.ErrUnknownOutcome, err), drop(c))
}

// askJoint fills in what the statement says of each member.
func (db *DB) askJoint(ctx context.Context, c *pgx.Conn, text string, group []*member) error {
	rows, err := c.Query(ctx, text, append([]any{db.jointClock()}, transposed(group)...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var position, did, at int64
		if err := rows.Scan(&position, &did, &at); err != nil {
			return err
		}
		group[position-1].told = store.Told{Did: did, At: store.FromMicros(at)}
	}
	rows.Close() // reads on until the server has committed
	return rows.Err()
}

// jointClock is the clock that takes the place of the server's; nil for none.
func (db *DB) jointClock() *int64 {
	if db.cfg.Clock == nil {
		return nil
	}
	us := store.Micros(db.cfg.Clock())
	return &us
}

func done(group []*member) (n int64) {
	for _, m := range group {
		if m.told.Did != 0 {
			n++
		}
	}
	return n
}

func forget(group []*member) {
	for _, m := range group {
		m.told = store.Told{}
	}
}

// transposed are the rows' columns, each an array.
func transposed(group []*member) []any {
	columns := make([]any, len(group[0].row))
	for i, first := range group[0].row {
		switch first.(type) {
		case string:
			columns[i] = column[string](group, i)
		case int64:
			columns[i] = column[int64](group, i)
		case bool:
			columns[i] = column[bool](group, i)
		}
	}
	return columns
}

func column[T any](group []*member, i int) []T {
	out := make([]T, len(group))
	for n, m := range group {
		out[n] = m.row[i].(T) // as fits has seen
	}
	return out
}

// fits holds a row against the columns.
func (q *queue) fits(row []any) error {
	if len(row) != len(q.columns) {
		return fmt.Errorf("a row of %d values for %d columns", len(row), len(q.columns))
	}
	for i, v := range row {
		if kind := typeOf(v); kind != q.columns[i] {
			return fmt.Errorf("value %d is a %T, want a %s", i+1, v, q.columns[i])
		}
	}
	return nil
}

// typeOf is the server's type for a value; "" for none that a joint statement takes.
func typeOf(v any) string {
	switch v.(type) {
	case string:
		return "text"
	case int64:
		return "bigint"
	case bool:
		return "boolean"
	}
	return ""
}

// newQueue makes the whole of a statement.
func newQueue(j *store.Joint) (*queue, error) {
	q := &queue{}
	var names, arrays []string
	for i, declared := range strings.Split(j.Columns, ",") {
		name, kind, _ := strings.Cut(strings.TrimSpace(declared), " ")
		if kind != "text" && kind != "bigint" && kind != "boolean" {
			return nil, fmt.Errorf("a joint statement's column is declared as %q: want a name and text, bigint or boolean", declared)
		}
		q.columns, names = append(q.columns, kind), append(names, name)
		arrays = append(arrays, fmt.Sprintf("$%d::%s[]", i+2, kind))
	}
	q.text = "WITH clock AS MATERIALIZED (SELECT COALESCE($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now), " +
		"given AS MATERIALIZED (SELECT * FROM unnest(" + strings.Join(arrays, ", ") + ") WITH ORDINALITY AS given (" +
		strings.Join(names, ", ") + ", position))" + j.Query
	return q, nil
}
