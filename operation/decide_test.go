package operation_test

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/operation"
)

// contract: A6, A7. The cases are those of the lifecycle tables that turn on the pending operation.
func TestA7_WhatANewIntentDoesAboutThePendingOne(t *testing.T) {
	sandboxes := map[string]operation.Wanted{
		"SUSPEND": {Kind: "SUSPEND", Supersedes: []string{"RESUME", "CHECKPOINT"}},
		"RESUME":  {Kind: "RESUME", Supersedes: []string{"SUSPEND", "CHECKPOINT"}},
		"DELETE":  {Kind: "DELETE", Supersedes: []string{"CREATE", "REPLACE", "SUSPEND", "RESUME", "CHECKPOINT"}, Outranks: true},
		"CREATE":  {Kind: "CREATE", Same: []string{"REPLACE"}},
	}
	sessions := map[string]operation.Wanted{}
	for k, w := range sandboxes {
		w.IssuedFirst = true
		sessions[k] = w
	}
	const none, free, issued, live = "none", "free", "issued", "live"
	cases := []struct {
		table         string
		pending, mode string
		wanted        string
		want          operation.Verdict
	}{
		{"sandbox", "", none, "SUSPEND", operation.Begin},
		{"sandbox", "CREATE", free, "CREATE", operation.Join},
		{"sandbox", "REPLACE", free, "CREATE", operation.Join},
		{"sandbox", "CREATE", live, "CREATE", operation.Held},
		{"sandbox", "CREATE", free, "SUSPEND", operation.Conflict},
		{"sandbox", "CREATE", free, "DELETE", operation.Replace},
		{"sandbox", "CREATE", issued, "DELETE", operation.Replace},
		{"sandbox", "CREATE", live, "DELETE", operation.Stop},
		{"sandbox", "SUSPEND", free, "SUSPEND", operation.Join},
		{"sandbox", "SUSPEND", free, "RESUME", operation.Replace},
		{"sandbox", "SUSPEND", issued, "RESUME", operation.Replace},
		{"sandbox", "SUSPEND", live, "RESUME", operation.Held},
		{"sandbox", "CHECKPOINT", free, "SUSPEND", operation.Replace},
		{"sandbox", "DELETE", free, "DELETE", operation.Join},
		{"sandbox", "DELETE", live, "DELETE", operation.Held},
		{"sandbox", "DELETE", free, "RESUME", operation.Conflict},
		{"session", "SUSPEND", issued, "SUSPEND", operation.Join},
		{"session", "SUSPEND", issued, "RESUME", operation.Uncertain},
		{"session", "SUSPEND", issued, "DELETE", operation.Uncertain},
		{"session", "SUSPEND", free, "RESUME", operation.Replace},
		{"session", "SUSPEND", live, "DELETE", operation.Stop},
	}
	for _, c := range cases {
		w := sandboxes[c.wanted]
		if c.table == "session" {
			w = sessions[c.wanted]
		}
		var pending *operation.Operation
		if c.mode != none {
			pending = &operation.Operation{Kind: c.pending, State: operation.StatePending, Issued: c.mode == issued,
				ClaimExpires: epoch} // run out just now: no claim
			if c.mode == live {
				pending.ClaimExpires = epoch.Add(time.Microsecond)
			}
		}
		if got := operation.Decide(pending, epoch, w); got != c.want {
			t.Errorf("%s, %s %s, wanted %s: %s, want %s", c.table, c.pending, c.mode, c.wanted, got, c.want)
		}
	}
	ended := &operation.Operation{Kind: "SUSPEND", State: operation.StateDone}
	if got := operation.Decide(ended, epoch, sandboxes["RESUME"]); got != operation.Begin {
		t.Errorf("an ended operation is in the way: %s", got)
	}
}

// contract: A15
func TestA15_PatienceRunsOutOnAnsweredAttemptsAlone(t *testing.T) {
	p := operation.Patience{Attempts: 10, For: 15 * time.Minute}
	cases := []struct {
		name     string
		patience operation.Patience
		op       operation.Operation
		want     bool
	}{
		{"nine answered", p, operation.Operation{Answered: 9, Attempts: 900}, false},
		{"ten answered", p, operation.Operation{Answered: 10, Attempts: 10}, true},
		{"a quarter of an hour of them", p, operation.Operation{Answered: 3, AnsweredFor: 15 * time.Minute}, true},
		{"waiting for an image", p, operation.Operation{Answered: 10, WaitsFor: "image"}, false},
		{"a delete is never given up", operation.Patience{}, operation.Operation{Answered: 1e6, AnsweredFor: 1e6 * time.Hour}, false},
	}
	for _, c := range cases {
		if got := c.patience.Spent(c.op); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
