package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/prove"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

// conduct is what a member of a group does.
type conduct string

// The conducts. Each writes a row of its own first.
const (
	commits    conduct = "commits"
	fails      conduct = "fails"
	panics     conduct = "panics"
	duplicates conduct = "writes what the first one wrote"
	cancelled  conduct = "is cancelled while it runs"
	leaves     conduct = "leaves the queue"
	vanishes   conduct = "ends its goroutine"
)

func conducts() []conduct {
	return []conduct{commits, fails, panics, duplicates, cancelled, leaves, vanishes}
}

// mishap is what befalls the group: one step of it fails, once.
type mishap struct {
	step   string // "" for nothing
	nth    int
	how    string // "fails", "rolls back" (as SQLite does by itself when the disk is full), "is done, and said to have failed"
	anyone bool   // whoever is in the group may be told an error that is no fault of its own
}

func mishaps() []mishap {
	all := []mishap{{}, {step: stepCommit, nth: 1, how: "fails", anyone: true},
		{step: stepCommit, nth: 1, how: "is done, and said to have failed", anyone: true}}
	for _, step := range []string{stepSavepoint, stepRelease, stepUndo} {
		for nth := 1; nth <= 3; nth++ {
			all = append(all, mishap{step: step, nth: nth, how: "fails"}, mishap{step: step, nth: nth, how: "rolls back"})
		}
	}
	return all
}

// contract: A1; traps T46, T48. Every group of three members of every conduct,
// through every mishap: success means that it is there, a plain error that it is
// not, only an unknown outcome may be either, and nobody pays for another's failure.
func TestProveGroups_EveryScheduleOfAGroupAnswersEachMemberTruly(t *testing.T) {
	db, f := openTest(t, Config{Memory: true}), &fate{}
	db.writer.fault = func(step string) error { return f.step(db, step) }
	var schedules, broken int64
	turn := 0
	for _, first := range conducts() {
		for _, second := range conducts() {
			for _, third := range conducts() {
				for range mishaps() {
					turn++
					if turn%prove.Slice(1, 20) != 0 {
						continue
					}
					schedules++
					group := [3]conduct{first, second, third}
					if err := f.schedule(t, db, turn, group); err != nil {
						broken++
						t.Errorf("%v with %+v: %v", group, mishaps()[turn%len(mishaps())], err)
					}
					if broken > 5 {
						t.FailNow()
					}
				}
			}
		}
	}
	prove.Report(t, prove.Figure{Rung: 2, Name: "schedules of the group committer", Value: schedules, Violations: broken})
}

// schedule runs one group and holds what its members were told against what is there.
func (f *fate) schedule(t *testing.T, db *DB, turn int, group [3]conduct) error {
	m := mishaps()[turn%len(mishaps())]
	f.set(m)
	db.writer.wary = turn % 2 * waryFor // the writer is idle: the next update's queueing orders this before it
	errs := grouped(t, db, turn, group)
	f.set(mishap{})
	firstIsThere := wrote(t, db, turn, 0)
	var wrong []error
	for i, c := range group {
		there := wrote(t, db, turn, i)
		err := errs[i]
		unknown := errors.Is(err, store.ErrUnknownOutcome)
		fated := c != commits && !(c == duplicates && !firstIsThere) // it was to fail, by its own doing
		switch {
		case err == nil && !there:
			wrong = append(wrong, fmt.Errorf("member %d was told success, and nothing is there", i))
		case err == nil && fated:
			wrong = append(wrong, fmt.Errorf("member %d was told success, and it %s", i, c))
		case err != nil && !unknown && there:
			wrong = append(wrong, fmt.Errorf("member %d was told %w, and it is there", i, err))
		case err != nil && !fated && c == commits && !m.anyone:
			wrong = append(wrong, fmt.Errorf("member %d, which only commits, was told %w", i, err))
		case unknown && m.step != stepCommit && m.how != "rolls back": // which may be noticed at the COMMIT first
			wrong = append(wrong, fmt.Errorf("member %d was told %w, and no commit had failed", i, err))
		}
	}
	return errors.Join(wrong...)
}

// wrote reports whether a member's own row is there: 1 is what its writer puts into it.
func wrote(t *testing.T, db *DB, turn, member int) bool {
	t.Helper()
	var v int64
	err := db.View(t.Context(), func(tx store.Tx) (err error) {
		v, err = storetest.Get(tx, key(turn, member))
		return err
	})
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	return v == 1
}

func key(turn, member int) string { return fmt.Sprintf("%d/%d", turn, member) }

// fate makes the mishap that is set happen, once. A member that left is answered
// before its group is over, so that it is set and asked under a lock.
type fate struct {
	mu   sync.Mutex
	m    mishap
	seen int
}

func (f *fate) set(m mishap) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.m, f.seen = m, 0
}

func (f *fate) step(db *DB, s string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s != f.m.step {
		return nil
	}
	if f.seen++; f.seen != f.m.nth {
		return nil
	}
	switch f.m.how {
	case "rolls back":
		return raw(db.writer.conn, func(c *conn) error { return c.exec(stepRollback) })
	case "is done, and said to have failed":
		return errors.Join(errInjected, raw(db.writer.conn, (*conn).commit))
	}
	return errInjected
}

// grouped runs three members as one group and returns what each was told.
func grouped(t *testing.T, db *DB, turn int, group [3]conduct) [3]error {
	var errs [3]error
	var wg sync.WaitGroup
	first, all := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var quit []context.CancelFunc
	for i, c := range group {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if c == leaves {
			quit = append(quit, cancel)
		}
		fn := acting(c, turn, i, cancel)
		if i == 0 {
			inner := fn
			fn = func(tx store.Tx) error {
				once.Do(func() { close(first) })
				<-all
				return inner(tx)
			}
		}
		errs[i] = errVanished
		wg.Go(func() {
			defer func() {
				if cause := recover(); cause != nil {
					errs[i] = panicked{cause}
				}
			}()
			errs[i] = db.Update(ctx, fn)
		})
		if i == 0 {
			<-first
		}
		eventually(t, "the member is in the queue", func() bool { return db.queued() >= i })
	}
	for _, cancel := range quit {
		cancel()
	}
	close(all)
	wg.Wait()
	return errs
}

// acting is a member's function.
func acting(c conduct, turn, i int, cancel context.CancelFunc) func(store.Tx) error {
	return func(tx store.Tx) error {
		if err := storetest.Put(tx, key(turn, i), 1); err != nil {
			return err
		}
		switch c {
		case fails:
			return errTest
		case panics:
			panic("boom")
		case duplicates: // the first one its own
			return storetest.Put(tx, key(turn, 0), 2)
		case cancelled:
			cancel()
			return storetest.Put(tx, key(turn, i)+"/more", 1)
		case leaves:
			return storetest.Put(tx, key(turn, i)+"/more", 1)
		case vanishes:
			runtime.Goexit()
		}
		return nil
	}
}
