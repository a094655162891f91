package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// hookIDs replaces what differs from run to run.
func (r result) hookIDs() result {
	id := regexp.MustCompile(`\b(wh|ev|ha)-[0-9a-z]{26}\b`)
	return result{r.code, id.ReplaceAllString(r.stdout, "$1-ID"), id.ReplaceAllString(r.err, "$1-ID")}
}

func TestWebhookCommandsSubscribeReplayAndShowWhatDied(t *testing.T) {
	c := newCLI(t)
	const header = "ID URL KINDS CREATOR CREATED\n"
	made := c.run(t, "webhook", "create", "https://example.com/in", "--kind", "sandbox.*")
	made.hookIDs().want(t, 0, header+"wh-ID https://example.com/in sandbox.* test TIME\nsecret, shown this once: whsec_c2VjcmV0\n", "")
	id := regexp.MustCompile(`wh-[0-9a-z]{26}`).FindString(made.stdout)
	c.run(t, "webhook", "list").hookIDs().want(t, 0, header+"wh-ID https://example.com/in sandbox.* test TIME\n", "")
	if r := c.run(t, "webhook", "create", "ftp://x"); r.code != 2 || !strings.Contains(r.err, "https://example.com/holdfast") {
		t.Errorf("got %+v", r)
	}
	if r := c.run(t, "webhook", "create", "https://x", "--kind", "sandbox.redy"); r.code != 2 || !strings.Contains(r.err, "sandbox.ready") {
		t.Errorf("got %+v", r)
	}
	c.fake.Bury(holdfast.WebhookID(id), c.fake.Happen(holdfast.EventSandboxReady, "sb-1"))
	c.run(t, "webhook", "dead", id).hookIDs().want(t, 0, "WEBHOOK EVENT KIND RESOURCE ATTEMPTS DIED ERROR\nwh-ID ev-ID sandbox.ready sb-1 1 TIME refused with status 400\n", "")
	c.run(t, "webhook", "replay", id, "--dead").want(t, 0, "1 queued\n", "")
	c.run(t, "webhook", "replay", id, "--all").want(t, 0, "2 queued\n", "") // two pages
	if r := c.run(t, "webhook", "replay", id); r.code != 2 || !strings.Contains(r.err, "--dead") {
		t.Errorf("got %+v", r)
	}
	if r := c.run(t, "webhook", "replay", id, "--all", "--dead"); r.code != 2 {
		t.Errorf("got %+v", r)
	}
	for range 2 { // what is gone is as wanted
		c.run(t, "webhook", "delete", id).want(t, 0, "", "")
	}
	c.run(t, "webhook", "list", "-o", "json").want(t, 0, `{"webhooks":[]}`+"\n", "")
}

func TestEventsAreShownInOrderFromACursorOn(t *testing.T) {
	c := newCLI(t)
	c.fake.Happen(holdfast.EventSandboxCreated, "sb-1")
	c.fake.Happen(holdfast.EventSandboxReady, "sb-1")
	c.run(t, "events").want(t, 0, "1 TIME sandbox.created sb-1\n2 TIME sandbox.ready sb-1\n", "")
	c.run(t, "events", "--after", "1", "-o", "json").hookIDs().want(t, 0,
		`{"id":"ev-ID","cursor":"2","project":"default","kind":"sandbox.ready","resource":"sb-1","at":"TIME","object":"{\"id\":\"sb-1\"}"}`+"\n", "")
	c.run(t, "events", "--kind", "sandbox.ready").want(t, 0, "2 TIME sandbox.ready sb-1\n", "")
	if r := c.run(t, "events", "--kind", "nonsense"); r.code != 2 {
		t.Errorf("got %+v", r)
	}
}

func TestHookCommandsMakeShowAndRetry(t *testing.T) {
	c := newCLI(t)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, []byte("rules: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	const header = "NAME KIND PROJECT CREATOR CREATED PATH\n"
	const line = "gh GITHUB default test TIME /hooks/gh\n"
	c.run(t, "hook", "create", "gh", "-f", rules).want(t, 0, header+line+"secret, shown this once: whsec_c2VjcmV0\n", "")
	c.run(t, "hook", "create", "gh", "-f", rules).want(t, 0, header+line, "")
	c.run(t, "hook", "list").want(t, 0, header+line, "")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("theirs\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.in = strings.NewReader("rules: []")
	c.run(t, "hook", "create", "std", "--kind", "standard", "--secret-file", secret, "-f", "-").want(t, 0,
		header+"std STANDARD default test TIME /hooks/std\nsecret, shown this once: theirs\n", "")
	for _, args := range [][]string{{"hook", "create", "gh"}, {"hook", "create", "gh", "-f", rules, "--kind", "x"}, {"hook", "create", "GH", "-f", rules}} {
		if r := c.run(t, args...); r.code != 2 {
			t.Errorf("%v: %+v", args, r)
		}
	}
	a := c.fake.Act(holdfast.HookAction{Hook: "gh", Event: "push", Rule: "box", State: holdfast.HookActionFailed, Attempts: 3, Resources: []string{"sb-1"},
		Failure: &holdfast.Failure{Reason: holdfast.ReasonNoSuchImage, Message: "no such"}})
	const actions = "ID HOOK EVENT RULE STATE ATTEMPTS RESOURCES CAME WHY\n"
	c.run(t, "hook", "actions", "--state", "failed").hookIDs().want(t, 0, actions+"ha-ID gh push box FAILED 3 sb-1 0s ago NO_SUCH_IMAGE: no such\n", "")
	c.run(t, "hook", "retry", string(a.ID)).hookIDs().want(t, 0, actions+"ha-ID gh push box PENDING 3 sb-1 0s ago NO_SUCH_IMAGE: no such\n", "")
	c.run(t, "hook", "actions", "--state", "done", "-o", "json").want(t, 0, `{"actions":[]}`+"\n", "")
	c.run(t, "hook", "deliveries").want(t, 0, "SOURCE ID KIND RECEIVED OUTCOME\nhook/gh guid-1 push TIME applied: box\n", "")
	for range 2 {
		c.run(t, "hook", "delete", "gh").want(t, 0, "", "")
	}
}
