package runc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"golang.org/x/sys/unix"
)

// A driver that was killed between the guest's first instruction and the removal
// of the pipe at which it had waited leaves what the OCI runtime takes for "created".
// contract: C6
func TestC6_AStartThatWasCutAfterTheGuestWentIsFinishedByItsRepeat(t *testing.T) {
	d := newTestDriver(t)
	opened(t, d)
	b := testBundle(t, testRoot(t), holdfast.EgressNone)
	started(t, d, b)
	pipe := filepath.Join(d.oci.root, containerID(b.Ref), "exec.fifo")
	if err := unix.Mkfifo(pipe, 0o622); err != nil {
		t.Fatal(err)
	}
	if s, err := d.Inspect(t.Context(), b.Ref); err != nil || s.Phase != runtime.PhasePrepared {
		t.Errorf("with the pipe there it is %v, %v", s.Phase, err)
	}
	if err := d.Start(t.Context(), b.Ref); err != nil {
		t.Fatalf("the repeat: %v", err)
	}
	if s, err := d.Inspect(t.Context(), b.Ref); err != nil || s.Phase != runtime.PhaseRunning {
		t.Errorf("then it is %v, %v", s.Phase, err)
	}
	ask(t, d, b, "nonce")
}

// What a create costs is mostly processes: one of the OCI runtime's is enough.
func TestACreateRunsTheOCIRuntimeOnce(t *testing.T) {
	d := newTestDriver(t)
	log := filepath.Join(t.TempDir(), "log")
	wrapper := filepath.Join(t.TempDir(), "runtime")
	script := "#!/bin/sh\necho \"$@\" >>" + log + "\nexec runc \"$@\"\n"
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	d.config.Binary = wrapper
	opened(t, d)
	if err := os.WriteFile(log, nil, 0o600); err != nil { // what a start of the driver asks is not a create's
		t.Fatal(err)
	}
	b := testBundle(t, testRoot(t), holdfast.EgressNone)
	started(t, d, b)
	s, err := d.Inspect(t.Context(), b.Ref)
	if err != nil || s.Phase != runtime.PhaseRunning || s.Address == "" {
		t.Errorf("seen as %+v, %v", s, err)
	}
	ran, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(ran), "\n"); n != 1 || !strings.Contains(string(ran), " create ") {
		t.Errorf("the OCI runtime ran %d times:\n%s", n, ran)
	}
	if err := d.Suspend(t.Context(), b.Ref); err != nil {
		t.Fatal(err)
	}
	if s, err := d.Inspect(t.Context(), b.Ref); err != nil || s.Phase != runtime.PhaseSuspended {
		t.Errorf("frozen, it is seen as %+v, %v", s, err)
	}
}
