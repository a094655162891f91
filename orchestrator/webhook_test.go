package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
)

func (h *harness) mustWebhook(url string, kinds ...string) holdfast.CreatedWebhook {
	h.t.Helper()
	w, err := h.CreateWebhook(h.t.Context(), alice, holdfast.CreateWebhook{URL: url, Kinds: kinds})
	if err != nil {
		h.t.Fatal(err)
	}
	return w
}

// receiver is a subscriber: it holds each message to its signature, and answers as told.
type receiver struct {
	*httptest.Server
	t      *testing.T
	mu     sync.Mutex
	secret string
	got    []message
	answer func(m message, w http.ResponseWriter)
}

type message struct {
	id   string
	kind string
	posted
}

func newReceiver(t *testing.T, answer func(message, http.ResponseWriter)) *receiver {
	r := &receiver{t: t, answer: answer}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		r.t.Error(err)
	}
	r.mu.Lock()
	secret := trimSecret(r.secret)
	r.mu.Unlock()
	signed, err := delivery.Verify(secret, req.Header, body, delivery.WithTolerance(time.Now(), time.Minute))
	if err != nil {
		r.t.Errorf("what came is not signed: %v", err)
	}
	var m struct {
		Type string `json:"type"`
		Data posted `json:"data"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		r.t.Error(err)
	}
	in := message{signed.ID, m.Type, m.Data}
	if in.id != string(m.Data.Event) {
		r.t.Errorf("the delivery's id is %s, the event's %s", in.id, m.Data.Event)
	}
	r.mu.Lock()
	r.got = append(r.got, in)
	r.mu.Unlock()
	if r.answer != nil {
		r.answer(in, w)
	}
}

func (r *receiver) subscribe(h *harness, kinds ...string) holdfast.Webhook {
	w := h.mustWebhook(r.URL, kinds...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secret = w.Secret
	return w.Webhook
}

// kinds are those that came, of one resource; "" of all.
func (r *receiver) kinds(resource string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, m := range r.got {
		if resource == "" || m.Resource == resource {
			out = append(out, strings.TrimPrefix(m.kind, "sandbox."))
		}
	}
	return strings.Join(out, " ")
}

// send runs the dispatcher until nothing is due, and returns what became of it.
func (h *harness) send() (sum outbox.Report) {
	h.t.Helper()
	for {
		r, err := h.outbox.RunOnce(h.t.Context())
		if err != nil {
			h.t.Fatal(err)
		}
		if r.Claimed == 0 {
			return sum
		}
		sum.Claimed, sum.Sent, sum.Retried, sum.Dead, sum.Stale = sum.Claimed+r.Claimed, sum.Sent+r.Sent, sum.Retried+r.Retried, sum.Dead+r.Dead, sum.Stale+r.Stale
	}
}

// until polls for a fact.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("it is not so that %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// contract: B8, B9. Reported of sandbox0 (227): what was queued in memory was lost.
func TestB9_WhatWasCommittedIsSentByTheNextProcessIfTheFirstDies(t *testing.T) {
	r := newReceiver(t, nil)
	h := newHarness(t, quick)
	r.subscribe(h)
	sb := h.mustCreate("a")
	if r.kinds("") != "" { // the process dies here: nothing of it ever ran
		t.Fatal("sent by nobody")
	}
	next := newHarnessOn(t, h.db, h.fleet, quick)
	next.send()
	if got := r.kinds(string(sb.ID)); got != "created ready" {
		t.Errorf("came: %s", got)
	}
	next.send()
	if got := r.kinds(""); got != "created ready" {
		t.Errorf("came again: %s", got)
	}
}

// A resource's events come one after another, each tried until it is taken; others'
// do not wait for them.
func TestB9_AResourcesEventsComeInOrderThroughFailures(t *testing.T) {
	var mu sync.Mutex
	failed := map[string]int{}
	r := newReceiver(t, func(m message, w http.ResponseWriter) {
		mu.Lock()
		defer mu.Unlock()
		if failed[m.id]++; failed[m.id] < 3 {
			w.WriteHeader([]int{http.StatusServiceUnavailable, http.StatusTooManyRequests}[failed[m.id]-1])
		}
	})
	h := newHarness(t, quick)
	r.subscribe(h)
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { h.outbox.run(ctx); close(ran) }()
	defer func() { stop(); <-ran }()
	sb := h.mustCreate("a")
	if _, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
		t.Fatal(err)
	}
	want := "created created created ready ready ready suspended suspended suspended"
	until(t, "all came", func() bool { return len(r.kinds("")) >= len(want) })
	if got := r.kinds(""); got != want {
		t.Errorf("came: %s", got)
	}
}

// contract: B5. Another 4xx is a dead letter at once, which shows and can be sent again.
func TestB5_B9_ARefusedEventIsADeadLetterThatCanBeReplayed(t *testing.T) {
	var refuse sync.Map
	r := newReceiver(t, func(m message, w http.ResponseWriter) {
		if _, no := refuse.Load(m.kind); no {
			http.Error(w, "not this one", http.StatusUnprocessableEntity)
		}
	})
	refuse.Store(string(holdfast.EventSandboxReady), true)
	h := newHarness(t, quick)
	w := r.subscribe(h)
	h.mustCreate("a")
	if got := h.send(); got.Dead != 1 || got.Sent != 1 || got.Retried != 0 {
		t.Errorf("%+v", got)
	}
	page, err := h.ListDeadLetters(t.Context(), alice, holdfast.ListDeadLetters{})
	if err != nil || len(page.DeadLetters) != 1 {
		t.Fatalf("%+v %v", page, err)
	}
	dead := page.DeadLetters[0]
	if dead.Webhook != w.ID || dead.Kind != holdfast.EventSandboxReady || !strings.Contains(dead.LastError, "not this one") || dead.DiedAt.IsZero() || dead.Attempts != 1 {
		t.Errorf("%+v", dead)
	}
	bob := holdfast.Caller{Project: "pj-other", Name: "bob"}
	if page, err := h.ListDeadLetters(t.Context(), bob, holdfast.ListDeadLetters{}); err != nil || len(page.DeadLetters) != 0 {
		t.Errorf("another project sees %+v, %v", page, err)
	}
	_, err = h.ReplayWebhook(t.Context(), bob, holdfast.ReplayWebhook{ID: w.ID})
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)

	refuse.Clear()
	again, err := h.ReplayWebhook(t.Context(), alice, holdfast.ReplayWebhook{ID: w.ID, Events: []holdfast.EventID{dead.Event}})
	if err != nil || again.Queued != 1 || again.Next != "" {
		t.Fatalf("%+v %v", again, err)
	}
	h.send()
	if got := r.kinds(""); got != "created ready ready" {
		t.Errorf("came: %s", got)
	}
	if page, err := h.ListDeadLetters(t.Context(), alice, holdfast.ListDeadLetters{Webhook: w.ID}); err != nil || len(page.DeadLetters) != 0 {
		t.Errorf("still dead: %+v %v", page, err)
	}
	_, err = h.ReplayWebhook(t.Context(), alice, holdfast.ReplayWebhook{ID: w.ID, Events: []holdfast.EventID{holdfast.EventID(h.config.IDs.New("ev"))}})
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
}

// A replay from a cursor sends what is behind it again, under the same ids and in
// order, what happened before the webhook was made included.
func TestB9_AReplaySendsEverythingBehindACursorInOrder(t *testing.T) {
	h := newHarness(t, quick)
	h.events("")
	sb := h.mustCreate("a")
	r := newReceiver(t, nil)
	w := r.subscribe(h, "sandbox.*")
	if _, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
		t.Fatal(err)
	}
	h.send()
	if _, err := h.ResumeSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
		t.Fatal(err)
	}
	all := h.events("")
	out, err := h.ReplayWebhook(t.Context(), alice, holdfast.ReplayWebhook{ID: w.ID, After: all[0].Cursor})
	if err != nil || out.Queued != 2 || out.Next != "" { // ready and suspended: resumed is pending already
		t.Fatalf("%+v %v", out, err)
	}
	h.send()
	if got := r.kinds(""); got != "suspended ready suspended resumed" {
		t.Errorf("came: %s", got)
	}
	if r.got[0].id != r.got[2].id {
		t.Error("a replayed event has another id")
	}
	_, err = h.ReplayWebhook(t.Context(), alice, holdfast.ReplayWebhook{ID: w.ID, After: "77"})
	wantError(t, err, holdfast.OutOfRange, holdfast.ReasonBeginAnew)
}

func TestB9_AReplayGoesOnPageByPage(t *testing.T) {
	h := newHarness(t, quick)
	h.events("")
	h.mustCreate("a")
	h.exec(`INSERT INTO event (id, project, kind, resource, at, sequence, object)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 450) SELECT 'ev-' || i, 'default', 'sandbox.ready', 'sb-x', 5 + i, 0, '{}' FROM n`)
	w := h.mustWebhook("http://127.0.0.1:1/")
	sum, pages := 0, 0
	for next := ""; pages == 0 || next != ""; pages++ {
		out, err := h.ReplayWebhook(t.Context(), alice, holdfast.ReplayWebhook{ID: w.Webhook.ID, After: next})
		if err != nil {
			t.Fatal(err)
		}
		sum, next = sum+out.Queued, out.Next
	}
	if sum != 452 || pages != 3 {
		t.Errorf("%d in %d pages", sum, pages)
	}
}

// A receiver that hangs keeps nobody else waiting.
func TestB9_AReceiverThatHangsBlocksNoOther(t *testing.T) {
	let := make(chan struct{})
	var held, most atomic.Int64
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		most.Store(max(most.Load(), held.Add(1)))
		defer held.Add(-1)
		_, _ = io.Copy(io.Discard, r.Body) // so that the server sees it when the sender gives up
		select {
		case <-let:
		case <-r.Context().Done():
		}
	}))
	defer hangs.Close()
	defer close(let)
	works := newReceiver(t, nil)
	h := newHarness(t, quick)
	for range 5 {
		h.mustWebhook(hangs.URL)
	}
	works.subscribe(h)
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { h.outbox.run(ctx); close(ran) }()
	for i := range 20 {
		h.mustCreate(fmt.Sprint("r", i))
	}
	began := time.Now()
	until(t, "the one that works has all", func() bool { return len(strings.Fields(works.kinds(""))) == 40 })
	t.Logf("%s after the last", time.Since(began))
	if n := most.Load(); n < webhookEach || n > 5*webhookEach {
		t.Errorf("%d sends hang at a time", n)
	}
	stop()
	<-ran
}

// A redirect is not followed, and what is not public is not called, whatever its name
// resolves to when it is dialled.
func TestB9_NothingIsSentInsideOrElsewhere(t *testing.T) {
	elsewhere := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	r := newReceiver(t, func(_ message, w http.ResponseWriter) {
		w.Header().Set("Location", other.URL)
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	h := newHarness(t, quick)
	w := r.subscribe(h)
	h.mustCreate("a")
	if _, err := h.outbox.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if elsewhere != 0 || len(r.kinds("")) == 0 {
		t.Errorf("%d requests were sent on", elsewhere)
	}
	strict := newHarnessOn(t, h.db, h.fleet, quick, func(c *Config) { c.AllowPrivateWebhooks = false })
	before := r.kinds("")
	until(t, "both are dead letters", func() bool {
		strict.send()
		page, err := strict.ListDeadLetters(t.Context(), alice, holdfast.ListDeadLetters{Webhook: w.ID})
		return err == nil && len(page.DeadLetters) == 2 && strings.Contains(page.DeadLetters[0].LastError, "--allow-private-webhooks")
	})
	if r.kinds("") != before {
		t.Error("a private address was called")
	}
	for _, url := range []string{r.URL, "http://localhost/", "http://[::1]/", "https://10.1.2.3/", "http://[::ffff:169.254.169.254]/latest", "http://0.0.0.0/"} {
		_, err := strict.CreateWebhook(t.Context(), alice, holdfast.CreateWebhook{URL: url})
		wantError(t, err, holdfast.InvalidArgument, holdfast.ReasonBadField)
	}
}

func TestB9_WhichAddressesArePublic(t *testing.T) {
	for address, want := range map[string]bool{
		"93.184.215.14:443": true, "[2606:2800:21f:cb07:6820:80da:af6b:8b2c]:443": true,
		"127.0.0.1:80": false, "[::1]:80": false, "10.0.0.1:80": false, "172.16.0.1:80": false, "192.168.1.1:80": false, "169.254.169.254:80": false,
		"100.64.0.1:80": false, "0.0.0.0:80": false, "[::]:80": false, "[fe80::1%eth0]:80": false, "[fd00::1]:80": false, "[::ffff:10.0.0.1]:80": false,
		"[64:ff9b::7f00:1]:80": false, "[2002:7f00:1::]:80": false, "224.0.0.1:80": false, "255.255.255.255:80": false, "[::127.0.0.1]:80": false, "198.18.0.1:80": false,
	} {
		if err := checkPublic(address); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
	var private *privateError
	if err := checkPublic("127.0.0.1:80"); !errors.As(err, &private) {
		t.Error(err)
	}
}

// What is deleted is sent nothing more, and leaves nothing.
func TestB9_ADeletedWebhookIsSentNothingAndLeavesNothing(t *testing.T) {
	r := newReceiver(t, nil)
	h := newHarness(t, quick)
	w := r.subscribe(h)
	h.mustCreate("a")
	bob := holdfast.Caller{Project: "pj-other", Name: "bob"}
	wantError(t, h.DeleteWebhook(t.Context(), bob, w.ID), holdfast.NotFound, holdfast.ReasonUnknown)
	if err := h.DeleteWebhook(t.Context(), alice, w.ID); err != nil {
		t.Fatal(err)
	}
	wantError(t, h.DeleteWebhook(t.Context(), alice, w.ID), holdfast.NotFound, holdfast.ReasonUnknown)
	if got := h.send(); got.Dead != 2 || got.Sent != 0 || r.kinds("") != "" {
		t.Errorf("%+v, came: %s", got, r.kinds(""))
	}
	h.sweep(SweepEvents)
	if n := h.count(`SELECT COUNT(*) FROM outbox`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

func TestB9_OldDeadLettersAndSentEventsArePurged(t *testing.T) {
	h := newHarness(t, quick)
	w := h.mustWebhook("http://127.0.0.1:1/").Webhook.ID
	now := time.Now()
	for i, c := range []struct {
		state outbox.State
		age   time.Duration
	}{{outbox.Sent, holdfast.EventsKept + time.Minute}, {outbox.Sent, time.Hour}, {outbox.Dead, holdfast.EventsKept + time.Minute}, {outbox.Dead, holdfast.DeadKept + time.Minute}} {
		h.exec(fmt.Sprintf(`INSERT INTO outbox (destination, id, kind, ordering_key, position, body, state, enqueued_at, since, due_at, ended_at, attempts, claim, holder, last_error)
			VALUES ('%s', 'ev-%d', 'k', '', 0, '{}', '%s', 1, 1, 1, %d, 1, 1, '', '')`, w, i, c.state, now.Add(-c.age).UnixMicro()))
	}
	h.sweep(SweepEvents)
	if n := h.count(`SELECT COUNT(*) FROM outbox WHERE id IN ('ev-1', 'ev-2')`); n != 2 || h.count(`SELECT COUNT(*) FROM outbox`) != 2 {
		t.Errorf("%d are left of those that stay, %d in all", n, h.count(`SELECT COUNT(*) FROM outbox`))
	}
}

func TestWebhooksAreTheirProjectsAndLimited(t *testing.T) {
	h := newHarness(t, quick)
	var want []holdfast.WebhookID
	for range holdfast.MaxWebhooks {
		want = append(want, h.mustWebhook("https://example.com/x", "sandbox.*").Webhook.ID)
	}
	_, err := h.CreateWebhook(t.Context(), alice, holdfast.CreateWebhook{URL: "https://example.com/x"})
	wantError(t, err, holdfast.ResourceExhausted, holdfast.ReasonQuota)
	var got []holdfast.WebhookID
	for token := ""; ; {
		page, err := h.ListWebhooks(t.Context(), alice, holdfast.ListWebhooks{PageSize: 20, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range page.Webhooks {
			got = append(got, w.ID)
			if w.URL != "https://example.com/x" || !slices.Equal(w.Kinds, []string{"sandbox.*"}) || w.Creator != "alice" || w.CreatedAt.IsZero() {
				t.Errorf("%+v", w)
			}
		}
		if token = page.NextPageToken; token == "" {
			break
		}
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d are listed", len(got))
	}
	if page, err := h.ListWebhooks(t.Context(), holdfast.Caller{Project: "pj-other"}, holdfast.ListWebhooks{}); err != nil || len(page.Webhooks) != 0 {
		t.Errorf("another project sees %+v, %v", page, err)
	}
}
