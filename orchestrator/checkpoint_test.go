package orchestrator

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

func (h *harness) take(requestID string, source holdfast.SandboxID) (holdfast.Checkpoint, error) {
	return h.CreateCheckpoint(h.t.Context(), alice, holdfast.CreateCheckpoint{RequestID: requestID, Source: string(source)})
}

func (h *harness) mustTake(requestID string, source holdfast.SandboxID) holdfast.Checkpoint {
	h.t.Helper()
	c, err := h.take(requestID, source)
	if err != nil || c.State != holdfast.CheckpointReady {
		h.t.Fatalf("checkpoint %s: %+v, %v", requestID, c, err)
	}
	return c
}

func (h *harness) checkpointIs(id holdfast.CheckpointID, want holdfast.CheckpointState) holdfast.Checkpoint {
	h.t.Helper()
	c, err := h.GetCheckpoint(h.t.Context(), alice, id)
	if err != nil || c.State != want {
		h.t.Fatalf("%s is %s (%+v), %v; want %s", id, c.State, c.Failure, err, want)
	}
	return c
}

func (h *harness) deleteCheckpoint(id holdfast.CheckpointID) (holdfast.Checkpoint, error) {
	return h.DeleteCheckpoint(h.t.Context(), alice, holdfast.MutateCheckpoint{ID: id})
}

// blobs are the keys that the store has.
func (h *harness) blobs() []string {
	h.t.Helper()
	infos, _, err := h.fleet.blobs.List(h.t.Context(), "", "", 1000)
	if err != nil {
		h.t.Fatal(err)
	}
	var keys []string
	for _, info := range infos {
		keys = append(keys, info.Key)
	}
	return keys
}

// backoffOver makes what an attempt has released due at once.
func (h *harness) backoffOver() { h.exec(`UPDATE operation SET due_at = 1 WHERE state = 'PENDING'`) }

func silentHost(context.Context, holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	return holdfast.CheckpointObservation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonHostUnreachable, "the host does not answer").Retry(time.Second)
}

// contract: A1, E4
func TestE4_ACheckpointIsRecordedBeforeItIsTakenAndNamesTheCopy(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("one")
	h.fleet.scriptCopies(func(_ context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
		during := h.checkpointIs(l.Checkpoint, holdfast.CheckpointCreating)
		if during.Operation == nil || during.Operation.Kind != holdfast.OperationCheckpoint || during.Operation.Claim == nil {
			t.Errorf("shown as %+v", during.Operation)
		}
		if is := h.get(sb.ID); is.State != holdfast.SandboxReady || is.Operation == nil || is.Operation.Kind != holdfast.OperationCheckpoint {
			t.Errorf("the sandbox is shown as %s, %+v", is.State, is.Operation)
		}
		if l.Instance != sb.Instance || l.Incarnation != 1 || l.Generation != sb.Generation+1 || l.Claim != 1 || l.MintedAt.IsZero() || l.Cluster != "cl" {
			t.Errorf("sent %+v", l)
		}
		return h.fleet.copy(l)
	})
	c, err := h.CreateCheckpoint(t.Context(), alice, holdfast.CreateCheckpoint{RequestID: "c", Source: string(sb.ID), Labels: map[string]string{"a": "b"}})
	if err != nil || c.State != holdfast.CheckpointReady || c.Operation != nil || c.Size == 0 || len(c.SHA256) != 64 || c.Creator != "alice" ||
		c.Sandbox != sb.ID || c.Environment != "base" || c.Labels["a"] != "b" || c.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", c, err)
	}
	if after := h.get(sb.ID); after.State != holdfast.SandboxReady || after.Operation != nil {
		t.Errorf("the sandbox is %s, %+v", after.State, after.Operation)
	}
	if n := h.count(`SELECT COUNT(*) FROM layer_use WHERE used_by = $1`, string(c.ID)); n != 1 {
		t.Errorf("it names %d layers", n)
	}
	page, err := h.ListCheckpoints(t.Context(), alice, holdfast.ListCheckpoints{Source: string(sb.ID), Labels: map[string]string{"a": "b"}, PageSize: 1})
	if err != nil || len(page.Checkpoints) != 1 || page.Checkpoints[0].ID != c.ID || page.NextPageToken != "" {
		t.Errorf("listed %+v, %v", page, err)
	}
	page, err = h.ListCheckpoints(t.Context(), alice, holdfast.ListCheckpoints{States: []holdfast.CheckpointState{holdfast.CheckpointFailed}})
	if err != nil || len(page.Checkpoints) != 0 {
		t.Errorf("listed %+v, %v", page, err)
	}
}

// contract: A3; traps T1–T4
func TestA3_ARepeatedCheckpointIsTheSameAndOtherInputIsNamed(t *testing.T) {
	h := newHarness(t)
	sb, other := h.mustCreate("one"), h.mustCreate("two")
	c := h.mustTake("c", sb.ID)
	if again := h.mustTake("c", sb.ID); again.ID != c.ID || len(h.fleet.copyLevels()) != 1 {
		t.Errorf("a repeat is %s, copied %d times", again.ID, len(h.fleet.copyLevels()))
	}
	_, err := h.take("c", other.ID)
	wantError(t, err, holdfast.AlreadyExists, holdfast.ReasonRequestReused)
	if fields := holdfast.AsError(err).Details["fields"]; fields != "source" {
		t.Errorf("different in %q", fields)
	}
	if second := h.mustTake("d", sb.ID); second.ID == c.ID {
		t.Error("another id is the same checkpoint")
	}
	if sandbox, err := h.create("c"); err != nil || sandbox.ID == "" { // of another method
		t.Errorf("%+v, %v", sandbox, err)
	}
	bob := holdfast.Caller{Project: "other"}
	for _, foreign := range []error{
		second(h.GetCheckpoint(t.Context(), bob, c.ID)), second(h.DeleteCheckpoint(t.Context(), bob, holdfast.MutateCheckpoint{ID: c.ID})),
		second(h.CreateCheckpoint(t.Context(), bob, holdfast.CreateCheckpoint{RequestID: "c", Source: string(sb.ID)})),
	} {
		wantError(t, foreign, holdfast.NotFound, holdfast.ReasonUnknown)
	}
	if n := h.count(`SELECT COUNT(*) FROM request WHERE project = 'other'`); n != 0 {
		t.Errorf("a refused create reserved its key (trap T7)")
	}
}

// contract: A2, A15; trap T1. The answer is lost after the copy: the repeat, or the
// sweep, finishes the same one, under a later claim.
func TestA15_ALostAnswerIsFinishedByARepeatOrTheSweep(t *testing.T) {
	for _, by := range []string{"repeat", "sweep"} {
		h := newHarness(t)
		sb := h.mustCreate("one")
		h.fleet.scriptCopies(func(ctx context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
			if _, err := h.fleet.copy(l); err != nil {
				return holdfast.CheckpointObservation{}, err
			}
			return silentHost(ctx, l)
		})
		_, err := h.take("c", sb.ID)
		wantError(t, err, holdfast.Unavailable, holdfast.ReasonHostUnreachable)
		id := holdfast.CheckpointID(holdfast.AsError(err).Details["checkpoint"])
		if c := h.checkpointIs(id, holdfast.CheckpointCreating); c.Operation == nil || c.Operation.WaitsFor != "host" {
			t.Errorf("shown as %+v", c.Operation)
		}
		h.fleet.scriptCopies(nil)
		if by == "sweep" {
			h.backoffOver()
			h.sweep(SweepOperations)
		} else {
			h.mustTake("c", sb.ID)
		}
		h.checkpointIs(id, holdfast.CheckpointReady)
		if keys := h.blobs(); len(keys) != 1 || !strings.HasSuffix(keys[0], "/1") {
			t.Errorf("%s: the store has %v, want the copy of claim 1", by, keys)
		}
		if n := h.count(`SELECT COUNT(*) FROM checkpoint WHERE claim = 1`); n != 1 {
			t.Errorf("%s: the row does not name the claim that began the copy", by)
		}
	}
}

// contract: A7 (lifecycle.md, column checkpoint); trap T36
func TestA7_ASuspendOrDeleteTakesACheckpointsPlace(t *testing.T) {
	for verb, call := range map[string]func(*harness, holdfast.SandboxID) error{
		"SUSPEND": func(h *harness, id holdfast.SandboxID) error {
			return second(h.SuspendSandbox(h.t.Context(), alice, holdfast.MutateSandbox{ID: id}))
		},
		"RESUME": func(h *harness, id holdfast.SandboxID) error {
			return second(h.ResumeSandbox(h.t.Context(), alice, holdfast.MutateSandbox{ID: id}))
		},
		"DELETE": func(h *harness, id holdfast.SandboxID) error {
			return second(h.DeleteSandbox(h.t.Context(), alice, holdfast.MutateSandbox{ID: id}))
		},
	} {
		h := newHarness(t)
		sb := h.mustCreate("one")
		h.fleet.scriptCopies(silentHost)
		_, err := h.take("c", sb.ID)
		wantError(t, err, holdfast.Unavailable, holdfast.ReasonHostUnreachable)
		sent := h.fleet.copyLevels()[0]
		_, err = h.take("another", sb.ID)
		wantError(t, err, holdfast.Aborted, holdfast.ReasonConflict)
		if err := call(h, sb.ID); err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
		c := h.checkpointIs(sent.Checkpoint, holdfast.CheckpointFailed)
		if c.Failure == nil || c.Failure.Reason != holdfast.ReasonSuperseded || !strings.Contains(c.Failure.Message, verb) {
			t.Errorf("%s: failed for %+v", verb, c.Failure)
		}
		if again, err := h.take("c", sb.ID); err != nil || again.State != holdfast.CheckpointFailed {
			t.Errorf("%s: a repeat gets %s, %v", verb, again.State, err)
		}
		h.fleet.scriptCopies(nil)
		h.sweep(SweepCheckpoints)
		if o := h.fleet.copies[sent.Checkpoint]; o.State != holdfast.CopyAbsent {
			t.Errorf("%s: the host was not told to end the copy: %+v", verb, o)
		}
		if o, err := h.fleet.copy(sent); err != nil || o.State != holdfast.CopyAbsent { // the level comes late
			t.Errorf("%s: a late level copies: %+v, %v", verb, o, err)
		}
	}
}

// contract: A6. A delete that meets a live attempt is wanted, and begins when that ends.
func TestA6_ADeleteThatMeetsALiveCheckpointIsBegunWhenItEnds(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("one")
	asked, goOn := make(chan struct{}, 100), make(chan struct{})
	h.fleet.scriptCopies(func(_ context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
		if l.Desired == holdfast.CheckpointPresent {
			asked <- struct{}{}
			<-goOn
			return holdfast.CheckpointObservation{Checkpoint: l.Checkpoint, State: holdfast.CopyCopying}, nil
		}
		return h.fleet.copy(l)
	})
	taken := make(chan error, 1)
	go func() { taken <- second(h.take("c", sb.ID)) }()
	<-asked
	_, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
	wantError(t, err, holdfast.Aborted, holdfast.ReasonClaimed)
	_, err = h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
	wantError(t, err, holdfast.Aborted, holdfast.ReasonClaimed)
	close(goOn)
	wantError(t, <-taken, holdfast.Aborted, holdfast.ReasonSuperseded)
	for { // it goes on in the background, and may be at it
		if _, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err == nil {
			break
		} else if holdfast.ReasonOf(err) != holdfast.ReasonClaimed {
			t.Fatal(err)
		}
	}
	c := h.checkpointIs(h.fleet.copyLevels()[0].Checkpoint, holdfast.CheckpointFailed)
	if c.Failure == nil || c.Failure.Reason != holdfast.ReasonSuperseded {
		t.Errorf("failed for %+v", c.Failure)
	}
}

// contract: C2. Whatever ends the instance ends its checkpoint, in the same transaction.
func TestC2_ACheckpointFailsWithItsInstance(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("one")
	h.fleet.scriptCopies(silentHost)
	_, err := h.take("c", sb.ID)
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonHostUnreachable)
	h.fleet.set(sb.Instance, holdfast.InstanceExited)
	h.sweep(SweepInstances)
	if is := h.get(sb.ID); is.State != holdfast.SandboxFailed {
		t.Fatalf("the sandbox is %s", is.State)
	}
	c := h.checkpointIs(h.fleet.copyLevels()[0].Checkpoint, holdfast.CheckpointFailed)
	if c.Failure == nil || c.Failure.Reason != holdfast.ReasonExited {
		t.Errorf("failed for %+v", c.Failure)
	}
}

// contract: A8, E4
func TestE4_WhatCannotBeCopiedIsRefusedWithItsReason(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("one")
	good := func(l holdfast.CheckpointLevel) holdfast.CheckpointObservation {
		o, err := h.fleet.copy(l)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for name, c := range map[string]struct {
		answer func(l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error)
		want   holdfast.Reason
	}{
		"failed at the host": {func(l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
			return holdfast.CheckpointObservation{State: holdfast.CopyFailed, Failure: &holdfast.Failure{Reason: holdfast.ReasonNoSpace, Message: "disk full"}}, nil
		}, holdfast.ReasonNoSpace},
		"not capable": {func(holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
			return holdfast.CheckpointObservation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNotCapable, "no")
		}, holdfast.ReasonNotCapable},
		"another boot": {func(holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
			return holdfast.CheckpointObservation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation, "no").With("seen", "2")
		}, holdfast.ReasonStaleIncarnation},
		"too old": {func(holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
			return holdfast.CheckpointObservation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonTooOld, "no")
		}, holdfast.ReasonTooOld},
		"its blob is elsewhere": {func(l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
			o := good(l)
			return o, h.fleet.blobs.Delete(t.Context(), o.Layers[0].Key)
		}, holdfast.ReasonBlobGone},
		"another's layer": {func(l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
			o := good(l)
			o.Layers[0].Key = "checkpoints/ck-00000000000000000000000000/1"
			return o, nil
		}, holdfast.ReasonCheckpointFailed},
		"no layer": {func(holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
			return holdfast.CheckpointObservation{State: holdfast.CopyPresent}, nil
		}, holdfast.ReasonCheckpointFailed},
	} {
		h.fleet.scriptCopies(func(_ context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
			if l.Desired == holdfast.CheckpointAbsent {
				return h.fleet.copy(l)
			}
			return c.answer(l)
		})
		_, err := h.take(strings.ReplaceAll(name, " ", "-"), sb.ID)
		wantError(t, err, holdfast.FailedPrecondition, c.want)
		failed := h.checkpointIs(holdfast.CheckpointID(holdfast.AsError(err).Details["checkpoint"]), holdfast.CheckpointFailed)
		if failed.Failure == nil || failed.Failure.Reason != c.want || failed.Failure.Message == "" {
			t.Errorf("%s: failed for %+v", name, failed.Failure)
		}
		if is := h.get(sb.ID); is.State != holdfast.SandboxReady || is.Operation != nil {
			t.Errorf("%s: the sandbox is %s, %+v", name, is.State, is.Operation)
		}
	}
	h.fleet.scriptCopies(nil)
	h.sweep(SweepCheckpoints)
	h.sweep(SweepBlobs)
	if keys := h.blobs(); len(keys) != 0 {
		t.Errorf("what failed copies left is still there: %v", keys)
	}
}

// contract: A8. Nothing of a refused create is recorded.
func TestE4_ACheckpointNeedsARestingSandbox(t *testing.T) {
	h := newHarness(t)
	_, err := h.take("c", "sb-00000000000000000000000000")
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	_, err = h.CreateCheckpoint(t.Context(), alice, holdfast.CreateCheckpoint{RequestID: "c", Source: "se-00000000000000000000000000"})
	if code := holdfast.CodeOf(err); code != holdfast.FailedPrecondition && code != holdfast.NotFound {
		t.Errorf("of an unknown session: %v", err)
	}
	sb := h.mustCreate("one")
	if _, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
		t.Fatal(err)
	}
	h.mustTake("suspended", sb.ID)
	if is := h.get(sb.ID); is.State != holdfast.SandboxSuspended {
		t.Errorf("it is %s", is.State)
	}
	if _, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
		t.Fatal(err)
	}
	_, err = h.take("c", sb.ID)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
	without := newHarnessOn(t, h.db, h.fleet, func(c *Config) { c.Blobs = nil })
	_, err = without.take("c", sb.ID)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonNotCapable)
	if n := h.count(`SELECT COUNT(*) FROM request WHERE method = 'CreateCheckpoint'`); n != 1 {
		t.Errorf("%d keys are reserved", n)
	}
}

// contract: A4, E4
func TestE4_ADeletedCheckpointIsGoneFromTheHostAndTheBlobStore(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("one")
	c := h.mustTake("c", sb.ID)
	// A copy of an attempt that lost.
	if _, err := h.fleet.blobs.Put(t.Context(), "checkpoints/"+string(c.ID)+"/7", strings.NewReader("late")); err != nil {
		t.Fatal(err)
	}
	h.fleet.scriptCopies(silentHost)
	_, err := h.deleteCheckpoint(c.ID)
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonHostUnreachable)
	if is := h.checkpointIs(c.ID, holdfast.CheckpointDeleting); is.Operation == nil || is.Operation.Kind != holdfast.OperationDelete || is.Operation.WaitsFor != "host" {
		t.Errorf("shown as %+v", is.Operation)
	}
	if len(h.blobs()) != 2 {
		t.Errorf("the host may copy on, and the store has %v", h.blobs())
	}
	h.fleet.scriptCopies(nil)
	h.backoffOver()
	h.sweep(SweepDeletions)
	is := h.checkpointIs(c.ID, holdfast.CheckpointDeleted)
	if is.DeletedAt.IsZero() || len(h.blobs()) != 0 || h.count(`SELECT COUNT(*) FROM layer_use`) != 0 {
		t.Errorf("deleted at %s, with %v", is.DeletedAt, h.blobs())
	}
	journal, err := h.ListOperations(t.Context(), alice, holdfast.ListOperations{Resource: string(c.ID)})
	if err != nil || len(journal.Operations) != 1 || journal.Operations[0].Kind != holdfast.OperationDelete || journal.Operations[0].State != holdfast.OperationDone {
		t.Errorf("its journal is %+v, %v", journal, err)
	}
	if op, err := h.GetOperation(t.Context(), alice, journal.Operations[0].ID); err != nil || op.Resource != string(c.ID) {
		t.Errorf("its delete is %+v, %v", op, err)
	}
	_, err = h.GetOperation(t.Context(), holdfast.Caller{Project: "other"}, journal.Operations[0].ID)
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	calls := len(h.fleet.copyLevels())
	if again, err := h.deleteCheckpoint(c.ID); err != nil || again.State != holdfast.CheckpointDeleted || len(h.fleet.copyLevels()) != calls {
		t.Errorf("again: %+v, %v", again, err)
	}
	if again, err := h.take("c", sb.ID); err != nil || again.State != holdfast.CheckpointDeleted || again.ID != c.ID {
		t.Errorf("a repeated create gets %+v, %v", again, err)
	}
	page, err := h.ListCheckpoints(t.Context(), alice, holdfast.ListCheckpoints{})
	if err != nil || len(page.Checkpoints) != 0 {
		t.Errorf("listed %+v, %v", page, err)
	}
}

// contract: A6, E4; trap T38. The checkpoint that is being taken is deleted: its copy
// finishes late, and nothing names it.
func TestT38_ACheckpointDeletedWhileItIsTakenLeavesNothing(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("one")
	copied, goOn := make(chan holdfast.CheckpointID, 1), make(chan struct{})
	h.fleet.scriptCopies(func(_ context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
		if l.Desired == holdfast.CheckpointAbsent {
			return h.fleet.copy(l)
		}
		o, err := h.fleet.copy(l)
		copied <- l.Checkpoint
		<-goOn
		return o, err
	})
	taken := make(chan error, 1)
	go func() { taken <- second(h.take("c", sb.ID)) }()
	id := <-copied
	if c, err := h.deleteCheckpoint(id); err != nil || c.State != holdfast.CheckpointDeleted {
		t.Fatalf("%+v, %v", c, err)
	}
	close(goOn)
	wantError(t, <-taken, holdfast.FailedPrecondition, holdfast.ReasonCancelled)
	h.checkpointIs(id, holdfast.CheckpointDeleted)
	if is := h.get(sb.ID); is.State != holdfast.SandboxReady || is.Operation != nil {
		t.Errorf("the sandbox is %s, %+v", is.State, is.Operation)
	}
	if _, err := h.fleet.blobs.Put(t.Context(), "checkpoints/"+string(id)+"/1", strings.NewReader("late")); err != nil {
		t.Fatal(err)
	}
	h.sweep(SweepBlobs)
	if len(h.blobs()) != 0 || h.count(`SELECT COUNT(*) FROM layer_use`) != 0 {
		t.Errorf("left: %v", h.blobs())
	}
}

// contract: C4; trap T52. What the database does not know is not removed: it may have
// forgotten it, or be another's.
func TestT52_BlobsOfUnknownCheckpointsAreKept(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("one")
	c := h.mustTake("c", sb.ID)
	unknown := "checkpoints/" + h.config.IDs.New(holdfast.PrefixCheckpoint) + "/1"
	foreign := "checkpoints/what-is-this"
	loser := "checkpoints/" + string(c.ID) + "/2"
	for _, key := range []string{unknown, foreign, loser} {
		if _, err := h.fleet.blobs.Put(t.Context(), key, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	h.sweep(SweepBlobs)
	if keys := strings.Join(h.blobs(), " "); len(h.blobs()) != 3 || strings.Contains(keys, loser) {
		t.Errorf("the store has %s", keys)
	}
}

// contract: C3. Of a restored database: CREATING for nobody.
func TestC1_ACheckpointWithoutAnOperationIsResolved(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("one")
	h.fleet.scriptCopies(silentHost)
	_, err := h.take("c", sb.ID)
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonHostUnreachable)
	id := h.fleet.copyLevels()[0].Checkpoint
	h.sweep(SweepCheckpoints)
	h.checkpointIs(id, holdfast.CheckpointCreating) // pending: not this sweep's
	h.exec(`DELETE FROM operation WHERE kind = 'CHECKPOINT'`)
	h.fleet.scriptCopies(nil)
	h.sweep(SweepCheckpoints)
	if c := h.checkpointIs(id, holdfast.CheckpointFailed); c.Failure.Reason != holdfast.ReasonCheckpointFailed {
		t.Errorf("failed for %+v", c.Failure)
	}
	if h.fleet.copies[id].State != holdfast.CopyAbsent {
		t.Error("its host was not told")
	}
}

// contract: A3, A4; trap T5
func TestA3_ATombstoneIsPurgedAndItsRequestIDStays(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("one")
	c := h.mustTake("c", sb.ID)
	if _, err := h.deleteCheckpoint(c.ID); err != nil {
		t.Fatal(err)
	}
	h.sweep(SweepCheckpointPurge)
	h.checkpointIs(c.ID, holdfast.CheckpointDeleted)
	h.exec(`UPDATE checkpoint SET deleted_at = $1`, store.Micros(time.Now().Add(-holdfast.TombstoneKept-time.Minute)))
	h.sweep(SweepCheckpointPurge)
	_, err := h.GetCheckpoint(t.Context(), alice, c.ID)
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	_, err = h.deleteCheckpoint(c.ID)
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	if n := h.count(`SELECT COUNT(*) FROM operation WHERE resource_kind = 'checkpoint'`); n != 0 {
		t.Errorf("%d operations are left", n)
	}
	again, err := h.take("c", sb.ID)
	if err != nil || again.ID != c.ID || again.State != holdfast.CheckpointDeleted {
		t.Errorf("a repeated create gets %+v, %v", again, err)
	}
}

// contract: A8. The blob store is away: the delete stays pending and says why.
func TestA15_ADeleteOutlastsItsBlobStore(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("one")
	c := h.mustTake("c", sb.ID)
	without := newHarnessOn(t, h.db, h.fleet, func(c *Config) { c.Blobs = nil })
	_, err := without.deleteCheckpoint(c.ID)
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonStorage)
	is := h.checkpointIs(c.ID, holdfast.CheckpointDeleting)
	if is.Operation == nil || is.Operation.LastError == nil || is.Operation.LastError.Reason != holdfast.ReasonStorage {
		t.Errorf("shown as %+v", is.Operation)
	}
	if c, err := h.deleteCheckpoint(c.ID); err != nil || c.State != holdfast.CheckpointDeleted {
		t.Errorf("%+v, %v", c, err)
	}
}
