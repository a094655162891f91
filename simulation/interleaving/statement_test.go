package interleaving

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/store"
)

// statements holds the statements of each actor's first transaction on a real
// server, and lets one go at a time. An actor whose statement waits for a lock is
// not at a gate: then the others go on, until it is let in.
type statements struct {
	locks *sql.DB // another way to the server, to see who waits for a lock

	mu     sync.Mutex
	actors map[string]*progress
	trace  []string
	open   bool
}

// progress is how far an actor is.
type progress struct {
	at    string        // the statement that is held; "" while it runs
	pass  chan struct{} // lets it go
	first bool          // its first transaction has begun
	over  bool          // and has ended: what follows is not held
	done  bool          // it has returned
}

// DB is an actor's database whose first Update is held statement by statement.
func (s *statements) wrap(db store.DB) store.DB { return &statementDB{DB: db, to: s} }

type statementDB struct {
	store.DB
	to *statements
}

// Update implements store.DB.
func (d *statementDB) Update(ctx context.Context, fn func(store.Tx) error) error {
	actor, _ := ctx.Value(actorKey{}).(string)
	if !d.to.begins(actor) {
		return d.DB.Update(ctx, fn)
	}
	err := d.DB.Update(ctx, func(tx store.Tx) error {
		if err := fn(&statementTx{Tx: tx, to: d.to, actor: actor}); err != nil {
			return err
		}
		d.to.hold(actor, "COMMIT")
		return nil
	})
	d.to.mu.Lock()
	defer d.to.mu.Unlock()
	d.to.actors[actor].over = true
	return err
}

// begins reports whether this is the actor's first transaction.
func (s *statements) begins(actor string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.actors[actor]
	if s.open || p == nil || p.first {
		return false
	}
	p.first = true
	return true
}

// statementTx holds each statement but the clock's.
type statementTx struct {
	store.Tx
	to    *statements
	actor string
}

func (t *statementTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.to.hold(t.actor, query)
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t *statementTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	t.to.hold(t.actor, query)
	return t.Tx.QueryContext(ctx, query, args...)
}

func (t *statementTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	t.to.hold(t.actor, query)
	return t.Tx.QueryRowContext(ctx, query, args...)
}

// hold waits at a statement until it is let go.
func (s *statements) hold(actor, query string) {
	words := strings.Fields(query)
	if strings.HasSuffix(query, "FROM host ORDER BY id") || strings.HasSuffix(query, "FROM event_project WHERE recording") {
		return // the roster, and who listens: whether it is read anew hangs on its age
	}
	s.mu.Lock()
	p := s.actors[actor]
	if s.open {
		s.mu.Unlock()
		return
	}
	p.at, p.pass = strings.Join(words[:min(len(words), 4)], " "), make(chan struct{})
	pass := p.pass
	s.mu.Unlock()
	<-pass
}

// settled waits until every actor is at a gate, has returned, or waits for a lock,
// and returns those at a gate, by name.
func (s *statements) settled(ctx context.Context) (gates []string, done bool, err error) {
	deadline := time.Now().Add(20 * time.Second)
	for looks := 0; ; looks++ {
		s.mu.Lock()
		running := 0
		gates = nil
		for name, p := range s.actors {
			switch {
			case p.done:
			case p.at != "":
				gates = append(gates, name)
			default:
				running++
			}
		}
		ended := running == 0 && len(gates) == 0
		s.mu.Unlock()
		slices.Sort(gates)
		if running == 0 {
			return gates, ended, nil
		}
		if looks > 3 && len(gates) > 0 {
			waiting := 0
			err := s.locks.QueryRowContext(ctx, `SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
			if err != nil {
				return nil, false, err
			}
			if waiting == running && s.still(running, gates) {
				return gates, false, nil
			}
		}
		if time.Now().After(deadline) {
			return nil, false, fmt.Errorf("an actor neither takes a step, nor returns, nor waits for a lock: %s", strings.Join(s.trace, " | "))
		}
		select { // nothing tells when a session begins to wait
		case <-time.After(300 * time.Microsecond):
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// still reports that nobody has moved since the look before.
func (s *statements) still(running int, gates []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, g := 0, 0
	for _, p := range s.actors {
		switch {
		case p.done:
		case p.at != "":
			g++
		default:
			r++
		}
	}
	return r == running && g == len(gates)
}

// run lets one statement after the other go, as pick says, until all have returned.
func (s *statements) run(ctx context.Context, pick func([]string) int, actors []actor, w *shared) error {
	s.actors, s.trace, s.open = map[string]*progress{}, nil, false
	for _, a := range actors {
		s.actors[a.name] = &progress{}
	}
	w.told = map[string]answer{}
	var ended sync.WaitGroup
	defer ended.Wait()
	for _, a := range actors {
		ended.Go(func() {
			sb, err := w.do(as(ctx, a.name), a)
			s.mu.Lock()
			defer s.mu.Unlock()
			w.told[a.name] = answer{sb, err}
			s.actors[a.name].done = true
		})
	}
	for {
		gates, done, err := s.settled(ctx)
		if err != nil || done {
			s.free()
			return err
		}
		labels := make([]string, len(gates))
		s.mu.Lock()
		for i, name := range gates {
			labels[i] = name + ": " + s.actors[name].at
		}
		name := gates[pick(labels)]
		p := s.actors[name]
		s.trace = append(s.trace, name+": "+p.at)
		p.at = ""
		close(p.pass)
		s.mu.Unlock()
	}
}

// free lets everything go.
func (s *statements) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = true
	for _, p := range s.actors {
		if p.at != "" {
			p.at = ""
			close(p.pass)
		}
	}
}

// explore runs a race on the server in every order of its statements.
func (s *statements) explore(t *testing.T, sc statementRace, w *shared, until time.Time) (count int, err error) {
	var o orders
	for {
		if err := sc.setup(t.Context(), w); err != nil {
			return count, fmt.Errorf("set up: %w", err)
		}
		err := errors.Join(s.run(t.Context(), o.pick, sc.actors, w), o.changed)
		if err == nil {
			err = errors.Join(w.answered(), sc.check(t.Context(), w))
		}
		if err != nil {
			return count, fmt.Errorf("%w\nin the order\n  %s", err, strings.Join(s.trace, "\n  "))
		}
		count++
		if !o.next() {
			return count, nil
		}
		if !until.IsZero() && time.Now().After(until) {
			return count, errUnfinished
		}
	}
}
