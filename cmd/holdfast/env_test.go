package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// envIDs replaces what differs from run to run of environments and builds.
func (r result) envIDs() result {
	id := regexp.MustCompile(`\b(en|bd)-[0-9a-z]{26}\b`)
	return result{r.code, id.ReplaceAllString(r.stdout, "$1-ID"), id.ReplaceAllString(r.err, "$1-ID")}
}

func recipe(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "env.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// contract: E1
func TestE1_EnvCommandsCreateBuildAndShow(t *testing.T) {
	c := newCLI(t)
	const header, builds = "NAME VERSION BUILD CREATED UPDATED\n", "ID ENVIRONMENT STATE PENDING CREATED TOOK\n"
	file := recipe(t, "name: tools\nbase: debian\nsetup: make\n")
	for range 2 { // keyed by its name
		c.run(t, "env", "create", "-f", file).envIDs().want(t, 0, header+"tools 1 - 0s ago 0s ago\n", "")
	}
	c.run(t, "env", "create", "-f", recipe(t, "name: tools\nbase: base\nenv: {A: b}\n")).envIDs().want(t, 0, header+"tools 2 - 0s ago 0s ago\n", "")
	first := c.run(t, "env", "build", "tools")
	first.envIDs().want(t, 0, builds+"bd-ID tools@2 READY - 0s ago 0s\n", "request-id: req-ID\nthe log\n")
	id := strings.TrimPrefix(strings.SplitN(first.err, "\n", 2)[0], "request-id: ")
	c.run(t, "env", "build", "tools", "--request-id", id, "--wait=false").want(t, 0, ids(first.stdout), "")
	c.run(t, "env", "list").envIDs().want(t, 0, header+"tools 2 bd-ID 0s ago 0s ago\n", "")
	c.run(t, "env", "builds", "tools", "-o", "json").envIDs().want(t, 0,
		`{"builds":[{"id":"bd-ID","project":"default","environment":"en-ID","name":"tools","version":"2","state":"READY","image":"base","createdAt":"TIME","updatedAt":"TIME","finishedAt":"TIME"}]}`+"\n", "")
	c.run(t, "env", "get", "tools", "-o", "json").envIDs().want(t, 0,
		`{"id":"en-ID","project":"default","name":"tools","version":"2","recipe":{"base":"base","env":{"A":"b"}},"build":"bd-ID","createdAt":"TIME","updatedAt":"TIME"}`+"\n", "")
	if r := c.run(t, "env", "get", "tools"); !strings.Contains(ids(r.stdout), "Base base\n") {
		t.Errorf("got %+v", r)
	}
	c.run(t, "env", "logs", "tools").want(t, 0, "the log\n", "")
	c.run(t, "env", "logs", "tools", "--offset", "4").want(t, 0, "log\n", "")
	c.run(t, "env", "list", "-o", "json").envIDs().want(t, 0,
		`{"environments":[{"id":"en-ID","project":"default","name":"tools","version":"2","build":"bd-ID","createdAt":"TIME","updatedAt":"TIME"}]}`+"\n", "")
	c.run(t, "env", "delete", "tools").envIDs().want(t, 0, header+"tools 2 bd-ID 0s ago 0s ago\n", "")
	c.run(t, "env", "delete", "nothing").want(t, 0, header+"nothing 0 - - -\n", "")
	c.run(t, "env", "list", "-o", "json").want(t, 0, `{"environments":[]}`+"\n", "")
}

// contract: E1. A build that failed exits 1, with the reason and where to look.
func TestE1_AFailedBuildExits1AndSaysWhereItsLogIs(t *testing.T) {
	c := newCLI(t)
	c.run(t, "env", "create", "-f", recipe(t, "name: tools\nbase: base\nsetup: \"false\"\n"))
	r := c.run(t, "env", "build", "tools", "--request-id", "b1").envIDs()
	r.want(t, 1, "ID ENVIRONMENT STATE PENDING CREATED TOOK\nbd-ID tools@1 FAILED - 0s ago 0s\n",
		"the log\nerror: build bd-ID failed: the setup ended with exit code 1 (SETUP_FAILED)\nnext: see its log: holdfast env logs bd-ID; another request id makes another build\n")
}

func TestErrorsOfEnvironmentsSayWhatToDo(t *testing.T) {
	c := newCLI(t)
	c.run(t, "env", "create", "-f", recipe(t, "name: bare\nbase: base\n"))
	bad := recipe(t, "name: tools\nbase: base\nsetpu: x\n")
	tests := map[string]struct {
		args []string
		code int
		err  string
	}{
		"no file":     {[]string{"env", "create"}, 2, "error: -f FILE is missing: the recipe, or - for standard input\nnext: see holdfast --help, or --help of the command\n"},
		"unknown key": {[]string{"env", "create", "-f", bad}, 2, "error: line 3: \"setpu\" is nothing that an environment has: there are name, base, setup, files, env, workdir, user, resources, ports, egress, hooks, repository, restart, build\nnext: correct FILE, then run this again\n"},
		"no such env": {[]string{"env", "build", "nothing", "--request-id", "r"}, 3, "error: no environment nothing (NOT_FOUND UNKNOWN)\nnext: list what there is: holdfast env list\n"},
		"bad name":    {[]string{"env", "build", "No", "--request-id", "r"}, 2, "error: environment \"No\" is no environment's name: 1 to 63 lower-case letters, digits and - _ . between them (INVALID_ARGUMENT BAD_FIELD)\nnext: correct environment, then run this again\n"},
		"no build":    {[]string{"env", "logs", "bare"}, 1, "error: environment bare has no build\nnext: holdfast env build bare\n"},
		"no such log": {[]string{"env", "logs", "bd-00000000000000000000000000"}, 3, "error: no build bd-ID (NOT_FOUND UNKNOWN)\nnext: list what there is: holdfast env builds\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := c.run(t, test.args...).envIDs()
			r.err = strings.ReplaceAll(r.err, bad, "FILE")
			r.want(t, test.code, "", test.err)
		})
	}
}

// contract: A5. env get says why a build is pending, and what is safe to do.
func TestA5_WhatIsBeingBuiltIsShownWithWhatItWaitsFor(t *testing.T) {
	b := holdfast.Build{ID: "bd-1", Version: 2, Operation: &holdfast.Operation{Kind: holdfast.OperationBuild, WaitsFor: "builder", Next: "wait",
		LastError: holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity, "no room")}}
	want := [][]string{{"Building", "bd-1 of version 2: BUILD (waits for builder)"}, {"Next", "wait"}, {"Trouble", "no room (NO_CAPACITY)"}}
	if got := describePending([]holdfast.Build{b}); !reflect.DeepEqual(got, want) {
		t.Errorf("pending: %q", got)
	}
	b.Operation, b.Failure = nil, &holdfast.Failure{Reason: holdfast.ReasonSetupFailed, Message: "exit 1"}
	if got := describePending([]holdfast.Build{b}); !reflect.DeepEqual(got, [][]string{{"Failed", "bd-1 of version 2: exit 1 (SETUP_FAILED)"}}) {
		t.Errorf("failed: %q", got)
	}
	b.Failure = nil
	if got := describePending([]holdfast.Build{b}); len(got) != 0 {
		t.Errorf("ready: %q", got)
	}
	c := newCLI(t)
	c.run(t, "env", "create", "-f", recipe(t, "name: tools\nbase: base\nsetup: \"false\"\n"))
	c.run(t, "env", "build", "tools", "--request-id", "b1")
	if r := c.run(t, "env", "get", "tools"); r.code != 0 || !strings.Contains(ids(r.stdout), "of version 1: the setup ended with exit code 1 (SETUP_FAILED)\n") {
		t.Errorf("got %+v", r)
	}
	const journal = "ID KIND STATE GENERATION ATTEMPTS SINCE FINISHED LAST-ERROR\n"
	c.run(t, "env", "operations", "tools").want(t, 0, journal, "") // the fake keeps none of builds
	c.run(t, "env", "operations", "nothing").want(t, 1, "", "error: environment nothing has no build\nnext: holdfast env build nothing\n")
}
