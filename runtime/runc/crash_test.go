package runc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// victim is what a process that is going to be killed is told to do.
type victim struct {
	Config Config
	Bundle runtime.Bundle
	Verbs  []string // "prepare", "start", "suspend", "resume", "checkpoint", "stop"
}

const (
	victimVariable = "HOLDFAST_RUNC_VICTIM"
	lingering      = "linger" // the process does nothing until its input ends
)

// beVictim is the main function of that process.
func beVictim(text string) error {
	if text == lingering {
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	}
	var v victim
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return err
	}
	d, err := New(v.Config)
	if err != nil {
		return err
	}
	ctx := context.Background()
	if _, _, err := d.Open(ctx); err != nil {
		return err
	}
	fmt.Println("open")
	for _, verb := range v.Verbs {
		switch verb {
		case "prepare":
			err = d.Prepare(ctx, v.Bundle)
		case "start":
			err = d.Start(ctx, v.Bundle.Ref)
		case "suspend":
			err = d.Suspend(ctx, v.Bundle.Ref)
		case "resume":
			err = d.Resume(ctx, v.Bundle.Ref)
		case "checkpoint":
			err = d.Checkpoint(ctx, v.Bundle.Ref, endless{})
		case "stop":
			err = d.Stop(ctx, v.Bundle.Ref)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", verb, err)
		}
	}
	return nil
}

// killAfter runs the verbs in a process of their own and kills it with SIGKILL
// that long after the driver opened, wherever it is then.
func killAfter(t *testing.T, v victim, after time.Duration) {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), victimVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 4)); err != nil {
		t.Fatalf("the process to be killed did not open its driver: %v", err)
	}
	if err := pause(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
}

// A SIGKILL at any moment leaves what a repeat, or a Stop, works on. It walks
// through a boot in steps of a few milliseconds.
func TestC6_AKillAtAnyMomentOfABootLeavesWhatARepeatConvergesOn(t *testing.T) {
	d := newTestDriver(t)
	_, shut := opened(t, d)
	shut()
	root, nothing := testRoot(t), census(t, d)
	config := d.config
	config.Logger = nil
	for after, ran := time.Duration(0), 0; ran < 3 && after < time.Second; after += 6*time.Millisecond + after/10 {
		b := testBundle(t, root, holdfast.EgressInternet)
		killAfter(t, victim{Config: config, Bundle: b, Verbs: []string{"prepare", "start"}}, after)

		again := reopen(t, d)
		_, shut := opened(t, again)
		seen, err := again.Inspect(t.Context(), b.Ref)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("killed after %v: %s %s", after, seen.Phase, seen.Detail)
		if seen.Phase == runtime.PhaseRunning {
			ran++
		}
		if seen.Phase == runtime.PhaseAbsent {
			if _, err := os.Stat(filepath.Join(b.Spool, "booted")); err == nil {
				t.Errorf("%v: it booted and is called ABSENT", after)
			}
		}
		// A repeat converges: a boot that runs is left alone, any other is finished.
		if err := errors.Join(again.Prepare(t.Context(), b), again.Start(t.Context(), b.Ref)); err != nil {
			t.Errorf("%v: the repeat: %v", after, err)
		}
		ask(t, again, b, "nonce")
		if err := again.Stop(t.Context(), b.Ref); err != nil {
			t.Errorf("%v: stop: %v", after, err)
		}
		if left := census(t, again); !slices.Equal(left, nothing) {
			t.Fatalf("%v: left %q", after, left)
		}
		shut()
	}
}

func TestC6_AKillAtAnyMomentOfAStopLeavesWhatAStopFinishes(t *testing.T) {
	d := newTestDriver(t)
	_, shut := opened(t, d)
	shut()
	root, nothing := testRoot(t), census(t, d)
	config := d.config
	config.Logger = nil
	round := 0
	for after, gone := time.Duration(0), 0; gone < 3 && after < time.Second; after += 5*time.Millisecond + after/10 {
		b := testBundle(t, root, holdfast.EgressInternet)
		again := reopen(t, d)
		_, shut := opened(t, again)
		started(t, again, b)
		if round++; round%2 == 0 {
			if err := again.Suspend(t.Context(), b.Ref); err != nil {
				t.Fatal(err)
			}
		}
		shut()
		killAfter(t, victim{Config: config, Bundle: b, Verbs: []string{"stop"}}, after)

		last := reopen(t, d)
		_, shut = opened(t, last)
		seen, err := last.Inspect(t.Context(), b.Ref)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("killed after %v: %s %s", after, seen.Phase, seen.Detail)
		if seen.Phase == runtime.PhaseAbsent && seen.Detail == "" {
			gone++
		}
		if err := last.Start(t.Context(), b.Ref); err == nil && seen.Phase != runtime.PhaseRunning && seen.Phase != runtime.PhaseSuspended {
			t.Errorf("%v: %s was started again", after, seen.Phase)
		}
		if err := last.Stop(t.Context(), b.Ref); err != nil {
			t.Errorf("%v: stop: %v", after, err)
		}
		if left := census(t, last); !slices.Equal(left, nothing) {
			t.Fatalf("%v: left %q", after, left)
		}
		shut()
	}
}

// trap T49: a reboot wipes what the runtime knows, and boots nothing again.
func TestT49_AHostsRebootBootsNothingAgain(t *testing.T) {
	d := newTestDriver(t)
	_, shut := opened(t, d)
	root := testRoot(t)
	ran, ready := testBundle(t, root, holdfast.EgressNone), testBundle(t, root, holdfast.EgressNone)
	started(t, d, ran)
	if err := d.Prepare(t.Context(), ready); err != nil {
		t.Fatal(err)
	}
	shut()
	// What a reboot does: processes, links and groups are gone, /run is another's.
	for _, b := range []runtime.Bundle{ran, ready} {
		id := containerID(b.Ref)
		s, _, err := d.files(b.Ref).readSettings()
		if err := errors.Join(err, d.cgroups.kill(t.Context(), id), d.cgroups.remove(t.Context(), id), removeLink(d.network.link(s.Index))); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(d.network.remove(), os.WriteFile(filepath.Join(d.runDirectory(), "boot_id"), []byte("another"), 0o600)); err != nil {
		t.Fatal(err)
	}
	again := reopen(t, d)
	opened(t, again)
	for _, c := range []struct {
		bundle runtime.Bundle
		phase  runtime.Phase
	}{{ran, runtime.PhaseExited}, {ready, runtime.PhaseAbsent}} {
		if s, err := again.Inspect(t.Context(), c.bundle.Ref); err != nil || s.Phase != c.phase {
			t.Errorf("after the reboot: %v, %v, want %s", s, err, c.phase)
		}
		if err := again.Start(t.Context(), c.bundle.Ref); err == nil {
			t.Errorf("what was %s was started", c.phase)
		}
	}
	if err := again.Prepare(t.Context(), ran); holdfast.CodeOf(err) != holdfast.FailedPrecondition {
		t.Errorf("what ran is prepared again: %v", err)
	}
	// What never ran may: no guest code of it did.
	if err := errors.Join(again.Prepare(t.Context(), ready), again.Start(t.Context(), ready.Ref)); err != nil {
		t.Errorf("what never ran: %v", err)
	}
	ask(t, again, ready, "nonce")
}

// A create that outlives its driver ends before its remains are looked at: it
// would otherwise come back after them.
func TestOpenWaitsForWhatAKilledDriverLeftRunning(t *testing.T) {
	root := filepath.Join(t.TempDir(), "oci")
	for _, patience := range []time.Duration{time.Minute, 50 * time.Millisecond} {
		stray := exec.Command(os.Args[0], "--root", root, "create")
		stray.Env = append(os.Environ(), victimVariable+"="+lingering)
		input, err := stray.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := stray.Start(); err != nil {
			t.Fatal(err)
		}
		reaped := make(chan error, 1)
		go func() { reaped <- stray.Wait() }()
		c := command{binary: "runc", root: root, patience: patience}
		found, err := c.strays()
		if err != nil || !slices.Equal(found, []int{stray.Process.Pid}) {
			t.Fatalf("strays: %v, %v", found, err)
		}
		if patience == time.Minute {
			over, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if err := c.endStrays(over); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it did not wait: %v", err)
			}
			cancel()
			if err := input.Close(); err != nil { // it ends by itself
				t.Fatal(err)
			}
		}
		if err := c.endStrays(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-reaped; (err == nil) != (patience == time.Minute) {
			t.Errorf("with patience %v it ended with %v", patience, err)
		}
	}
}

// contract: C6: a start that is killed at any moment leaves the mark of this boot
// whole, by which the next start knows that what the OCI runtime has is alive:
// it is never written again, so there is no moment at which it is half-written.
func TestC6_AKilledStartNeverCostsTheRuntimeItsState(t *testing.T) {
	dir := t.TempDir()
	d, err := New(Config{Directory: filepath.Join(dir, "data"), RunDirectory: filepath.Join(dir, "run"), Guest: os.Args[0]})
	if err != nil {
		t.Fatal(err)
	}
	mark, container := filepath.Join(d.runDirectory(), "boot_id"), filepath.Join(d.oci.root, "in-1.1")
	ready := func() os.FileInfo {
		t.Helper()
		if err := d.readyRunDirectory(t.Context()); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(mark)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := ready()
	if err := os.Mkdir(container, 0o700); err != nil {
		t.Fatal(err)
	}
	if again := ready(); !os.SameFile(first, again) || !again.ModTime().Equal(first.ModTime()) {
		t.Error("the mark was written again")
	}
	if _, err := os.Stat(container); err != nil {
		t.Errorf("what the runtime has was wiped: %v", err)
	}
	if err := os.WriteFile(mark, []byte("another boot"), 0o600); err != nil {
		t.Fatal(err)
	}
	ready()
	if _, err := os.Stat(container); err == nil {
		t.Error("what another boot left is there")
	}
}
