package runc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// endless is a writer that never takes anything: a checkpoint into it lasts until
// its process is killed.
type endless struct{}

func (endless) Write([]byte) (int, error) { select {} }

// contract: C6. Whoever takes a checkpoint may die at any moment: what ran runs on,
// and can be suspended, resumed and copied again.
func TestC6_AKillAtAnyMomentOfACheckpointLeavesNothingStandingStill(t *testing.T) {
	d := newTestDriver(t)
	_, shut := opened(t, d)
	b := testBundle(t, testRoot(t), holdfast.EgressNone)
	started(t, d, b)
	nonce := ask(t, d, b, "nonce")
	shut()
	config := d.config
	config.Logger = nil
	marked := 0
	for after := time.Duration(0); after < 250*time.Millisecond; after += 10*time.Millisecond + after/5 {
		killAfter(t, victim{Config: config, Bundle: b, Verbs: []string{"checkpoint"}}, after)
		if copying, err := exists(d.files(b.Ref).copying()); err != nil {
			t.Fatal(err)
		} else if copying {
			marked++
		}
		again := reopen(t, d)
		_, shut := opened(t, again)
		seen, err := again.Inspect(t.Context(), b.Ref)
		if err != nil || seen.Phase != runtime.PhaseRunning || seen.Detail != "" {
			t.Fatalf("killed after %v: %+v, %v", after, seen, err)
		}
		if got := ask(t, again, b, "nonce"); got != nonce {
			t.Fatalf("killed after %v: %q answers", after, got)
		}
		shut()
	}
	if marked == 0 {
		t.Error("no kill came while it stood still")
	}
}

// What an earlier copy could not let run on, whatever comes next does.
func TestWhatStandsStillIsLetGoByTheNextCall(t *testing.T) {
	d := newTestDriver(t)
	opened(t, d)
	b := testBundle(t, testRoot(t), holdfast.EgressNone)
	started(t, d, b)
	for name, next := range map[string]func() error{
		"resume":     func() error { return d.Resume(t.Context(), b.Ref) },
		"suspend":    func() error { return errors.Join(d.Suspend(t.Context(), b.Ref), d.Resume(t.Context(), b.Ref)) },
		"checkpoint": func() error { return d.Checkpoint(t.Context(), b.Ref, &counted{}) },
	} {
		if err := mark(d.files(b.Ref).copying()); err != nil {
			t.Fatal(err)
		}
		if _, err := d.oci.run(t.Context(), "pause", containerID(b.Ref)); err != nil {
			t.Fatal(err)
		}
		if err := next(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		ask(t, d, b, "nonce")
		if left, err := exists(d.files(b.Ref).copying()); err != nil || left {
			t.Errorf("%s: the mark is left, %v", name, err)
		}
	}
	// Suspended for good, it is not for a copy: nothing wakes it.
	if err := d.Suspend(t.Context(), b.Ref); err != nil {
		t.Fatal(err)
	}
	if err := d.endCopies(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seen, err := d.Inspect(t.Context(), b.Ref); err != nil || seen.Phase != runtime.PhaseSuspended {
		t.Errorf("%+v, %v", seen, err)
	}
}

// What no layer can say is a refusal: to try again would meet it again.
func TestWhatCannotBeInALayerIsRefused(t *testing.T) {
	d := newTestDriver(t)
	opened(t, d)
	b := testBundle(t, testRoot(t), holdfast.EgressNone)
	started(t, d, b)
	ask(t, d, b, "write home/.wh.odd content")
	if err := d.Checkpoint(t.Context(), b.Ref, &counted{}); holdfast.ReasonOf(err) != holdfast.ReasonCheckpointFailed || holdfast.Transient(err) {
		t.Errorf("got %v", err)
	}
	ask(t, d, b, "remove home/.wh.odd")
	if err := d.Checkpoint(t.Context(), b.Ref, &counted{}); err != nil {
		t.Errorf("without it: %v", err)
	}
}

type counted struct{ bytes int }

func (c *counted) Write(p []byte) (int, error) { c.bytes += len(p); return len(p), nil }

func TestAsManyLayersAsThereMayBe(t *testing.T) {
	d := newTestDriver(t)
	opened(t, d)
	b := testBundle(t, testRoot(t), holdfast.EgressNone)
	for i := range holdfast.MaxLayers {
		// Long names, and such as mean something among a mount's options.
		dir := filepath.Join(t.TempDir(), fmt.Sprintf("a layer, called %d:%0100d", i, i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"of-" + strconv.Itoa(i): "here", "top": "layer " + strconv.Itoa(i)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		b.Layers = append(b.Layers, dir)
	}
	started(t, d, b)
	for request, want := range map[string]string{
		"read of-0": "content here", "read of-63": "content here", "read top": "content layer 63",
	} {
		if got := ask(t, d, b, request); got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
}

func TestAMissingLayerIsARefusal(t *testing.T) {
	d := newTestDriver(t)
	opened(t, d)
	b := testBundle(t, testRoot(t), holdfast.EgressNone)
	b.Layers = []string{filepath.Join(t.TempDir(), "gone")}
	if err := d.Prepare(t.Context(), b); holdfast.ReasonOf(err) != holdfast.ReasonPrepareFailed {
		t.Errorf("got %v", err)
	}
}
