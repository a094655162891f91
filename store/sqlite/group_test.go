package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

var (
	errTest     = errors.New("refused by the test")
	errInjected = errors.New("a fault of the test")
)

func openTest(t *testing.T, cfg Config) *DB {
	t.Helper()
	if !cfg.Memory && cfg.Path == "" {
		cfg.Path = filepath.Join(t.TempDir(), "group.db")
	}
	cfg.Log = slog.New(slog.DiscardHandler) // of panics, which these tests are full of
	db, err := Open(t.Context(), cfg, storetest.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// eventually waits for a condition that nothing signals.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func (db *DB) queued() int {
	db.writer.queue.mu.Lock()
	defer db.writer.queue.mu.Unlock()
	return len(db.writer.queue.waiting)
}

// oneGroup runs the functions as members of one group, in their order, and returns what their updates returned. A panic
// becomes a panicked error.
func oneGroup(t *testing.T, db *DB, fns ...func(store.Tx) error) []error {
	t.Helper()
	errs := make([]error, len(fns))
	var wg sync.WaitGroup
	first, all := make(chan struct{}), make(chan struct{})
	var once sync.Once
	for i, fn := range fns {
		if i == 0 {
			inner := fn
			fn = func(tx store.Tx) error {
				once.Do(func() { close(first) })
				<-all
				return inner(tx)
			}
		}
		wg.Go(func() {
			defer func() {
				if cause := recover(); cause != nil {
					errs[i] = panicked{cause}
				}
			}()
			errs[i] = db.Update(t.Context(), fn)
		})
		if i == 0 {
			<-first
		}
		eventually(t, "the member is in the queue", func() bool { return db.queued() == i })
	}
	close(all)
	wg.Wait()
	return errs
}

type panicked struct{ cause any }

func (p panicked) Error() string { return fmt.Sprint("panic: ", p.cause) }

func putting(k string, v int64, then func(store.Tx) error) func(store.Tx) error {
	return func(tx store.Tx) error {
		if err := storetest.Put(tx, k, v); err != nil || then == nil {
			return err
		}
		return then(tx)
	}
}

func has(t *testing.T, db *DB, k string) bool {
	t.Helper()
	err := db.View(t.Context(), func(tx store.Tx) error {
		_, err := storetest.Get(tx, k)
		return err
	})
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	return err == nil
}

func failing(store.Tx) error { return errTest }

// faults makes the nth occurrence of a step fail, once.
func faults(db *DB, step string, nth int, fault func() error) {
	seen := 0
	db.writer.fault = func(s string) error {
		if s != step {
			return nil
		}
		if seen++; seen != nth {
			return nil
		}
		return fault()
	}
}

// TestT48_GroupIsOneCommit: the test's own premise, and that a member is isolated within it.
func TestT48_GroupIsOneCommit(t *testing.T) {
	db := openTest(t, Config{})
	errs := oneGroup(t, db,
		putting("a", 1, nil), putting("b", 1, failing), putting("a", 2, nil), putting("b", 3, nil),
		putting("c", 1, func(store.Tx) error { panic("boom") }), putting("c", 2, nil))
	if s := db.Stats(); s.Groups != 1 || s.Updates != 6 || s.Largest != 6 || s.Apart != 0 {
		t.Errorf("stats %+v, want one group of 6", s)
	}
	if errs[0] != nil || errs[3] != nil || errs[5] != nil {
		t.Errorf("updates failed: %v", errs)
	}
	if errs[1] != errTest || errs[2] == nil || errs[4] != (panicked{"boom"}) {
		t.Errorf("failed updates returned %v", errs)
	}
	for _, k := range []string{"a", "b", "c"} {
		if !has(t, db, k) {
			t.Errorf("%s is missing", k)
		}
	}
}

// TestT48_FailedGroupRunsApart: when savepoints no longer hold, each member runs again alone and gets its own answer.
func TestT48_FailedGroupRunsApart(t *testing.T) {
	for _, memory := range []bool{false, true} {
		for _, step := range []string{stepSavepoint, stepRelease, stepUndo} {
			for nth := 1; nth <= 5 && (step != stepUndo || nth <= 3); nth++ {
				for _, kind := range []string{"fails", "finds no transaction"} {
					t.Run(fmt.Sprintf("memory=%v/%s %d %s", memory, step, nth, kind), func(t *testing.T) {
						db := openTest(t, Config{Memory: memory})
						db.writer.wary = waryFor
						faults(db, step, nth, func() error {
							if kind == "fails" {
								return errInjected
							}
							// As SQLite does on its own when the disk is full: the step itself then fails.
							return raw(db.writer.conn, func(c *conn) error { return c.exec("ROLLBACK") })
						})
						runs := 2
						if step == stepSavepoint && nth == 1 && kind == "fails" {
							runs = 1 // it was not its turn yet
						}
						checkApart(t, db, runs)
					})
				}
			}
		}
	}
}

func checkApart(t *testing.T, db *DB, wantRuns int) {
	t.Helper()
	runs := 0
	errs := oneGroup(t, db,
		func(tx store.Tx) error { runs++; return storetest.Put(tx, "a", 1) },
		putting("b", 1, failing),
		putting("c", 1, func(store.Tx) error { panic("boom") }),
		putting("a", 2, nil), // loses to the first, before and after
		putting("d", 1, nil))
	if s := db.Stats(); s.Apart != 1 {
		t.Errorf("stats %+v, want one group that ran apart", s)
	}
	if errs[0] != nil || errs[4] != nil {
		t.Errorf("innocent members failed: %v, %v", errs[0], errs[4])
	}
	if errs[1] != errTest || errs[2] != (panicked{"boom"}) || errs[3] == nil {
		t.Errorf("failed members returned %v", errs[1:4])
	}
	if runs != wantRuns {
		t.Errorf("the first member ran %d times, want %d", runs, wantRuns)
	}
	for k, want := range map[string]bool{"a": true, "b": false, "c": false, "d": true} {
		if has(t, db, k) != want {
			t.Errorf("%s is there: %v, want %v", k, !want, want)
		}
	}
}

// TestT48_AFailureRunsTheGroupAgain: a group begins without savepoints. Where a member fails, all run again, each with one, and
// so do the next groups for a while.
func TestT48_AFailureRunsTheGroupAgain(t *testing.T) {
	for _, memory := range []bool{false, true} {
		db := openTest(t, Config{Memory: memory})
		savepoints := 0
		db.writer.fault = func(step string) error {
			if step == stepSavepoint {
				savepoints++
			}
			return nil
		}
		runs := map[string]int{}
		counting := func(k string, then func(store.Tx) error) func(store.Tx) error {
			return func(tx store.Tx) error { runs[k]++; return putting(k, 1, then)(tx) }
		}
		check := func(what string, errs []error, wantSavepoints int, wantRuns map[string]int, repeated int64) {
			t.Helper()
			for i, err := range errs {
				if (err != nil) != (i == 1) {
					t.Errorf("%s: update %d = %v", what, i, err)
				}
			}
			if s := db.Stats(); savepoints != wantSavepoints || !maps.Equal(runs, wantRuns) || s.Repeated != repeated || s.Apart != 0 {
				t.Errorf("%s: %d savepoints, want %d; runs %v, want %v; stats %+v", what, savepoints, wantSavepoints, runs, wantRuns, s)
			}
			savepoints, runs = 0, map[string]int{}
		}
		check("nobody fails", []error{oneGroup(t, db, counting("a", nil))[0]}, 0, map[string]int{"a": 1}, 0)
		errs := oneGroup(t, db, counting("b", nil), counting("c", failing), counting("d", nil))
		check("one fails", errs, 3, map[string]int{"b": 2, "c": 2, "d": 1}, 1) // b, c and d: d came when they were known to be needed
		errs = oneGroup(t, db, counting("e", nil), counting("f", failing), counting("g", nil))
		check("one fails again", errs, 3, map[string]int{"e": 1, "f": 1, "g": 1}, 1)
		for _, k := range []string{"a", "b", "d", "e", "g"} {
			if !has(t, db, k) {
				t.Errorf("%s is missing", k)
			}
		}
		for _, k := range []string{"c", "f"} {
			if has(t, db, k) {
				t.Errorf("%s is there, though it failed", k)
			}
		}
		for i := range waryFor {
			if err := db.Update(t.Context(), putting(fmt.Sprint("later", i), 1, nil)); err != nil {
				t.Fatal(err)
			}
		}
		savepoints, runs = 0, map[string]int{}
		check("long after", oneGroup(t, db, counting("h", nil))[:1], 0, map[string]int{"h": 1}, 1)
		// Alone, or before any other, it leaves nobody's work to do again.
		errs = oneGroup(t, db, counting("i", failing), counting("j", nil))
		if errs[0] == nil || errs[1] != nil || has(t, db, "i") || !has(t, db, "j") || runs["i"] != 1 || savepoints != 0 {
			t.Errorf("the first fails: %v, %v; runs %v, %d savepoints", errs[0], errs[1], runs, savepoints)
		}
	}
}

// TestT48_VanishedMemberTakesNobodyAlong: a function that ends its goroutine ends its caller's, and the others' updates
// are made as if it had failed, also where it vanishes while the group's members run apart.
func TestT48_VanishedMemberTakesNobodyAlong(t *testing.T) {
	for _, memory := range []bool{false, true} {
		db := openTest(t, Config{Memory: memory})
		went := 0
		vanish := func(tx store.Tx) error {
			went++
			if err := storetest.Put(tx, "gone", 1); err != nil {
				return err
			}
			runtime.Goexit()
			return nil
		}
		errs := oneGroup(t, db, putting("a", 1, nil), vanish, vanish, putting("b", 1, nil))
		if errs[0] != nil || errs[1] != nil || errs[2] != nil || errs[3] != nil {
			t.Errorf("updates returned %v", errs) // those that vanished returned nothing
		}
		if !has(t, db, "a") || !has(t, db, "b") || has(t, db, "gone") || went != 2 {
			t.Errorf("not the right things are there, or %d calls vanished, want 2", went)
		}
		if err := db.Update(t.Context(), putting("after", 1, nil)); err != nil {
			t.Error(err)
		}
	}
}

// TestT46_FailedCommitIsUnknownToAll: also to members that failed, since what they saw may not be.
func TestT46_FailedCommitIsUnknownToAll(t *testing.T) {
	for _, tc := range []struct {
		name   string
		there  bool
		inject func(t *testing.T, db *DB)
	}{
		{"the engine refuses to commit", false, func(t *testing.T, db *DB) {
			refuse := int32(1)
			err := raw(db.writer.conn, func(c *conn) error {
				c.RegisterCommitHook(func() int32 {
					defer func() { refuse = 0 }()
					return refuse
				})
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}},
		{"the answer is lost", true, func(_ *testing.T, db *DB) {
			faults(db, stepCommit, 1, func() error {
				return errors.Join(errInjected, raw(db.writer.conn, (*conn).commit))
			})
		}},
		{"the connection breaks", false, func(_ *testing.T, db *DB) {
			seen := 0
			db.writer.fault = func(step string) error {
				if step == stepCommit || seen == 1 && step == stepRollback {
					seen++
				}
				if seen == 1 || seen == 2 && step == stepRollback {
					return errInjected
				}
				return nil
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db := openTest(t, Config{})
			tc.inject(t, db)
			errs := oneGroup(t, db, putting("a", 1, nil), putting("b", 1, failing), putting("a", 2, nil))
			for i, err := range errs {
				if !errors.Is(err, store.ErrUnknownOutcome) || errors.Is(err, errTest) {
					t.Errorf("update %d = %v, want ErrUnknownOutcome and nothing else", i, err)
				}
			}
			if has(t, db, "a") != tc.there || has(t, db, "b") {
				t.Errorf("a is there: %v, want %v; b: %v", has(t, db, "a"), tc.there, has(t, db, "b"))
			}
			if err := db.Update(t.Context(), putting("after", 1, nil)); err != nil {
				t.Errorf("the next update: %v", err)
			}
			if !has(t, db, "after") || db.Stats().Unknown != 1 {
				t.Errorf("the next update is not there, or stats %+v are wrong", db.Stats())
			}
		})
	}
}

// TestT48_NothingLeavesBeforeTheCommit holds a COMMIT back and looks for anybody who returned.
func TestT48_NothingLeavesBeforeTheCommit(t *testing.T) {
	db := openTest(t, Config{})
	committing, goOn := make(chan struct{}), make(chan struct{})
	faults(db, stepCommit, 1, func() error { close(committing); <-goOn; return nil })
	returned := make(chan int, 4)
	note := func(i int, fn func(store.Tx) error) func() {
		return func() {
			defer func() { _ = recover(); returned <- i }()
			_ = db.Update(t.Context(), fn) // only when it returns is of interest
		}
	}
	running, queuedUp := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(note(0, putting("a", 1, func(store.Tx) error { close(running); <-queuedUp; return nil })))
	<-running
	for i, fn := range []func(store.Tx) error{
		failing, putting("a", 2, nil), func(store.Tx) error { panic("boom") },
	} {
		wg.Go(note(i+1, fn))
	}
	eventually(t, "three wait", func() bool { return db.queued() == 3 })
	close(queuedUp)
	<-committing
	for range 1000 {
		runtime.Gosched()
	}
	if len(returned) != 0 {
		t.Errorf("%d updates returned before the commit", len(returned))
	}
	if has(t, db, "a") {
		t.Error("a view sees what is not committed")
	}
	close(goOn)
	wg.Wait()
	if len(returned) != 4 {
		t.Errorf("%d updates returned, want 4", len(returned))
	}
}

// TestT46_ContextEndingAtTheCommitChangesNothing: Update waits and tells the truth.
func TestT46_ContextEndingAtTheCommitChangesNothing(t *testing.T) {
	db := openTest(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	faults(db, stepCommit, 1, func() error { cancel(); return nil })
	if err := db.Update(ctx, putting("a", 1, nil)); err != nil || !has(t, db, "a") {
		t.Errorf("Update = %v, and the thing is there: %v", err, has(t, db, "a"))
	}
}

func TestContextEndingInTheQueueLeavesItAtOnce(t *testing.T) {
	db := openTest(t, Config{})
	ctx, cancel := context.WithCancelCause(t.Context())
	running, finish := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := db.Update(t.Context(), putting("a", 1, func(store.Tx) error {
			close(running)
			<-finish
			return nil
		})); err != nil {
			t.Error(err)
		}
	})
	<-running
	left := make(chan error, 1)
	go func() {
		left <- db.Update(ctx, func(store.Tx) error { t.Error("it ran"); return nil })
	}()
	eventually(t, "it waits", func() bool { return db.queued() == 1 })
	cancel(errTest)
	if err := <-left; !errors.Is(err, context.Canceled) || !errors.Is(err, errTest) {
		t.Errorf("Update = %v, want context.Canceled and its cause", err)
	}
	close(finish)
	wg.Wait()
	if s := db.Stats(); s.Updates != 1 {
		t.Errorf("stats %+v, want one update", s)
	}
}

func TestCloseFinishesTheGroupAndRefusesTheQueue(t *testing.T) {
	for _, memory := range []bool{false, true} {
		db := openTest(t, Config{Memory: memory, MaxGroup: 1})
		running, finish := make(chan struct{}), make(chan struct{})
		first, second, closed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		go func() {
			first <- db.Update(t.Context(), putting("a", 1, func(store.Tx) error { close(running); <-finish; return nil }))
		}()
		<-running
		go func() { second <- db.Update(t.Context(), putting("b", 1, nil)) }()
		eventually(t, "it waits", func() bool { return db.queued() == 1 })
		go func() { closed <- db.Close() }()
		if err := <-second; !errors.Is(err, store.ErrClosed) {
			t.Errorf("the waiting update = %v, want ErrClosed", err)
		}
		close(finish)
		if err := errors.Join(<-first, <-closed); err != nil {
			t.Errorf("the running update and Close: %v", err)
		}
	}
}

func TestGroupsKeepTheirLimit(t *testing.T) {
	db := openTest(t, Config{MaxGroup: 3})
	fns := make([]func(store.Tx) error, 8)
	for i := range fns {
		fns[i] = putting(fmt.Sprint(i), 1, nil)
	}
	for _, err := range oneGroup(t, db, fns...) {
		if err != nil {
			t.Error(err)
		}
	}
	if s := db.Stats(); s.Groups != 3 || s.Largest != 3 {
		t.Errorf("stats %+v, want three groups, none above 3", s)
	}
}

// TestWriterIsReplacedWhenItCannotRollBack: also in memory, where the data must outlive the connection.
func TestWriterIsReplacedWhenItCannotRollBack(t *testing.T) {
	for _, memory := range []bool{false, true} {
		t.Run(fmt.Sprint("memory=", memory), func(t *testing.T) {
			db := openTest(t, Config{Memory: memory})
			if err := db.Update(t.Context(), putting("before", 1, nil)); err != nil {
				t.Fatal(err)
			}
			db.writer.fault = func(step string) error {
				if step == stepCommit || step == stepRollback {
					return errInjected
				}
				return nil
			}
			if err := db.Update(t.Context(), putting("a", 1, nil)); !errors.Is(err, store.ErrUnknownOutcome) {
				t.Errorf("Update = %v, want ErrUnknownOutcome", err)
			}
			db.writer.fault = nil // the writer is idle, and the next update's queueing orders this before it
			if err := db.Update(t.Context(), putting("b", 1, nil)); err != nil {
				t.Fatal(err)
			}
			if !has(t, db, "before") || has(t, db, "a") || !has(t, db, "b") || db.Stats().Replaced != 1 {
				t.Errorf("the database is not what was committed, or stats %+v are wrong", db.Stats())
			}
		})
	}
}

// TestT48_FullDiskFailsWhoFillsIt: SQLite may then roll back everybody's transaction on its own.
func TestT48_FullDiskFailsWhoFillsIt(t *testing.T) {
	db := openTest(t, Config{})
	err := raw(db.writer.conn, func(c *conn) error { return c.exec("PRAGMA max_page_count = 40") })
	if err != nil {
		t.Fatal(err)
	}
	errs := oneGroup(t, db, putting("a", 1, nil), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), "INSERT INTO thing (k, v) VALUES (hex(zeroblob(1000000)), 1)")
		return err
	}, putting("b", 1, nil))
	var full *modernc.Error
	if errs[0] != nil || errs[2] != nil || !errors.As(errs[1], &full) || full.Code() != 13 {
		t.Errorf("updates = %v, want only the second to fail, with SQLITE_FULL", errs)
	}
	if !has(t, db, "a") || !has(t, db, "b") {
		t.Error("a neighbour of the failed update is missing")
	}
}

// TestT48_RandomFaults: whatever fails wherever, success means there, a plain error means not there, and only an unknown
// outcome may be either.
func TestT48_RandomFaults(t *testing.T) {
	rounds := uint64(30)
	if testing.Short() {
		rounds = 5
	}
	for seed := range rounds {
		db := openTest(t, Config{Memory: seed%2 == 0, MaxGroup: 1 + int(seed%9)})
		db.writer.wary = int(seed%3) * waryFor
		rnd := rand.New(rand.NewPCG(seed, 48)) // the writer's alone
		db.writer.fault = func(step string) error {
			switch {
			case rnd.IntN(20) != 0:
				return nil
			case step != stepBegin && rnd.IntN(2) == 0:
				return raw(db.writer.conn, func(c *conn) error { return c.exec(stepRollback) })
			}
			return errInjected
		}
		const n = 60
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				defer func() {
					if cause := recover(); cause != nil {
						errs[i] = panicked{cause}
					}
				}()
				errs[i] = db.Update(t.Context(), putting(fmt.Sprint(i), 1, func(tx store.Tx) error {
					switch i % 5 {
					case 1:
						return errTest
					case 2:
						panic(i)
					case 3:
						return storetest.Put(tx, fmt.Sprint(i), 2)
					}
					return nil
				}))
			})
		}
		wg.Wait()
		db.writer.fault = nil
		for i, err := range errs {
			there := has(t, db, fmt.Sprint(i))
			if err == nil && (!there || i%5 == 1 || i%5 == 2 || i%5 == 3) {
				t.Errorf("seed %d: update %d succeeded, and is there: %v", seed, i, there)
			}
			if err != nil && !errors.Is(err, store.ErrUnknownOutcome) && there {
				t.Errorf("seed %d: update %d failed (%v), and is there", seed, i, err)
			}
		}
	}
}

func TestStatementCacheIsBounded(t *testing.T) {
	db := openTest(t, Config{})
	if err := db.Update(t.Context(), func(tx store.Tx) error {
		for i := range maxCached + 50 {
			var n int
			if err := tx.QueryRowContext(t.Context(), fmt.Sprint("SELECT ", i)).Scan(&n); err != nil || n != i {
				return fmt.Errorf("select %d: got %d, %w", i, n, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	err := raw(db.writer.conn, func(c *conn) error {
		if len(c.kept) != maxCached {
			return fmt.Errorf("%d kept statements, want %d", len(c.kept), maxCached)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
