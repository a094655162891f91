package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// contract: A11
func TestA11_ExtendAndLifetimeCommands(t *testing.T) {
	c := newCLI(t)
	created := c.run(t, "sandbox", "create", "base", "--request-id", "r1", "--ttl", "1h", "--on-expiry", "suspend", "--restart", "fresh", "-o", "json")
	if created.code != 0 || !strings.Contains(created.stdout, `"onExpiry":"SUSPEND"`) || !strings.Contains(created.stdout, `"restart":"FRESH"`) {
		t.Fatalf("%+v", created)
	}
	id := c.fake.Calls("CreateSandbox")[0].In.(holdfast.CreateSandbox).RequestID
	if id != "r1" {
		t.Fatal(id)
	}
	id = created.stdout[len(`{"id":"`):][:29]
	c.run(t, "sandbox", "extend", id, "--ttl", "3h").want(t, 0, "ID NAME ENVIRONMENT STATE PENDING CREATED EXPIRES\nsb-ID - base READY - 0s ago in 3h\n", "")
	c.run(t, "sandbox", "lifetime", id, "--ttl", "10m", "--on-expiry", "delete").want(t, 0,
		"ID NAME ENVIRONMENT STATE PENDING CREATED EXPIRES\nsb-ID - base READY - 0s ago in 10m\n", "")
	if got := c.run(t, "sandbox", "get", id); !strings.Contains(ids(got.stdout), "Expires TIME, then DELETE") || !strings.Contains(ids(got.stdout), "Restart FRESH") {
		t.Errorf("%s", got.stdout)
	}
	c.run(t, "sandbox", "extend", id).want(t, 2, "",
		"error: --ttl is missing: say how long it shall live from now on, such as --ttl 2h\nnext: see holdfast --help, or --help of the command\n")
	if r := c.run(t, "sandbox", "lifetime", id); r.code != 2 || !strings.Contains(r.err, "nothing to set") {
		t.Errorf("%+v", r)
	}
	failed := string(c.fake.Add(holdfast.SandboxFailed).ID)
	if r := c.run(t, "sandbox", "extend", failed, "--ttl", "1h"); r.code != 1 || !strings.Contains(r.err, "EXPIRED") || !strings.Contains(r.err, "next: look at the sandbox") {
		t.Errorf("%+v", r)
	}
}

// contract: A5
func TestA5_ListWatchWritesALineForEachChange(t *testing.T) {
	c := newCLI(t)
	id := c.fake.Add(holdfast.SandboxCreating).ID
	for output, wants := range map[string][2]string{
		"table": {"CREATING", "READY"},
		"json":  {`{"version":"1","sandbox":{"id":"` + string(id), `"state":"READY"`},
	} {
		c.fake.Change(id, func(s *holdfast.Sandbox) { s.State = holdfast.SandboxCreating })
		r, w := io.Pipe()
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		done := make(chan int, 1)
		go func() {
			done <- run(ctx, []string{"sandbox", "list", "--watch", "-o", output}, streams{c.in, w, io.Discard}, func(name string) (string, bool) {
				value, ok := c.env[name]
				return value, ok
			})
		}()
		lines := bufio.NewScanner(r)
		for i, want := range wants {
			if !lines.Scan() || !strings.Contains(lines.Text(), want) {
				t.Errorf("%s: line %d is %q, want %q", output, i, lines.Text(), want)
			}
			c.fake.Change(id, func(s *holdfast.Sandbox) { s.State = holdfast.SandboxReady })
		}
		stop()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if code := <-done; code != 0 {
			t.Errorf("%s: it ended with %d", output, code)
		}
	}
	if r := c.run(t, "sandbox", "list", "--watch", "--state", "ready"); r.code != 2 {
		t.Errorf("%+v", r)
	}
}
