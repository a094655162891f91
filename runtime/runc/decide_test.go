package runc

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

func TestChooseSubnet(t *testing.T) {
	free, err := chooseSubnet("a", nil)
	if err != nil || free.Bits() != subnetBits || !netip.MustParsePrefix("10.64.0.0/10").Overlaps(free) {
		t.Fatal(free, err)
	}
	everything := netip.MustParsePrefix("0.0.0.0/0")
	if again, err := chooseSubnet("a", []netip.Prefix{everything}); err != nil || again != free {
		t.Errorf("the default route took a subnet: %v, %v", again, err)
	}
	if other, err := chooseSubnet("a", []netip.Prefix{netip.PrefixFrom(free.Addr(), 24)}); err != nil || other.Overlaps(free) {
		t.Errorf("a taken subnet was chosen: %v, %v", other, err)
	}
	if none, err := chooseSubnet("a", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}); err == nil {
		t.Errorf("%v is not free", none)
	}
}

func TestPhaseIsWhatCanBeSeen(t *testing.T) {
	for name, c := range map[string]struct {
		sight sight
		want  runtime.Phase
		words bool
	}{
		"nothing":                     {sight{}, runtime.PhaseAbsent, false},
		"half a set-up":               {sight{directory: true}, runtime.PhaseAbsent, true},
		"made, its mark missing":      {sight{directory: true, runtime: "created"}, runtime.PhaseAbsent, true},
		"prepared":                    {sight{directory: true, runtime: "created", prepared: true}, runtime.PhasePrepared, false},
		"cut off before the start":    {sight{directory: true, runtime: "created", prepared: true, started: true}, runtime.PhasePrepared, false},
		"running":                     {sight{directory: true, runtime: "running", prepared: true, started: true}, runtime.PhaseRunning, false},
		"frozen":                      {sight{directory: true, runtime: "paused", prepared: true, started: true}, runtime.PhaseSuspended, false},
		"ended":                       {sight{directory: true, runtime: "stopped", prepared: true, started: true}, runtime.PhaseExited, false},
		"forgotten by the runtime":    {sight{directory: true, prepared: true, started: true, groups: true, processes: 2}, runtime.PhaseRunning, true},
		"gone with the host's boot":   {sight{directory: true, prepared: true, started: true}, runtime.PhaseExited, false},
		"never ran, boot of the host": {sight{directory: true, prepared: true}, runtime.PhaseAbsent, true},
		"a control group alone":       {sight{groups: true}, runtime.PhaseAbsent, true},
	} {
		phase, words := c.sight.phase()
		if phase != c.want || (words != "") != c.words {
			t.Errorf("%s: %s, %q, want %s", name, phase, words, c.want)
		}
	}
}

func TestContainerIDs(t *testing.T) {
	ref := holdfast.InstanceRef{Instance: holdfast.InstanceID(holdfast.IDs{}.New(holdfast.PrefixInstance)), Incarnation: 12}
	if got, ok := parseContainerID(containerID(ref)); !ok || got != ref {
		t.Errorf("%v, %v", got, ok)
	}
	for _, id := range []string{"", "x", string(ref.Instance), string(ref.Instance) + ".0", string(ref.Instance) + ".01", "../" + string(ref.Instance) + ".1",
		string(ref.Instance) + ".1/..", "lock"} {
		if got, ok := parseContainerID(id); ok {
			t.Errorf("%q is taken for %v", id, got)
		}
	}
}

func TestLastMessage(t *testing.T) {
	for said, want := range map[string]string{
		"":         "",
		"a\n b \n": "b",
		`{"level":"info","msg":"x"}` + "\n" + `{"level":"error","msg":"why"}` + "\n" + `{"level":"debug","msg":"y"}`: "why",
	} {
		if got := lastMessage(said); got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
}

func TestNameservers(t *testing.T) {
	got := parseNameservers("# x\nnameserver 127.0.0.53\nnameserver 9.9.9.9\nsearch a\nnameserver ::1\nnameserver\n")
	if len(got) != 1 || got[0] != netip.MustParseAddr("9.9.9.9") {
		t.Errorf("%v", got)
	}
}

// contract: C2. What cannot be set up is refused with its reason, and leaves
// nothing; what passes is tried again.
func TestC2_WhatCannotBeSetUpIsRefusedWithItsReason(t *testing.T) {
	d := newTestDriver(t)
	opened(t, d)
	root := testRoot(t)
	broken := t.TempDir() // /proc is a file in it
	if err := os.WriteFile(filepath.Join(broken, "proc"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before := census(t, d)
	guest := d.config.Guest
	for name, c := range map[string]struct {
		spoil func(b *runtime.Bundle)
		says  string
	}{
		"no guest agent":       {func(*runtime.Bundle) { d.config.Guest += "-missing" }, "missing"},
		"no base":              {func(b *runtime.Bundle) { b.RootFS += "-missing" }, "root file system"},
		"a broken base":        {func(b *runtime.Bundle) { b.RootFS = broken }, "proc"},
		"no spool":             {func(b *runtime.Bundle) { b.Spool += "-missing" }, "spool"},
		"an unprintable limit": {func(b *runtime.Bundle) { b.Spec.Resources.MemoryBytes = 4096 }, ""},
	} {
		b := testBundle(t, root, holdfast.EgressNone)
		c.spoil(&b)
		err := d.Prepare(t.Context(), b)
		d.config.Guest = guest
		var refusal *holdfast.Error
		if !errors.As(err, &refusal) || holdfast.Transient(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if after := census(t, d); strings.Join(before, "\n") != strings.Join(after, "\n") {
			t.Errorf("%s: left %q", name, after)
		}
	}
	err := refusal(holdfast.InstanceRef{}, &failure{verb: "create", message: "write: no space left on device", answered: true})
	if !holdfast.Transient(err) {
		t.Errorf("a shortage is final: %v", err)
	}
	if err := refusal(holdfast.InstanceRef{}, &failure{verb: "create", message: "killed"}); !holdfast.Transient(err) {
		t.Errorf("a killed runtime's word is final: %v", err)
	}
}

func TestOpenRefusesWhatCannotWork(t *testing.T) {
	d := newTestDriver(t)
	opened(t, d)
	if _, _, err := reopen(t, d).Open(t.Context()); holdfast.CodeOf(err) != holdfast.FailedPrecondition {
		t.Errorf("two drivers on one directory: %v", err)
	}
	other := newTestDriver(t)
	other.config.Binary = "no-such-runtime"
	if _, _, err := other.Open(t.Context()); holdfast.CodeOf(err) != holdfast.FailedPrecondition || !strings.Contains(err.Error(), "no-such-runtime") {
		t.Errorf("no OCI runtime: %v", err)
	}
}

func TestAConsoleIsBoundedAndKeepsItsOffsets(t *testing.T) {
	spool := t.TempDir()
	path := filepath.Join(spool, consoleName)
	if err := boundConsole(spool, 1<<20); err != nil {
		t.Fatalf("no console: %v", err)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("0123456789abcde\n", 1<<18)), 0o600); err != nil { // 4 MiB
		t.Fatal(err)
	}
	if err := boundConsole(spool, 1<<20); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || len(data) != 4<<20 || !strings.HasPrefix(string(data[3<<20:]), "0123") || data[(3<<20)-4096] != 0 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "du", "-k", path).Output()
	if err != nil || strings.HasPrefix(string(out), "4") {
		t.Errorf("it takes %s, %v", out, err)
	}
}
