package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// checkpointIDs replaces what differs from run to run.
func (r result) checkpointIDs() result {
	id := regexp.MustCompile(`\b(ck|sb)-[0-9a-z]{26}\b`)
	return result{r.code, id.ReplaceAllString(r.stdout, "$1-ID"), id.ReplaceAllString(r.err, "$1-ID")}
}

func TestCheckpointCommandsTakeShowAndDelete(t *testing.T) {
	c := newCLI(t)
	source := c.fake.Add(holdfast.SandboxReady)
	const header = "ID SOURCE ENVIRONMENT STATE PENDING SIZE CREATED\n"
	for range 2 {
		c.run(t, "checkpoint", "create", string(source.ID), "--request-id", "c", "--label", "a=b").checkpointIDs().
			want(t, 0, header+"ck-ID sb-ID base READY - 4096 0s ago\n", "")
	}
	made := c.run(t, "checkpoint", "create", string(source.ID))
	if !strings.Contains(made.err, "request-id") || made.code != 0 {
		t.Errorf("without --request-id: %+v", made)
	}
	list := c.run(t, "checkpoint", "list", "--source", string(source.ID))
	if strings.Count(list.stdout, "\n") != 3 {
		t.Errorf("listed %+v", list)
	}
	id := regexp.MustCompile(`ck-[0-9a-z]{26}`).FindString(made.stdout)
	c.run(t, "checkpoint", "get", id, "-o", "json").checkpointIDs().want(t, 0,
		`{"id":"ck-ID","project":"default","creator":"test","source":"sb-ID","sandbox":"sb-ID","environment":"base","state":"READY","size":"4096","createdAt":"TIME","updatedAt":"TIME"}`+"\n", "")
	if r := c.run(t, "checkpoint", "get", id); !strings.Contains(r.stdout, "SHA-256") || !strings.Contains(r.stdout, "nothing") {
		t.Errorf("got %+v", r)
	}
	for range 2 {
		c.run(t, "checkpoint", "delete", id).checkpointIDs().want(t, 0, header+"ck-ID sb-ID base DELETED - 4096 0s ago\n", "")
	}
	if r := c.run(t, "checkpoint", "list", "--state", "deleted", "-o", "json"); strings.Count(r.stdout, `"state":"DELETED"`) != 1 {
		t.Errorf("listed %+v", r)
	}
	if r := c.run(t, "checkpoint", "list", "--state", "nonsense"); r.code != 2 {
		t.Errorf("got %+v", r)
	}
	if r := c.run(t, "checkpoint", "delete", "ck-00000000000000000000000000"); r.code != 0 {
		t.Errorf("one that is not there: %+v", r)
	}
}

func TestASandboxIsForkedFromACheckpointAndFromASandbox(t *testing.T) {
	c := newCLI(t)
	source := c.fake.Add(holdfast.SandboxReady)
	id := regexp.MustCompile(`ck-[0-9a-z]{26}`).FindString(c.run(t, "checkpoint", "create", string(source.ID), "--request-id", "c").stdout)
	if r := c.run(t, "sandbox", "create", "--from-checkpoint", id, "--request-id", "f", "-o", "json"); r.code != 0 || !strings.Contains(r.stdout, `"source":{"checkpoint":"`+id+`"}`) {
		t.Errorf("got %+v", r)
	}
	if r := c.run(t, "sandbox", "create"); r.code != 2 {
		t.Errorf("neither an environment nor a checkpoint: %+v", r)
	}
	for range 2 {
		if r := c.run(t, "sandbox", "fork", string(source.ID), "--request-id", "g", "--name", "fork", "-o", "json"); r.code != 0 || !strings.Contains(r.stdout, `"name":"fork"`) {
			t.Errorf("got %+v", r)
		}
	}
	if n := len(c.fake.Calls("CreateSandbox")); n != 3 {
		t.Errorf("%d creates", n)
	}
}
