package main

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client/clienttest"
)

const (
	oneHost   = "ho-00000000000000000000000001"
	otherHost = "ho-00000000000000000000000002"
)

func newHostCLI(t *testing.T) *cli {
	t.Helper()
	c := newCLI(t)
	c.fake.AddHost(holdfast.Host{ID: oneHost, Name: "one", Health: holdfast.HostReady, Duty: holdfast.HostActive, SeenAt: time.Now(),
		Capacity: holdfast.Capacity{CPUMillis: 16000, MemoryBytes: 8 << 30, Instances: 1000},
		Used:     holdfast.Capacity{CPUMillis: 2000, MemoryBytes: 1 << 30, Instances: 2}})
	c.fake.AddHost(holdfast.Host{ID: otherHost, Health: holdfast.HostLost, Duty: holdfast.HostRetired})
	return c
}

func TestHostListShowsWhatAnOperatorNeeds(t *testing.T) {
	c := newHostCLI(t)
	head := "ID NAME HEALTH DUTY INSTANCES CPU MEMORY SEEN REASON\n"
	one := oneHost + " one READY ACTIVE 2/1000 2000m/16000m 1024Mi/8192Mi 0s ago -\n"
	c.run(t, "host", "list").want(t, 0, head+one, "")
	c.run(t, "host", "list", "--all").want(t, 0, head+one+otherHost+" - LOST RETIRED 0/0 0m/0m 0Mi/0Mi - -\n", "")
	got := c.run(t, "host", "list", "-o", "json")
	if got.code != 0 || !regexp.MustCompile(`^\{"hosts":\[\{"id":"`+oneHost+`",.*"health":"READY","duty":"ACTIVE"`).MatchString(got.stdout) {
		t.Errorf("%d %s %s", got.code, got.stdout, got.err)
	}
	newCLI(t).run(t, "host", "list", "-o", "json").want(t, 0, "{\"hosts\":[]}\n", "")
}

func TestTheOperatorsVerbsSayWhatTheyMean(t *testing.T) {
	for verb, want := range map[string]holdfast.SetHostDuty{
		"cordon":   {Host: oneHost, Duty: holdfast.HostCordoned, Reason: "disk"},
		"uncordon": {Host: oneHost, Duty: holdfast.HostActive, Reason: "disk"},
		"drain":    {Host: oneHost, Duty: holdfast.HostDraining, Reason: "disk"},
		"retire":   {Host: oneHost, Duty: holdfast.HostRetired, Reason: "disk"},
	} {
		c := newHostCLI(t)
		got := c.run(t, "host", verb, oneHost, "--reason", "disk")
		calls := c.fake.Calls("SetHostDuty")
		if got.code != 0 || !strings.Contains(got.stdout, string(want.Duty)) || !strings.Contains(got.stdout, "disk") || len(calls) != 1 || calls[0].In != want {
			t.Errorf("%s: %d %q %q, asked %+v", verb, got.code, got.stdout, got.err, calls)
		}
		// What is left on a draining host is shown, all pages of it.
		if left := strings.Count(ids(got.stdout), "in-ID"); (left == 2) != (verb == "drain") {
			t.Errorf("%s shows %d instances", verb, left)
		}
	}
	c := newHostCLI(t)
	c.run(t, "host", "retire", oneHost, "--force")
	if in, ok := c.fake.Calls("SetHostDuty")[0].In.(holdfast.SetHostDuty); !ok || !in.Force {
		t.Errorf("--force said %+v", in)
	}
	got := c.run(t, "host", "instances", oneHost)
	got.want(t, 0, "ID OWNER STATE DESIRED INCARNATION SEEN\nin-ID sb-1 RUNNING - 1 -\nin-ID sb-1 RUNNING - 1 -\n", "")
}

func TestWhatIsWrongAboutAHostIsSaidInTwoLines(t *testing.T) {
	c := newHostCLI(t)
	const stranger = "ho-00000000000000000000000009"
	c.run(t, "host", "cordon", stranger).want(t, 3, "", "error: no host "+stranger+" (NOT_FOUND UNKNOWN)\nnext: list what there is: holdfast host list --all\n")
	if got := c.run(t, "host", "cordon", "h"); got.code != 2 || !strings.Contains(got.err, `id "h" is not an id`) {
		t.Errorf("%d %s", got.code, got.err)
	}
	c.fake.Before = func(_ context.Context, call clienttest.Call) error {
		if call.Method == "SetHostDuty" {
			return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "it answers").On(oneHost)
		}
		return nil
	}
	c.run(t, "host", "retire", oneHost).want(t, 1, "", "error: it answers (FAILED_PRECONDITION STATE)\n"+
		"next: look at it: holdfast host list --all, holdfast host instances "+oneHost+"\n")
}
