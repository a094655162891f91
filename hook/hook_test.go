package hook

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

const file = `
rules:
  - name: review
    event: pull_request
    when:
      action: [opened, synchronize]
      pull_request.base.ref: release/*
      repository.private: "false"
    create_session:
      environment: reviewer
      name: pr-${pull_request.number}
      idle: 10m
      labels: {repo: "${repository.name}"}
      repository: {url: "${pull_request.head.repo.clone_url}", ref: "${holdfast.branch}"}
    submit_task:
      command: review
      args: ["--title", "${pull_request.title}", "$${HOME}"]
      limit: 30m
  - name: any
    create_sandbox: {environment: base, name: "${holdfast.event}-${holdfast.hook}"}
`

func delivered(t *testing.T, payload string) Delivery {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(payload))
	d.UseNumber()
	out := Delivery{Hook: "gh", ID: "guid-1", Event: "pull_request"}
	if err := d.Decode(&out.Payload); err != nil {
		t.Fatal(err)
	}
	return out
}

func parsed(t *testing.T, text string) Rules {
	t.Helper()
	r, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const opened = `{"action":"opened","repository":{"name":"tool","private":false},"pull_request":{"number":12345678901234567890,
	"title":"$(rm -rf /) ${pull_request.number}; \"x\" 'y'","base":{"ref":"release/1.2"},
	"head":{"ref":"fix","repo":{"clone_url":"https://example.com/t.git"}}}}`

// contract: B9
func TestB9_ARuleMakesOfAnEventWhatItsTemplatesSay(t *testing.T) {
	d := delivered(t, opened)
	plans := parsed(t, file).Plan(d)
	if len(plans) != 2 {
		t.Fatalf("%d plans: %+v", len(plans), plans)
	}
	want := Plan{Rule: "review",
		Session: &holdfast.CreateSession{RequestID: RequestID(d, "review", "session"), Environment: "reviewer", Name: "pr-12345678901234567890",
			Idle: 10 * time.Minute, Labels: map[string]string{"repo": "tool"}, Repository: &holdfast.Repository{URL: "https://example.com/t.git", Ref: "fix"}},
		// What a stranger wrote stays one argument, and is not expanded again.
		Task: &holdfast.SubmitTask{RequestID: RequestID(d, "review", "task"), Command: "review",
			Args: []string{"--title", `$(rm -rf /) ${pull_request.number}; "x" 'y'`, "${HOME}"}, Limit: 30 * time.Minute}}
	if !reflect.DeepEqual(plans[0], want) {
		t.Errorf("got %+v\nwant %+v", plans[0], want)
	}
	if plans[1].Sandbox == nil || plans[1].Sandbox.Name != "pull_request-gh" {
		t.Errorf("%+v", plans[1])
	}
}

func TestB9_OneDeliveryHasOneRequestIDForEachThingItMakes(t *testing.T) {
	d := delivered(t, opened)
	rules := parsed(t, file)
	first, again := rules.Plan(d), rules.Plan(d)
	if !reflect.DeepEqual(first, again) {
		t.Error("the same delivery made two plans")
	}
	seen := map[string]bool{}
	other := d
	other.ID = "guid-2"
	for _, d := range []Delivery{d, other} {
		for _, what := range []string{"session", "task", "sandbox"} {
			for _, rule := range []string{"a", "b"} {
				id := RequestID(d, rule, what)
				if seen[id] || holdfast.CheckRequestID("request_id", id) != nil {
					t.Errorf("request id %q", id)
				}
				seen[id] = true
			}
		}
	}
}

func TestB9_WhatIsMissingIsAFailureThatAPersonSees(t *testing.T) {
	rules := parsed(t, "rules: [{name: r, create_sandbox: {environment: base, name: \"${a.b.1.c}\"}}]")
	for payload, word := range map[string]string{
		`{}`: "a.b.1.c", `{"a":{"b":[{"c":"x"}]}}`: `"1"`, `{"a":{"b":[1,{"c":{}}]}}`: "no text", `{"a":"text"}`: "nothing is below", `[]`: "list of 0", `{"a":{"b":[0,{"c":null}]}}`: "no text",
	} {
		plans := rules.Plan(delivered(t, payload))
		if len(plans) != 1 || plans[0].Sandbox != nil || !strings.Contains(plans[0].Failure, word) {
			t.Errorf("%s: %+v", payload, plans)
		}
	}
}

func TestARuleMatchesByGlobsOfValuesThatAreThere(t *testing.T) {
	for _, c := range []struct {
		when, payload string
		want          bool
	}{
		{`{a: x}`, `{"a":"x"}`, true}, {`{a: x}`, `{"a":"xx"}`, false}, {`{a: "*"}`, `{"a":""}`, true}, {`{a: "*"}`, `{}`, false},
		{`{a: [x, "y*z"]}`, `{"a":"y/1/z"}`, true}, {`{a: "y*z*"}`, `{"a":"yz"}`, true}, {`{a: "aa*aa"}`, `{"a":"aaa"}`, false},
		{`{a.0: 7}`, `{"a":[7]}`, true}, {`{a: true}`, `{"a":true}`, true}, {`{holdfast.branch: main}`, `{"ref":"refs/heads/main"}`, true},
		{`{holdfast.branch: main}`, `{"ref":"refs/tags/main"}`, false}, {`{a: x, b: y}`, `{"a":"x"}`, false},
	} {
		rules := parsed(t, "rules: [{name: r, when: "+c.when+", create_sandbox: {environment: base}}]")
		if got := len(rules.Plan(delivered(t, c.payload))) == 1; got != c.want {
			t.Errorf("%s of %s: %t", c.when, c.payload, got)
		}
	}
}

func TestABadRuleFileSaysWhatIsWrongAndWhere(t *testing.T) {
	for text, word := range map[string]string{
		"":                   "no rule",
		"rules: []":          "no rule",
		"rules:\n  - nam: x": "line 2",
		"rules:\n- name: x\n  when:\n    a: {b: c}\n  create_sandbox: {environment: b}": "line 4",
		"rules: [{name: x, create_sandbox: {environment: b, ttl: soon}}]":               "soon",
		"rules: [{name: x}]":                          "does nothing",
		"rules: [{create_sandbox: {environment: b}}]": "no name",
		"rules: [{name: x, create_sandbox: {environment: b}}, {name: x, create_sandbox: {environment: b}}]": "two rules",
		"rules: [{name: x, create_sandbox: {}}]":                                                            "without environment",
		"rules: [{name: x, create_session: {}}]":                                                            "without environment",
		"rules: [{name: x, submit_task: {command: a}}]":                                                     "session",
		"rules: [{name: x, submit_task: {session: se}}]":                                                    "without command",
		"rules: [{name: x, create_session: {environment: e}, submit_task: {session: se, command: a}}]":      "either",
		"rules: [{name: x, create_session: {environment: e, repository: {ref: m}}}]":                        "without url",
		"rules: [{name: x, create_sandbox: {environment: b}, submit_task: {session: s, command: a}}]":       "another action",
		"rules: [{name: x, create_sandbox: {environment: '${a'}}]":                                          "${",
		"rules: [{name: x, create_sandbox: {environment: '${a b}'}}]":                                       "${",
		"rules: [{name: x, when: {a..b: c}, create_sandbox: {environment: b}}]":                             "a..b",
		"rules: [{name: x, create_sandbox: {environment: b}}]\n---\nrules: []":                              "second document",
		"rules: [": "line",
	} {
		_, err := Parse(text)
		if holdfast.CodeOf(err) != holdfast.InvalidArgument || !strings.Contains(err.Error(), word) {
			t.Errorf("%q: %v, want %q in it", text, err, word)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file, opened)
	f.Fuzz(func(t *testing.T, text, payload string) {
		rules, err := Parse(text)
		if err != nil {
			return
		}
		var d Delivery
		if json.Unmarshal([]byte(payload), &d.Payload) != nil {
			return
		}
		for _, plan := range rules.Plan(d) {
			if plan.Failure == "" && plan.Sandbox == nil && plan.Session == nil && plan.Task == nil {
				t.Errorf("a plan to do nothing: %+v", plan)
			}
		}
	})
}
