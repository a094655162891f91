package orchestrator

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
)

const boxRule = `rules:
- name: box
  event: push
  when: {holdfast.branch: main}
  create_sandbox: {environment: base, name: "${repository.name}"}
`

const push = `{"ref":"refs/heads/main","repository":{"name":"tool"}}`

func (h *harness) hook(in holdfast.CreateHook) holdfast.CreatedHook {
	h.t.Helper()
	out, err := h.CreateHook(h.t.Context(), root, in)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h *harness) github(rules string) string {
	h.t.Helper()
	return h.hook(holdfast.CreateHook{Name: "gh", Kind: holdfast.HookGitHub, Rules: rules}).Secret
}

// postHook sends what GitHub would, and returns the answer.
func (h *harness) postHook(secret, id, event, body string, change ...func(*http.Request)) (int, string) {
	h.t.Helper()
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte(body))
	r := httptest.NewRequest(http.MethodPost, "/hooks/gh", strings.NewReader(body)).WithContext(h.t.Context())
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-GitHub-Delivery", id)
	r.Header.Set("X-GitHub-Event", event)
	r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(m.Sum(nil)))
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.HookHandler().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func (h *harness) actions(states ...holdfast.HookActionState) []holdfast.HookAction {
	h.t.Helper()
	page, err := h.ListHookActions(h.t.Context(), alice, holdfast.ListHookActions{States: states})
	if err != nil {
		h.t.Fatal(err)
	}
	return page.Actions
}

// ended waits until nothing is pending.
func (h *harness) ended() []holdfast.HookAction {
	h.t.Helper()
	until(h.t, "no action is pending", func() bool { return len(h.actions(holdfast.HookActionPending)) == 0 })
	return h.actions()
}

// contract: B3, B9. A webhook that arrives many times at once makes one sandbox.
func TestB3_B9_AWebhookThatArrivesManyTimesAtOnceActsOnce(t *testing.T) {
	h := newHarness(t, quick)
	secret := h.github(boxRule)
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if status, text := h.postHook(secret, "guid-1", "push", push); status != http.StatusAccepted {
				t.Errorf("%d %s", status, text)
			}
		})
	}
	all.Wait()
	list := h.ended()
	if len(list) != 1 || list[0].State != holdfast.HookActionDone || list[0].Delivery != "guid-1" || list[0].Rule != "box" || list[0].Event != "push" || len(list[0].Resources) != 1 {
		t.Fatalf("%+v", list)
	}
	if sb := h.get(holdfast.SandboxID(list[0].Resources[0])); sb.Name != "tool" || sb.Creator != "hook:gh" || sb.State != holdfast.SandboxReady {
		t.Errorf("%+v", sb)
	}
	if n := h.count(`SELECT COUNT(*) FROM sandbox`); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
	h.postHook(secret, "guid-2", "push", push)
	h.ended()
	if n := h.count(`SELECT COUNT(*) FROM sandbox`); n != 2 {
		t.Errorf("%d sandboxes after another delivery", n)
	}
	if n := h.count(`SELECT COUNT(*) FROM delivery WHERE source = 'hook/gh' AND outcome = 'applied: box'`); n != 2 {
		t.Errorf("%d deliveries are recorded", n)
	}
}

// What was answered is durable: whoever dies before or after the call to the service,
// the next process carries it out, and makes no second sandbox.
func TestB9_AnActionSurvivesTheProcessThatTookIt(t *testing.T) {
	h := newHarness(t, quick)
	secret := h.github(boxRule)
	for range actingRoom { // nobody in this process acts
		h.acting <- struct{}{}
	}
	if status, text := h.postHook(secret, "guid-1", "push", push); status != http.StatusAccepted {
		t.Fatal(status, text)
	}
	if list := h.actions(); len(list) != 1 || list[0].State != holdfast.HookActionPending {
		t.Fatalf("%+v", list)
	}
	// Another takes it, makes the sandbox, and dies before it can say so.
	dead := newHarnessOn(t, h.db, h.fleet, quick)
	a, taken, err := dead.takeAction(t.Context(), h.actions()[0].ID)
	if err != nil || !taken {
		t.Fatal(taken, err)
	}
	made, err := dead.perform(t.Context(), a)
	if err != nil || len(made) != 1 {
		t.Fatal(made, err)
	}
	h.sweep(SweepActions)
	if list := h.actions(); list[0].State != holdfast.HookActionPending {
		t.Errorf("acted under another's claim: %+v", list[0])
	}
	h.exec(`UPDATE hook_action SET due_at = 5`) // the claim's end
	h.sweep(SweepActions)
	list := h.actions()
	if list[0].State != holdfast.HookActionDone || list[0].Resources[0] != made[0] || list[0].Attempts != 2 || h.count(`SELECT COUNT(*) FROM sandbox`) != 1 {
		t.Errorf("%+v", list[0])
	}
	// trap T11: the dead one was only slow, and says what it saw.
	if err := dead.endAction(t.Context(), a, nil, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "late")); err != nil {
		t.Error(err)
	}
	if list := h.actions(); list[0].State != holdfast.HookActionDone {
		t.Errorf("a late word changed it: %+v", list[0])
	}
}

// trap T16: what cannot be recorded whole is not known either, so it comes again.
func TestB3_T16_AWebhookThatIsNotRecordedComesAgain(t *testing.T) {
	h := newHarness(t, quick)
	secret := h.github(boxRule)
	h.exec(`ALTER TABLE hook_action RENAME TO hidden`)
	if status, _ := h.postHook(secret, "guid-1", "push", push); status != http.StatusServiceUnavailable {
		t.Errorf("answered %d", status)
	}
	h.exec(`ALTER TABLE hidden RENAME TO hook_action`)
	if status, _ := h.postHook(secret, "guid-1", "push", push); status != http.StatusAccepted {
		t.Errorf("answered %d", status)
	}
	if list := h.ended(); len(list) != 1 || list[0].State != holdfast.HookActionDone {
		t.Errorf("%+v", list)
	}
}

func TestB9_BadWebhooksAreRefusedAndRecordNothing(t *testing.T) {
	h := newHarness(t, quick)
	secret := h.github(boxRule)
	set := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	path := func(p string) func(*http.Request) { return func(r *http.Request) { r.URL.Path = p } }
	for _, c := range []struct {
		name   string
		secret string
		body   string
		change func(*http.Request)
		want   int
	}{
		{"another secret", "x", push, set("X", ""), 401},
		{"no signature", secret, push, func(r *http.Request) { r.Header.Del("X-Hub-Signature-256") }, 401},
		{"half a signature", secret, push, set("X-Hub-Signature-256", "sha256=00"), 401},
		{"another body", secret, push, func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(push + " ")) }, 401},
		{"unknown source", secret, push, path("/hooks/nobody"), 404},
		{"no name", secret, push, path("/hooks/..%2f"), 404},
		{"too large", secret, strings.Repeat(" ", holdfast.MaxHookBody+1), set("X", ""), 413},
		{"no JSON", secret, "{", set("X", ""), 400},
		{"two values", secret, "{}{}", set("X", ""), 400},
		{"no text", secret, "\"\xff\"", set("X", ""), 400},
		{"no id", secret, push, func(r *http.Request) { r.Header.Del("X-GitHub-Delivery") }, 400},
		{"a long id", secret, push, set("X-GitHub-Delivery", strings.Repeat("x", 200)), 400},
		{"not posted", secret, push, func(r *http.Request) { r.Method = http.MethodGet }, 405},
	} {
		if status, text := h.postHook(c.secret, "guid-1", "push", c.body, c.change); status != c.want {
			t.Errorf("%s: answered %d %s", c.name, status, text)
		}
	}
	if n := h.count(`SELECT (SELECT COUNT(*) FROM delivery) + (SELECT COUNT(*) FROM hook_action)`); n != 0 {
		t.Errorf("%d rows of what was refused", n)
	}
	// As large as may be, and what no rule is about, is taken.
	if status, text := h.postHook(secret, "guid-1", "push", push+strings.Repeat(" ", holdfast.MaxHookBody-len(push))); status != http.StatusAccepted {
		t.Errorf("%d %s", status, text)
	}
	if status, _ := h.postHook(secret, "guid-2", "ping", `{"zen":"x"}`); status != http.StatusAccepted || len(h.ended()) != 1 {
		t.Errorf("a ping: %d", status)
	}
}

// GitHub sends a form where it is not told to send JSON.
func TestB9_GitHubsFormIsRead(t *testing.T) {
	h := newHarness(t, quick)
	secret := h.github(boxRule)
	form := url.Values{"payload": {push}}.Encode()
	status, text := h.postHook(secret, "guid-1", "push", form, func(r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") })
	if list := h.ended(); status != http.StatusAccepted || len(list) != 1 || list[0].State != holdfast.HookActionDone {
		t.Errorf("%d %s %+v", status, text, list)
	}
}

// A field that is missing, and a refusal, are shown and wait for a person.
func TestB9_WhatCannotBeDoneIsFailedForAllToSee(t *testing.T) {
	h := newHarness(t, quick)
	h.config.Sessions = nil
	secret := h.github(`rules:
- {name: missing, event: push, create_sandbox: {environment: base, name: "${head.title}"}}
- {name: refused, event: push, create_sandbox: {environment: "${repository.name}"}}
- {name: sessions, event: push, create_session: {environment: base}}
`)
	h.postHook(secret, "guid-1", "push", push)
	by := map[string]holdfast.HookAction{}
	for _, a := range h.ended() {
		by[a.Rule] = a
		if a.State != holdfast.HookActionFailed || a.Failure == nil {
			t.Errorf("%+v", a)
		}
	}
	if !strings.Contains(by["missing"].Failure.Message, "head.title") || by["refused"].Failure.Reason != holdfast.ReasonNoSuchImage || by["sessions"].Failure.Reason != holdfast.ReasonNotCapable {
		t.Errorf("%+v", by)
	}
	_, err := h.RetryHookAction(t.Context(), alice, by["missing"].ID)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
	_, err = h.RetryHookAction(t.Context(), holdfast.Caller{Project: "pj-x"}, by["refused"].ID)
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	h.config.Sessions = fakeSessions{t: t}
	a, err := h.RetryHookAction(t.Context(), alice, by["sessions"].ID)
	if err != nil || a.State != holdfast.HookActionPending {
		t.Fatalf("%+v %v", a, err)
	}
	h.ended()
	if list := h.actions(holdfast.HookActionDone); len(list) != 1 || list[0].Rule != "sessions" || list[0].Resources[0] != "se-1" {
		t.Errorf("%+v", list)
	}
}

type fakeSessions struct {
	holdfast.SessionService
	t *testing.T
}

func (f fakeSessions) CreateSession(_ context.Context, caller holdfast.Caller, in holdfast.CreateSession) (holdfast.Session, error) {
	if caller.Name != "hook:gh" || caller.Project != holdfast.ProjectDefault || !strings.HasPrefix(in.RequestID, "hook-session-") {
		f.t.Errorf("%+v %+v", caller, in)
	}
	return holdfast.Session{ID: "se-1"}, nil
}

type fakeTasks struct {
	holdfast.TaskService
	asked []holdfast.SubmitTask
	err   error
}

func (f *fakeTasks) SubmitTask(_ context.Context, _ holdfast.Caller, in holdfast.SubmitTask) (holdfast.Task, error) {
	f.asked = append(f.asked, in)
	return holdfast.Task{ID: "tk-1"}, f.err
}

// A session and its task are one action: what was made stays made when the task has to
// be tried again.
func TestB9_ASessionAndItsTaskAreMadeOnceThroughFailures(t *testing.T) {
	tasks := &fakeTasks{err: holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "later")}
	h := newHarness(t, quick, func(c *Config) { c.Sessions, c.Tasks = fakeSessions{t: t}, tasks })
	for range actingRoom {
		h.acting <- struct{}{}
	}
	secret := h.github(`rules: [{name: both, create_session: {environment: base}, submit_task: {command: review, args: ["${repository.name}"]}}]`)
	h.postHook(secret, "guid-1", "push", push)
	h.sweep(SweepActions)
	if a := h.actions()[0]; a.State != holdfast.HookActionPending || a.Failure == nil || a.Failure.Reason != holdfast.ReasonUnreachable || len(a.Resources) != 1 {
		t.Errorf("%+v", a)
	}
	tasks.err = nil
	h.sweep(SweepActions)
	if len(tasks.asked) != 1 {
		t.Errorf("tried again at once")
	}
	h.exec(`UPDATE hook_action SET due_at = 5`)
	h.sweep(SweepActions)
	a := h.actions()[0]
	if a.State != holdfast.HookActionDone || fmt.Sprint(a.Resources) != "[se-1 tk-1]" || a.Failure != nil || a.Attempts != 2 {
		t.Errorf("%+v", a)
	}
	if len(tasks.asked) != 2 || tasks.asked[0].RequestID != tasks.asked[1].RequestID || tasks.asked[1].Session != "se-1" || tasks.asked[1].Args[0] != "tool" {
		t.Errorf("%+v", tasks.asked)
	}
}

func TestWhatBecomesOfAnActionAfterAnAttempt(t *testing.T) {
	now := time.Now()
	young, old := action{since: now.Add(-time.Hour)}, action{since: now.Add(-holdfast.HookActionMaxAge)}
	for _, c := range []struct {
		code holdfast.Code
		a    action
		want holdfast.HookActionState
	}{
		{"", young, holdfast.HookActionDone}, {holdfast.Unavailable, young, holdfast.HookActionPending}, {holdfast.Unavailable, old, holdfast.HookActionFailed},
		{holdfast.DeadlineExceeded, young, holdfast.HookActionPending}, {holdfast.Aborted, young, holdfast.HookActionPending},
		{holdfast.ResourceExhausted, young, holdfast.HookActionPending}, {holdfast.InvalidArgument, young, holdfast.HookActionFailed},
		{holdfast.FailedPrecondition, young, holdfast.HookActionFailed}, {holdfast.NotFound, young, holdfast.HookActionFailed},
		{holdfast.AlreadyExists, young, holdfast.HookActionFailed}, {"", old, holdfast.HookActionDone},
	} {
		var err error
		if c.code != "" {
			err = holdfast.E(c.code, holdfast.ReasonState, "x")
		}
		if v := judgeAction(c.a, err, now); v.state != c.want || v.state == holdfast.HookActionPending && v.pause <= 0 {
			t.Errorf("%s: %+v", c.code, v)
		}
	}
}

// contract: B8. Third parties get the usual tolerance.
func TestB8_B9_AStandardWebhookIsTakenWithinItsTolerance(t *testing.T) {
	h := newHarness(t, quick)
	for range actingRoom {
		h.acting <- struct{}{}
	}
	const secret = "whsec_c2VjcmV0IG9mIGEgc3RyYW5nZXI=" // "secret of a stranger"
	h.hook(holdfast.CreateHook{Name: "std", Kind: holdfast.HookStandard, Secret: secret, Rules: `rules: [{name: r, event: "order.*", create_sandbox: {environment: base, name: "${data.id}"}}]`})
	body := []byte(`{"type":"order.paid","data":{"id":7}}`)
	send := func(at time.Time, key string) int {
		r := httptest.NewRequest(http.MethodPost, "/hooks/std", bytes.NewReader(body)).WithContext(t.Context())
		r.Header = delivery.Sign([]byte(key), "msg-1", at, body)
		w := httptest.NewRecorder()
		h.HookHandler().ServeHTTP(w, r)
		return w.Code
	}
	now := time.Now()
	for _, c := range []struct {
		at   time.Time
		key  string
		want int
	}{
		{now, secret, 401}, {now.Add(-6 * time.Minute), "secret of a stranger", 401}, {now.Add(6 * time.Minute), "secret of a stranger", 401},
		{now.Add(-4 * time.Minute), "secret of a stranger", 202}, {now, "secret of a stranger", 202},
	} {
		if got := send(c.at, c.key); got != c.want {
			t.Errorf("%s from now, %q: %d", c.at.Sub(now), c.key, got)
		}
	}
	if list := h.actions(); len(list) != 1 || list[0].Event != "order.paid" || list[0].Delivery != "msg-1" {
		t.Errorf("%+v", list)
	}
}

// Hooks are keyed by their name (contract: A3); their secrets lie sealed.
func TestA3_AHookIsKeyedByItsNameAndItsSecretLiesSealed(t *testing.T) {
	h := newHarness(t, quick)
	in := holdfast.CreateHook{Name: "gh", Kind: holdfast.HookGitHub, Rules: boxRule, Secret: "very secret"}
	first := h.hook(in)
	if first.Secret != "very secret" || first.Hook.Project != holdfast.ProjectDefault || first.Hook.Creator != "root" {
		t.Errorf("%+v", first)
	}
	if again := h.hook(in); again.Secret != "" || again.Hook != first.Hook {
		t.Errorf("%+v", again)
	}
	other := in
	other.Secret, other.Rules = "another", boxRule+"# changed\n"
	_, err := h.CreateHook(t.Context(), root, other)
	wantError(t, err, holdfast.AlreadyExists, holdfast.ReasonNameTaken)
	if fields := holdfast.AsError(err).Details["fields"]; fields != "rules, secret" {
		t.Error(fields)
	}
	if n := h.count(`SELECT COUNT(*) FROM hook WHERE secret LIKE '%secret%' OR fingerprint LIKE '%secret%very%'`); n != 0 {
		t.Error("the secret is in the database")
	}
	_, err = h.CreateHook(t.Context(), alice, in)
	wantError(t, err, holdfast.PermissionDenied, holdfast.ReasonNotAdmin)
	bad := in
	bad.Name, bad.Rules = "bad", "rules:\n- nam: x"
	_, err = h.CreateHook(t.Context(), root, bad)
	wantError(t, err, holdfast.InvalidArgument, holdfast.ReasonBadField)
	page, err := h.ListHooks(t.Context(), root, holdfast.ListHooks{})
	if err != nil || len(page.Hooks) != 1 || page.Hooks[0] != first.Hook {
		t.Errorf("%+v %v", page, err)
	}
	// One that is made anew under the name knows what came to the one before.
	if status, _ := h.postHook("very secret", "guid-1", "push", push); status != http.StatusAccepted {
		t.Error(status)
	}
	h.ended()
	if err := h.DeleteHook(t.Context(), root, "gh"); err != nil {
		t.Fatal(err)
	}
	wantError(t, h.DeleteHook(t.Context(), root, "gh"), holdfast.NotFound, holdfast.ReasonUnknown)
	if status, _ := h.postHook("very secret", "guid-1", "push", push); status != http.StatusNotFound {
		t.Error(status)
	}
	h.hook(other)
	if status, _ := h.postHook("another", "guid-1", "push", push); status != http.StatusAccepted || len(h.ended()) != 1 {
		t.Errorf("%d, %d actions", status, len(h.actions()))
	}
}

// trap T20: what came is known for longer than its sender may repeat it.
func TestT20_HooksDeliveriesAreKeptForAMonth(t *testing.T) {
	h := newHarness(t, quick)
	secret := h.github(boxRule)
	h.postHook(secret, "guid-1", "push", push)
	h.postHook(secret, "guid-2", "push", push)
	h.ended()
	if holdfast.HookKept < 30*24*time.Hour {
		t.Errorf("they are kept for %s", holdfast.HookKept)
	}
	month := holdfast.HookKept.Microseconds()
	h.exec(fmt.Sprintf(`UPDATE delivery SET received_at = received_at - %d WHERE id = 'guid-1'`, month+1))
	h.exec(fmt.Sprintf(`UPDATE hook_action SET updated_at = updated_at - %d WHERE delivery = 'guid-1'`, month+1))
	h.exec(fmt.Sprintf(`UPDATE delivery SET received_at = received_at - %d WHERE id = 'guid-2'`, month-time.Minute.Microseconds()))
	h.sweep(SweepInbox)
	if n := h.count(`SELECT COUNT(*) FROM delivery WHERE source = 'hook/gh'`); n != 1 || len(h.actions()) != 1 {
		t.Errorf("%d deliveries, %d actions are left", n, len(h.actions()))
	}
}
