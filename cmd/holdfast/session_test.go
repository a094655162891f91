package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// sessionIDs replaces what differs from run to run.
func (r result) sessionIDs() result {
	id := regexp.MustCompile(`\b(ck|sb|se)-[0-9a-z]{26}\b`)
	return result{r.code, id.ReplaceAllString(r.stdout, "$1-ID"), id.ReplaceAllString(r.err, "$1-ID")}
}

func TestSessionCommandsCreateShowAndEnd(t *testing.T) {
	c := newCLI(t)
	const header = "ID NAME ENVIRONMENT STATE PENDING TASKS CREATED\n"
	for range 2 {
		c.run(t, "session", "create", "base", "--request-id", "s", "--name", "one", "--idle", "5m").sessionIDs().
			want(t, 0, header+"se-ID one base READY - - 0s ago\n", "")
	}
	id := regexp.MustCompile(`se-[0-9a-z]{26}`).FindString(c.run(t, "session", "list").stdout)
	c.run(t, "session", "suspend", id, "--force").sessionIDs().want(t, 0, header+"se-ID one base SUSPENDED - - 0s ago\n", "")
	if calls := c.fake.Calls("SuspendSession"); len(calls) != 1 || !calls[0].In.(holdfast.MutateSession).Force {
		t.Errorf("--force did not arrive: %+v", calls)
	}
	c.run(t, "session", "resume", id).sessionIDs().want(t, 0, header+"se-ID one base READY - - 0s ago\n", "")
	c.run(t, "session", "rename", id, "two").sessionIDs().want(t, 0, header+"se-ID two base READY - - 0s ago\n", "")
	if r := c.run(t, "session", "get", id, "-o", "json"); r.code != 0 || !strings.Contains(r.stdout, `"state":"READY"`) || !strings.Contains(r.stdout, `"idle":"300s"`) {
		t.Errorf("got %+v", r)
	}
	if r := c.run(t, "session", "get", id); !strings.Contains(r.stdout, "Door") || !strings.Contains(r.stdout, "5m0s") {
		t.Errorf("got %+v", r)
	}
	if r := c.run(t, "session", "list", "-o", "json"); !strings.HasPrefix(r.stdout, `{"sessions":[{"id":"se-`) {
		t.Errorf("got %+v", r)
	}
	for range 2 {
		c.run(t, "session", "delete", id).sessionIDs().want(t, 0, header+"se-ID two base DELETED - - 0s ago\n", "")
	}
	if r := c.run(t, "session", "delete", "se-00000000000000000000000000"); r.code != 0 {
		t.Errorf("one that is not there: %+v", r)
	}
	for _, wrong := range [][]string{{"session", "create"}, {"session", "create", "base", "--idle", "0s"}, {"session", "create", "base", "--ref", "main"},
		{"session", "list", "--state", "nonsense"}, {"session", "get", "sb-1"}, {"session", "resume", id, "--force"}} {
		if r := c.run(t, wrong...); r.code != 2 {
			t.Errorf("%v: %+v", wrong, r)
		}
	}
}

func TestASessionIsForkedFromASessionOnce(t *testing.T) {
	c := newCLI(t)
	id := regexp.MustCompile(`se-[0-9a-z]{26}`).FindString(c.run(t, "session", "create", "base", "--request-id", "s").stdout)
	for range 2 {
		if r := c.run(t, "session", "fork", id, "--request-id", "f", "--name", "fork", "-o", "json"); r.code != 0 || !strings.Contains(r.stdout, `"source":{"checkpoint":"ck-`) {
			t.Errorf("got %+v", r)
		}
	}
	if r := c.run(t, "session", "list", "-o", "json"); strings.Count(r.stdout, `"id":"se-`) != 2 {
		t.Errorf("a repeated fork is another: %+v", r)
	}
}
