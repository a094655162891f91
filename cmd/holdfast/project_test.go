package main

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client/clienttest"
)

// ownIDs replaces what differs from run to run of projects and keys.
func (r result) ownIDs() result {
	id := regexp.MustCompile(`\b(pj|ky)-[0-9a-z]{26}\b`)
	return result{r.code, id.ReplaceAllString(r.stdout, "$1-ID"), id.ReplaceAllString(r.err, "$1-ID")}
}

func TestProjectCommandsShowWhatIsHeldOfEachQuota(t *testing.T) {
	c := newCLI(t)
	const header = "ID NAME SANDBOXES CPU-MILLIS MEMORY-BYTES CREATED\n"
	const agents = "pj-ID agents 0/10 0/unlimited 0/unlimited 0s ago\n"
	for range 2 { // keyed by its name
		c.run(t, "project", "create", "agents", "--sandboxes", "10").ownIDs().want(t, 0, header+agents, "")
	}
	c.run(t, "project", "quota", "agents").ownIDs().want(t, 0, header+agents, "")
	c.run(t, "project", "quota", "agents", "--cpu-millis", "4000", "--sandboxes", "unlimited").ownIDs().want(t, 0,
		header+"pj-ID agents 0/unlimited 0/4000 0/unlimited 0s ago\n", "")
	c.run(t, "project", "quota", "agents", "--sandboxes", "0", "-o", "json").ownIDs().want(t, 0,
		`{"id":"pj-ID","name":"agents","quotas":{"sandboxes":"0","cpuMillis":"4000","memoryBytes":"-1"},"usage":{},"createdAt":"TIME","updatedAt":"TIME"}`+"\n", "")
	c.run(t, "project", "list").ownIDs().want(t, 0,
		header+"pj-ID agents 0/0 0/4000 0/unlimited 0s ago\ndefault default 0/unlimited 0/unlimited 0/unlimited 0s ago\n", "")
	if r := c.run(t, "project", "list", "-o", "json"); !strings.HasPrefix(r.stdout, `{"projects":[{"id":"pj-`) {
		t.Errorf("got %+v", r)
	}
}

func TestKeyCommandsShowASecretOnceAndNeverAgain(t *testing.T) {
	c := newCLI(t)
	const header = "ID PROJECT NAME ROLE CREATED REVOKED\n"
	c.run(t, "key", "create", "bot").ownIDs().want(t, 0, header+"ky-ID default bot MEMBER TIME -\nsecret, shown this once: hf_secret\n", "")
	made := c.run(t, "key", "create", "ops", "--role", "admin", "-o", "json")
	made.ownIDs().want(t, 0, `{"key":{"id":"ky-ID","project":"default","name":"ops","role":"ADMIN","createdAt":"TIME"},"secret":"hf_secret"}`+"\n", "")
	list := c.run(t, "key", "list")
	list.ownIDs().want(t, 0, header+"ky-ID default bot MEMBER TIME -\nky-ID default ops ADMIN TIME -\n", "")
	id := regexp.MustCompile(`ky-[0-9a-z]{26}`).FindString(list.stdout)
	for range 2 {
		c.run(t, "key", "revoke", id).ownIDs().want(t, 0, header+"ky-ID default bot MEMBER TIME TIME\n", "")
	}
	c.run(t, "key", "list").ownIDs().want(t, 0, header+"ky-ID default ops ADMIN TIME -\n", "")
	if r := c.run(t, "key", "list", "--all"); strings.Count(r.stdout, "\n") != 3 || strings.Contains(r.stdout, "hf_") {
		t.Errorf("got %+v", r)
	}
	if n := len(c.fake.Calls("CreateKey")); n != 2 {
		t.Errorf("%d keys were made, want 2", n)
	}
}

// A key that may have been made is never made again by itself.
func TestALostKeyIsNotMadeTwice(t *testing.T) {
	c := newCLI(t)
	c.fake.After = func(context.Context, clienttest.Call) error {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "lost")
	}
	if r := c.run(t, "key", "create", "bot", "--timeout", "2s"); r.code != 1 || len(c.fake.Calls("CreateKey")) != 1 {
		t.Errorf("%d calls, %+v", len(c.fake.Calls("CreateKey")), r)
	}
}

func TestErrorsOfProjectsAndKeysSayWhatToDo(t *testing.T) {
	c := newCLI(t)
	const missing = "ky-00000000000000000000000000"
	tests := map[string]struct {
		args []string
		code int
		err  string
	}{
		"no such project": {[]string{"project", "quota", "no-where"}, 3, "error: no project no-where (NOT_FOUND UNKNOWN)\nnext: list what there is: holdfast project list\n"},
		"bad name":        {[]string{"project", "create", "Agents"}, 2, "error: name \"Agents\" is no project's name: lower-case letters and digits, and hyphens between them (INVALID_ARGUMENT BAD_FIELD)\nnext: correct name, then run this again\n"},
		"bad quota":       {[]string{"project", "create", "agents", "--sandboxes", "-1"}, 2, "error: invalid argument \"-1\" for \"--sandboxes\" flag: it must be a number, 0 or more, or unlimited\nnext: see holdfast --help, or --help of the command\n"},
		"no name":         {[]string{"key", "create"}, 2, "error: NAME is missing\nnext: see holdfast --help, or --help of the command\n"},
		"bad role":        {[]string{"key", "create", "bot", "--role", "root"}, 2, "error: role is \"ROOT\"; it must be one of MEMBER, ADMIN (INVALID_ARGUMENT BAD_FIELD)\nnext: correct role, then run this again\n"},
		"no such key":     {[]string{"key", "revoke", missing}, 3, "error: no key ky-ID (NOT_FOUND UNKNOWN)\nnext: list what there is: holdfast key list --all\n"},
		"bad key id":      {[]string{"key", "revoke", "x"}, 2, "error: ID \"x\" is not an id: expected ky- and 26 characters of 0-9 and a-z (without i, l, o, u) (INVALID_ARGUMENT BAD_FIELD)\nnext: correct ID, then run this again\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c.run(t, test.args...).ownIDs().want(t, test.code, "", test.err)
		})
	}
	for reason, says := range map[holdfast.Reason]string{
		holdfast.ReasonQuota: "or ask an admin for more: holdfast project quota pj-1", holdfast.ReasonNotAdmin: "give an admin's key",
		holdfast.ReasonNameTaken: "use another name",
	} {
		if next := (&app{}).hint(holdfast.E(holdfast.Internal, reason, "x").On("pj-1")); !strings.Contains(next, says) {
			t.Errorf("%s: next is %q", reason, next)
		}
	}
}
