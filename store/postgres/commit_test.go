package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/postgres"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

// putting is the function that puts a thing.
func putting(k string, v int64) func(store.Tx) error {
	return func(tx store.Tx) error { return storetest.Put(tx, k, v) }
}

func has(t *testing.T, db *postgres.DB, k string) bool {
	t.Helper()
	n := 0
	err := db.View(t.Context(), func(tx store.Tx) error {
		return tx.QueryRowContext(t.Context(), "SELECT count(*) FROM thing WHERE k = $1", k).Scan(&n)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// proxied is a database behind a proxy.
func proxied(t *testing.T, timeout time.Duration) (*proxy, *postgres.DB) {
	t.Helper()
	p, cfg := through(t, config(t), testenv.SharedPostgres(t).Address())
	cfg.CommitTimeout = timeout
	return p, open(t, cfg)
}

// trap T46: a connection that breaks during a commit leaves its outcome open, and it is told so, both when the commit
// was lost and when only its answer was.
func TestT46_ABrokenCommitHasAnUnknownOutcome(t *testing.T) {
	p, db := proxied(t, 0)
	for f, committed := range map[fault]bool{cutBefore: false, cutAfter: true} {
		p.next(f)
		k := map[fault]string{cutBefore: "before", cutAfter: "after"}[f]
		if err := db.Update(t.Context(), putting(k, 1)); !errors.Is(err, store.ErrUnknownOutcome) {
			t.Errorf("cut %s: Update = %v, want ErrUnknownOutcome", k, err)
		}
		if has(t, db, k) != committed {
			t.Errorf("cut %s: it is committed: %v", k, !committed)
		}
	}
	if s := db.Stats(); s.Unknown != 2 {
		t.Errorf("%+v, want 2 unknown", s)
	}
}

// trap T46: a caller that leaves during the commit is told what came of it.
func TestT46_ACallerThatLeavesDuringTheCommitHearsItsOutcome(t *testing.T) {
	p, db := proxied(t, 0)
	p.next(hold)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- db.Update(ctx, putting("a", 1)) }()
	<-p.seen
	cancel()
	select {
	case err := <-ended:
		t.Fatalf("Update = %v before the commit was answered", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(p.let)
	if err := <-ended; err != nil || !has(t, db, "a") {
		t.Errorf("Update = %v, and it is there: %v", err, has(t, db, "a"))
	}
}

// trap T46: a server that never answers a commit does not hold its caller for ever.
func TestT46_ACommitThatIsNeverAnsweredIsUnknownInTime(t *testing.T) {
	p, db := proxied(t, 100*time.Millisecond)
	p.next(hold)
	begun := time.Now()
	if err := db.Update(t.Context(), putting("a", 1)); !errors.Is(err, store.ErrUnknownOutcome) {
		t.Errorf("Update = %v, want ErrUnknownOutcome", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	close(p.let)
}

// A commit that the server refuses is no unknown outcome: nothing was written, and it says why.
func TestARefusedCommitIsAKnownFailure(t *testing.T) {
	db := open(t, config(t))
	err := db.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), "INSERT INTO part (k, thing) VALUES ('p', 'none')")
		return err
	})
	if err == nil || errors.Is(err, store.ErrUnknownOutcome) {
		t.Errorf("Update = %v, want a violated constraint", err)
	}
}
