package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// The columns of an instance are declared twice: once with their types.
func TestTheColumnsOfAJointStatementAreThoseOfTheTransaction(t *testing.T) {
	names := func(list string) (out []string) {
		for _, part := range strings.Split(list, ",") {
			out = append(out, strings.Fields(part)[0])
		}
		return out
	}
	if d := cmp.Diff(names(instanceColumns), names(instanceTypes)); d != "" {
		t.Error(d)
	}
}

// jointly is a world whose database runs joint statements, once it has placed an
// instance the general way; it skips where none does.
func jointly(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	if w.fleet.joiner == nil {
		t.Skip("this dialect runs no joint statements")
	}
	return w
}

// lookedAround is that the fleet has just looked at its hosts and at the clock, however slow
// this machine is.
func (w *world) lookedAround() {
	w.fleet.saw(w.clock.Now())
	w.fleet.roster.mu.Lock()
	defer w.fleet.roster.mu.Unlock()
	w.fleet.roster.at = w.clock.Now().Add(-rosterAge / 2)
}

// unwilling is a database that takes no transaction.
type unwilling struct{ store.DB }

func (unwilling) Update(context.Context, func(store.Tx) error) error {
	return errors.New("a transaction was begun")
}

// A fleet that has heard of its hosts a moment ago records the usual create and its
// answer in two joint statements, and no transaction.
func TestAUsualCreateTakesJointStatementsAlone(t *testing.T) {
	w := jointly(t)
	w.host(10)
	w.running()
	db := w.fleet.db
	w.fleet.db = unwilling{db}
	w.lookedAround()
	l := w.level(w.instance(), 1, holdfast.DesiredRunning)
	if o := w.ensure(l); !o.Reached(l) {
		t.Errorf("%+v", o)
	}
	_, err := w.fleet.EnsureInstance(t.Context(), l) // a repeat is not the usual case
	if holdfast.ReasonOf(err) != holdfast.ReasonStorage {
		t.Errorf("the repeat: %v", err)
	}
	w.fleet.db = db
	w.sound()
}

// What a joint statement records is what the transaction does, column by column, also
// when time goes by between the two and the fleet does not know it.
func TestAJointStatementRecordsWhatTheTransactionDoes(t *testing.T) {
	w := jointly(t)
	m := w.host(10)
	w.running()
	joiner := w.fleet.joiner
	type seen struct {
		During, After map[string]any
		Answer        holdfast.Observation
	}
	create := func(j store.Joiner) (s seen) {
		w.fleet.joiner = j
		w.clock.pass(100 * time.Millisecond)
		w.lookedAround()
		l := w.level(w.instance(), 1, holdfast.DesiredRunning)
		m.onEnsure = func(l holdfast.Level) {
			s.During = w.recorded(l.Instance)
			w.clock.pass(300 * time.Millisecond)
		}
		s.Answer = w.ensure(l)
		s.After = w.recorded(l.Instance)
		s.Answer.Instance = ""
		return s
	}
	if d := cmp.Diff(create(nil), create(joiner)); d != "" {
		t.Errorf("by the transaction and by the statements:\n%s", d)
	}
	w.sound()
}

// recorded is an instance's row; instants count from when it was minted.
func (w *world) recorded(id holdfast.InstanceID) map[string]any {
	w.t.Helper()
	var text string
	check(w.t, w.db.View(w.t.Context(), func(tx store.Tx) error {
		return tx.QueryRowContext(w.t.Context(), `SELECT to_jsonb(i) FROM instance i WHERE id = $1`, string(id)).Scan(&text)
	}))
	row := map[string]any{}
	check(w.t, json.Unmarshal([]byte(text), &row))
	minted := row["minted_at"].(float64)
	for k, v := range row {
		if at, ok := v.(float64); ok && at > 1e15 {
			row[k] = fmt.Sprint("from its minting ", at-minted)
		}
	}
	delete(row, "id")
	return row
}

// trap T53: many at once that want the last room of a host. A statement that finds it
// full halfway leaves nothing, and none counts too much.
func TestT53_AHostThatFillsUpWithinAJointStatementIsNotExceeded(t *testing.T) {
	w := jointly(t)
	m := w.host(4)
	w.running()
	var asks sync.WaitGroup
	var placed atomic.Int64
	w.lookedAround()
	for range 24 {
		l := w.level(w.instance(), 1, holdfast.DesiredRunning)
		hash, err := hashSpec(l.Spec)
		check(t, err)
		asks.Go(func() {
			if r, done := w.fleet.recordAtOnce(t.Context(), l, hash); done {
				placed.Add(1)
				if r.next.host != m.id || !r.call {
					t.Errorf("%+v", r)
				}
			}
		})
	}
	asks.Wait()
	if placed.Load() > 3 {
		t.Errorf("%d were placed into room for 3", placed.Load())
	}
	w.sound()
}

// traps T8, T40, T53: what is not the usual case is left to the transaction, and the
// statement records nothing of it.
func TestAJointStatementLeavesTheUnusualAlone(t *testing.T) {
	for name, change := range map[string]string{
		"the host is silent":   `UPDATE host SET health = 'SUSPECT'`,
		"the host is cordoned": `UPDATE host SET duty = 'CORDONED'`,
		"no CPU is left":       `UPDATE host SET used_cpu_millis = cpu_millis`,
		"no memory is left":    `UPDATE host SET used_memory_bytes = memory_bytes`,
		"no room is left":      `UPDATE host SET used_instances = instances`,
	} {
		t.Run(name, func(t *testing.T) {
			w := jointly(t)
			w.host(10)
			w.running()
			check(t, w.db.Update(t.Context(), func(tx store.Tx) error {
				_, err := tx.ExecContext(t.Context(), change)
				return err
			}))
			l := w.level(w.instance(), 1, holdfast.DesiredRunning)
			hash, err := hashSpec(l.Spec)
			check(t, err)
			w.lookedAround()
			if _, done := w.fleet.recordAtOnce(t.Context(), l, hash); done {
				t.Error("it was placed")
			}
			if _, err := w.fleet.load(t.Context(), l.Instance); holdfast.CodeOf(err) != holdfast.NotFound {
				t.Errorf("it is recorded, or: %v", err)
			}
		})
	}
	w := jointly(t)
	w.host(10)
	known := w.running()
	for name, change := range map[string]func(*holdfast.Level){
		"it is recorded":          func(l *holdfast.Level) { l.Instance = known },
		"it was minted long ago":  func(l *holdfast.Level) { l.MintedAt = w.clock.Now().Add(-2 * holdfast.LevelTooOldAfter) },
		"a second generation":     func(l *holdfast.Level) { l.Generation = 2 },
		"a second incarnation":    func(l *holdfast.Level) { l.Incarnation = 2 },
		"it is to end":            func(l *holdfast.Level) { l.Desired = holdfast.DesiredAbsent },
		"more than any host has":  func(l *holdfast.Level) { l.Spec.Resources.CPUMillis = 1 << 40 },
		"what it is made of lost": func(l *holdfast.Level) { l.Spec = nil },
	} {
		l := w.level(w.instance(), 1, holdfast.DesiredRunning)
		change(&l)
		w.lookedAround()
		hash, err := hashSpec(l.Spec)
		check(t, err)
		if _, done := w.fleet.recordAtOnce(t.Context(), l, hash); done {
			t.Errorf("%s: it was placed", name)
		}
	}
	// The fleet's estimate of the database's clock is off by days: the statement judges by the clock.
	l := w.level(w.instance(), 1, holdfast.DesiredRunning)
	hash, err := hashSpec(l.Spec)
	check(t, err)
	w.lookedAround()
	w.clock.pass(2 * holdfast.LevelTooOldAfter)
	if _, done := w.fleet.recordAtOnce(t.Context(), l, hash); done {
		t.Error("minted too long ago by the database's clock: it was placed")
	}
	if _, err := w.fleet.load(t.Context(), l.Instance); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("minted too long ago by the database's clock, it is recorded, or: %v", err)
	}
	// and of one that is as usual, it is placed: the others were not for another reason.
	l = w.level(w.instance(), 1, holdfast.DesiredRunning)
	w.lookedAround()
	if _, done := w.fleet.recordAtOnce(t.Context(), l, hash); !done {
		t.Error("the usual one was left alone")
	}
	w.sound()
}

// trap T34: an answer that an event has overtaken is left to the transaction.
func TestT34_AnAnswerOvertakenIsLeftAloneByTheJointStatement(t *testing.T) {
	w := jointly(t)
	m := w.host(10)
	w.running()
	l := w.level(w.instance(), 1, holdfast.DesiredRunning)
	hash, err := hashSpec(l.Spec)
	check(t, err)
	w.lookedAround()
	r, done := w.fleet.recordAtOnce(t.Context(), l, hash)
	if !done {
		t.Fatal("it is not the usual case")
	}
	check(t, w.db.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE instance SET revision = revision + 1 WHERE id = $1`, string(l.Instance))
		return err
	}))
	seen, err := m.EnsureInstance(t.Context(), r.next.level(0))
	check(t, err)
	if _, done := w.fleet.answerAtOnce(t.Context(), r.next, seen); done {
		t.Error("it was stored over what it did not see")
	}
	if got := w.row(l.Instance); got.state != holdfast.InstancePlaced {
		t.Errorf("it is %s", got.state)
	}
}
