package orchestrator

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/store"
)

// quick makes tests wait for nothing, and lets webhooks reach them.
func quick(c *Config) {
	c.AllowPrivateWebhooks, c.ListenersKept, c.WatchPoll = true, time.Millisecond, 20*time.Millisecond
	c.Webhooks = outbox.Config{Poll: 5 * time.Millisecond, Policy: func(string) outbox.Policy {
		return outbox.Policy{ThirdParty: true, Base: 20 * time.Millisecond, Cap: time.Second}
	}}
}

// events streams what there is.
func (h *harness) events(after string, kinds ...string) (list []holdfast.Event) {
	h.t.Helper()
	err := h.StreamEvents(h.t.Context(), alice, holdfast.StreamEvents{After: after, Kinds: kinds}, func(e holdfast.Event) error {
		list = append(list, e)
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return list
}

func kindsOf(list []holdfast.Event) string {
	var names []string
	for _, e := range list {
		names = append(names, strings.TrimPrefix(string(e.Kind), "sandbox."))
	}
	return strings.Join(names, " ")
}

// contract: B9. Every change of state is one event, recorded with it, in its order;
// a repeat is none. trap T50: what another sandbox did is not among a sandbox's.
func TestB9_T50_EveryChangeOfASandboxIsOneEventOfItsOwn(t *testing.T) {
	h := newHarness(t, quick)
	h.events("") // from now on they are recorded
	sb := h.mustCreate("a")
	h.mustCreate("a")
	other := h.mustCreate("b")
	for _, verb := range []func(context.Context, holdfast.Caller, holdfast.MutateSandbox) (holdfast.Sandbox, error){
		h.SuspendSandbox, h.SuspendSandbox, h.ResumeSandbox, h.DeleteSandbox, h.DeleteSandbox} {
		if _, err := verb(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
			t.Fatal(err)
		}
	}
	all := h.events("")
	its := map[string][]holdfast.Event{}
	seen := map[holdfast.EventID]bool{}
	for i, e := range all {
		its[e.Resource] = append(its[e.Resource], e)
		if seen[e.ID] || e.Project != alice.Project || e.Cursor == "" || i > 0 && !e.At.After(time.Time{}) {
			t.Errorf("event %+v", e)
		}
		seen[e.ID] = true
		var object sandboxObject
		if err := json.Unmarshal([]byte(e.Object), &object); err != nil || string(object.ID) != e.Resource {
			t.Errorf("the object of %s of %s is of %q: %v", e.Kind, e.Resource, object.ID, err)
		}
	}
	if got := kindsOf(its[string(sb.ID)]); got != "created ready suspended resumed deleting deleted" {
		t.Errorf("the one: %s", got)
	}
	if got := kindsOf(its[string(other.ID)]); got != "created ready" || len(its) != 2 {
		t.Errorf("the other: %s, of %d", got, len(its))
	}
	if got := h.events(all[4].Cursor); len(got) != len(all)-5 || len(got) > 0 && got[0].ID != all[5].ID {
		t.Errorf("behind the fifth there are %d of %d", len(got), len(all))
	}
	if got := kindsOf(h.events("", "sandbox.delet*")); got != "deleting deleted" {
		t.Errorf("of two kinds: %s", got)
	}
}

func TestB9_AFailureIsTwoEvents(t *testing.T) {
	h := newHarness(t, quick)
	h.events("")
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonImageFailed, "no")
	})
	if _, err := h.create("a"); err == nil {
		t.Fatal("created")
	}
	list := h.events("")
	if got := kindsOf(list); got != "created operation.failed failed" {
		t.Fatal(got)
	}
	var op failedOperation
	if err := json.Unmarshal([]byte(list[1].Object), &op); err != nil || op.Kind != "CREATE" || op.Error.Reason != string(holdfast.ReasonCreateFailed) {
		t.Errorf("%s: %v", list[1].Object, err)
	}
}

// contract: B4. No event without its change.
func TestB4_AnEventIsPartOfTheTransactionOfItsChange(t *testing.T) {
	h := newHarness(t, quick)
	h.events("")
	h.mustWebhook("http://127.0.0.1:1/")
	failure := holdfast.E(holdfast.Aborted, holdfast.ReasonConflict, "rolled back")
	err := h.update(t.Context(), "test", func(tx store.Tx, now time.Time) error {
		return errors.Join(h.emit(t.Context(), tx, now, news{alice.Project, holdfast.EventSandboxReady, "sb-1", struct{}{}}), failure)
	})
	if !errors.Is(err, failure) {
		t.Fatal(err)
	}
	if n := h.count(`SELECT (SELECT COUNT(*) FROM event) + (SELECT COUNT(*) FROM outbox)`); n != 0 {
		t.Errorf("%d rows of an event that did not happen", n)
	}
}

// asked notes every statement.
type asked struct {
	store.DB
	mu   sync.Mutex
	said []string
}

type askedTx struct {
	store.Tx
	db *asked
}

func (a *asked) note(query string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = append(a.said, query)
}

func (a *asked) Update(ctx context.Context, fn func(store.Tx) error) error {
	return a.DB.Update(ctx, func(tx store.Tx) error { return fn(askedTx{tx, a}) })
}

func (a *asked) View(ctx context.Context, fn func(store.Tx) error) error {
	return a.DB.View(ctx, func(tx store.Tx) error { return fn(askedTx{tx, a}) })
}

func (t askedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.db.note(query)
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t askedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	t.db.note(query)
	return t.Tx.QueryContext(ctx, query, args...)
}

func (t askedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	t.db.note(query)
	return t.Tx.QueryRowContext(ctx, query, args...)
}

// A create is a hot path: where nobody asked for the project's events, not one
// statement of it is about them.
func TestB9_AProjectThatNobodyListensToPaysNoStatement(t *testing.T) {
	h := newHarness(t)
	db := &asked{DB: h.db}
	s := newHarnessOn(t, db, h.fleet, func(c *Config) { c.ListenersKept = time.Hour })
	s.mustCreate("warm")
	db.said = nil
	s.mustCreate("a")
	if len(db.said) == 0 {
		t.Fatal("nothing was noted")
	}
	for _, query := range db.said {
		for _, word := range []string{"event", "webhook", "outbox"} {
			if strings.Contains(query, word) {
				t.Errorf("a create asks: %s", query)
			}
		}
	}
}

// A replica that had looked just before, and found that nobody listens, knows by the
// time that a create of a webhook returns.
func TestB9_EveryReplicaRecordsOnceAWebhookIsMade(t *testing.T) {
	h := newHarness(t, quick, func(c *Config) { c.ListenersKept = 300 * time.Millisecond })
	other := newHarnessOn(t, h.db, h.fleet, quick, func(c *Config) { c.ListenersKept = 300 * time.Millisecond })
	other.mustCreate("before")
	h.mustWebhook("http://127.0.0.1:1/")
	other.mustCreate("after")
	if n := h.count(`SELECT COUNT(*) FROM event`); n != 2 {
		t.Errorf("%d events of a create that began after the webhook was made", n)
	}
	if n := h.count(`SELECT COUNT(*) FROM outbox`); n != 2 {
		t.Errorf("%d of them are queued", n)
	}
}

// trap T18: an event that commits after a later one was read is not skipped.
func TestT18_AnEventThatCommitsLateIsNotSkipped(t *testing.T) {
	h := newHarness(t, quick)
	h.events("")
	shared := false
	_ = h.db.View(t.Context(), func(tx store.Tx) error { shared = tx.ForUpdate() != ""; return nil })
	if !shared {
		t.Skip("SQLite has one writer at a time: nothing commits out of order")
	}
	emit := func(resource string, hold func()) error {
		return h.update(t.Context(), "test", func(tx store.Tx, now time.Time) error {
			err := h.emit(t.Context(), tx, now, news{alice.Project, holdfast.EventSandboxReady, resource, struct{}{}})
			hold()
			return err
		})
	}
	begun, let, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() { ended <- emit("early", func() { close(begun); <-let }) }()
	<-begun
	if err := emit("late", func() {}); err != nil {
		t.Fatal(err)
	}
	first := h.events("")
	close(let)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if len(first) != 1 || first[0].Resource != "late" {
		t.Fatalf("%+v", first)
	}
	if rest := h.events(first[0].Cursor); len(rest) != 1 || rest[0].Resource != "early" {
		t.Errorf("behind the cursor: %+v", rest)
	}
}

func TestB9_AStreamFollowsWhatOtherReplicasDo(t *testing.T) {
	h := newHarness(t, quick)
	other := newHarnessOn(t, h.db, h.fleet, quick)
	h.events("")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	got := make(chan holdfast.Event, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- h.StreamEvents(ctx, alice, holdfast.StreamEvents{Follow: true}, func(e holdfast.Event) error { got <- e; return nil })
	}()
	sb := other.mustCreate("a")
	for _, want := range []holdfast.EventKind{holdfast.EventSandboxCreated, holdfast.EventSandboxReady} {
		select {
		case e := <-got:
			if e.Kind != want || e.Resource != string(sb.ID) {
				t.Errorf("%+v, want %s", e, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no %s", want)
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Events are kept for a week, and recorded for a week after somebody asked: a cursor
// from before what is missing is refused, and none after it.
func TestB9_OldEventsArePurgedAndACursorSaysSo(t *testing.T) {
	h := newHarness(t, quick)
	h.events("")
	h.mustCreate("a")
	h.mustCreate("b")
	all := h.events("")
	if len(all) != 4 {
		t.Fatalf("%d events", len(all))
	}
	week := holdfast.EventsKept.Microseconds()
	h.exec(fmt.Sprintf(`UPDATE event SET at = at - %d WHERE sequence <= 2`, week+1))
	h.sweep(SweepEvents)
	if rest := h.events(""); len(rest) != 2 || rest[0].ID != all[2].ID {
		t.Errorf("left: %+v", rest)
	}
	if rest := h.events(all[1].Cursor); len(rest) != 2 {
		t.Errorf("behind the last that was purged: %+v", rest)
	}
	after := func(cursor string) error {
		return h.StreamEvents(t.Context(), alice, holdfast.StreamEvents{After: cursor}, func(holdfast.Event) error { return nil })
	}
	wantError(t, after(all[0].Cursor), holdfast.OutOfRange, holdfast.ReasonBeginAnew)
	wantError(t, after("1000"), holdfast.OutOfRange, holdfast.ReasonBeginAnew)
	wantError(t, after("x"), holdfast.InvalidArgument, holdfast.ReasonBadField)

	h.exec(fmt.Sprintf(`UPDATE event_project SET asked_at = asked_at - %d`, week+1))
	h.sweep(SweepEvents)
	h.mustCreate("c")
	if n := h.count(`SELECT COUNT(*) FROM event`); n != 2 {
		t.Errorf("%d events: nobody asked for a week, and it is still recorded", n)
	}
	wantError(t, after(all[3].Cursor), holdfast.OutOfRange, holdfast.ReasonBeginAnew)
	h.mustCreate("d")
	if got := h.events(""); kindsOf(got) != "created ready" {
		t.Errorf("after it was asked for again: %s", kindsOf(got))
	}
}

func TestEventsOfAResourceKeepTheirOrderWhateverTheClockDoes(t *testing.T) {
	h := newHarness(t, quick)
	h.events("")
	at := time.Now()
	for i := range 5 {
		err := h.update(t.Context(), "test", func(tx store.Tx, _ time.Time) error {
			return h.emit(t.Context(), tx, at.Add(-time.Duration(i)*time.Second), news{alice.Project, holdfast.EventSandboxReady, "sb-1", i})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, e := range h.events("") {
		got = append(got, e.Object)
	}
	if !slices.Equal(got, []string{"0", "1", "2", "3", "4"}) {
		t.Error(got)
	}
}

func TestDeliveriesAreListedForOperators(t *testing.T) {
	h := newHarness(t, quick)
	h.exec(`INSERT INTO delivery (source, id, kind, received_at, body_sha256, outcome) VALUES ('fleet', 'a', 'k', 5, 'x', 'applied'), ('hook/gh', 'b', 'k', 6, 'y', 'ignored')`)
	admin := holdfast.Caller{Project: holdfast.ProjectDefault, Role: holdfast.RoleAdmin}
	page, err := h.ListDeliveries(t.Context(), admin, holdfast.ListDeliveries{PageSize: 1})
	if err != nil || len(page.Deliveries) != 1 || page.Deliveries[0].Outcome != "applied" || page.NextPageToken == "" {
		t.Fatalf("%+v %v", page, err)
	}
	page, err = h.ListDeliveries(t.Context(), admin, holdfast.ListDeliveries{PageToken: page.NextPageToken})
	if err != nil || len(page.Deliveries) != 1 || page.Deliveries[0].Source != "hook/gh" || page.NextPageToken != "" {
		t.Fatalf("%+v %v", page, err)
	}
	_, err = h.ListDeliveries(t.Context(), alice, holdfast.ListDeliveries{})
	wantError(t, err, holdfast.PermissionDenied, holdfast.ReasonNotAdmin)
	_, err = h.ListDeliveries(t.Context(), admin, holdfast.ListDeliveries{PageToken: "9:x"})
	wantError(t, err, holdfast.InvalidArgument, holdfast.ReasonBadField)
}
