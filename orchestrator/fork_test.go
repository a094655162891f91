package orchestrator

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/prove"
	"github.com/holdfast-dev/holdfast/store"
)

func (h *harness) fork(requestID string, from holdfast.CheckpointID, change ...func(*holdfast.CreateSandbox)) (holdfast.Sandbox, error) {
	in := holdfast.CreateSandbox{RequestID: requestID, Source: from}
	for _, c := range change {
		c(&in)
	}
	return h.CreateSandbox(h.t.Context(), alice, in)
}

func (h *harness) mustFork(requestID string, from holdfast.CheckpointID) holdfast.Sandbox {
	h.t.Helper()
	sb, err := h.fork(requestID, from)
	if err != nil || sb.State != holdfast.SandboxReady {
		h.t.Fatalf("fork %s: %+v, %v", requestID, sb, err)
	}
	return sb
}

func (h *harness) delete(id holdfast.SandboxID) {
	h.t.Helper()
	if sb, err := h.DeleteSandbox(h.t.Context(), alice, holdfast.MutateSandbox{ID: id}); err != nil || sb.State != holdfast.SandboxDeleted {
		h.t.Fatalf("delete %s: %+v, %v", id, sb, err)
	}
}

// keysOf are the blobs that a sandbox's boot was told to be made of.
func (h *harness) keysOf(sb holdfast.Sandbox) []string {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	var keys []string
	for _, l := range h.fleet.madeOf[sb.Instance] {
		keys = append(keys, l.Key)
	}
	return keys
}

// contract: E4; trap T50. A fork has the layers and the settings of its source, and
// nothing else of it: no id, no secret, no request id, no process, no event.
func TestT50_AForkIsAnotherSandboxWithTheDiskOfItsSource(t *testing.T) {
	h := newHarness(t)
	source, err := h.CreateSandbox(t.Context(), alice, holdfast.CreateSandbox{RequestID: "one", Environment: "base", Name: "source",
		Env: map[string]string{"A": "1"}, Egress: holdfast.EgressNone, Resources: holdfast.Resources{CPUMillis: 300, PIDs: 77}, Labels: map[string]string{"l": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.use(source, "p1"); err != nil {
		t.Fatal(err)
	}
	c := h.mustTake("c", source.ID)
	fork := h.mustFork("f", c.ID)
	if fork.ID == source.ID || fork.Instance == source.Instance || fork.Incarnation != 1 || fork.Generation != 1 || fork.Source != c.ID ||
		fork.Name != "" || len(fork.Labels) != 0 || !fork.CreatedAt.After(source.CreatedAt) {
		t.Errorf("identity: %+v", fork)
	}
	if fork.Environment != "base" || fork.Env["A"] != "1" || fork.Egress != holdfast.EgressNone || fork.Resources != source.Resources {
		t.Errorf("settings: %+v", fork)
	}
	if keys := h.keysOf(fork); !slices.Equal(keys, []string{"checkpoints/" + string(c.ID) + "/1"}) {
		t.Errorf("made of %v", keys)
	}
	for _, l := range h.fleet.levels() {
		if l.Instance == fork.Instance && (l.Spec.Owner != string(fork.ID) || l.MintedAt.Before(c.CreatedAt)) {
			t.Errorf("its instance belongs to %s, minted %s", l.Spec.Owner, l.MintedAt)
		}
	}
	own := h.rowsOf(fork)
	if own["process_request"] != 0 || own["delivery"] != 0 || own["operation"] != 1 || own["sandbox_label"] != 0 {
		t.Errorf("it has rows of its source: %v", own)
	}
	if err := h.use(fork, "p1"); err != nil {
		t.Errorf("a request id of the source's is taken in the fork: %v", err)
	}
	// Its guest is another source of deliveries, with a secret of its own.
	if status := h.guestSays("ev-1", holdfast.DeliveryReady, source.Instance, 1); status != 204 {
		t.Fatal(status)
	}
	if status := h.guestSays("ev-1", holdfast.DeliveryReady, fork.Instance, 1); status != 204 || h.rowsOf(fork)["delivery"] != 1 {
		t.Errorf("the fork's event under an id of the source's: %d", status)
	}
	given, err := h.fork("g", c.ID, func(in *holdfast.CreateSandbox) {
		in.Environment, in.Env, in.Egress = "base", map[string]string{"B": "2"}, holdfast.EgressInternet
		in.Resources = holdfast.Resources{CPUMillis: 500}
	})
	if err != nil || !reflect.DeepEqual(given.Env, map[string]string{"A": "1", "B": "2"}) || given.Egress != holdfast.EgressInternet ||
		given.Resources != (holdfast.Resources{CPUMillis: 500, MemoryBytes: holdfast.DefaultMemoryBytes, PIDs: 77}) {
		t.Errorf("what is given is not taken: %+v, %v", given, err)
	}
}

// contract: A3. The reference to the checkpoint is part of the input; a repeat is the
// fork, whatever became of the checkpoint.
func TestA3_ARepeatedForkIsTheSameFork(t *testing.T) {
	h := newHarness(t)
	source := h.mustCreate("one")
	c, d := h.mustTake("c", source.ID), h.mustTake("d", source.ID)
	fork := h.mustFork("f", c.ID)
	_, err := h.fork("f", d.ID)
	wantError(t, err, holdfast.AlreadyExists, holdfast.ReasonRequestReused)
	if fields := holdfast.AsError(err).Details["fields"]; fields != "source.checkpoint" {
		t.Errorf("different in %q", fields)
	}
	if _, err := h.deleteCheckpoint(c.ID); err != nil {
		t.Fatal(err)
	}
	if again := h.mustFork("f", c.ID); again.ID != fork.ID {
		t.Errorf("a repeat is %s, not %s", again.ID, fork.ID)
	}
	_, err = h.fork("new", c.ID)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
	for name, in := range map[string]holdfast.CreateSandbox{
		"another environment": {RequestID: "x", Source: d.ID, Environment: "debian"},
		"no checkpoint":       {RequestID: "x", Source: "sb-00000000000000000000000000"},
	} {
		_, err := h.CreateSandbox(t.Context(), alice, in)
		if holdfast.CodeOf(err) != holdfast.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = h.fork("x", "ck-00000000000000000000000000")
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	if n := h.count(`SELECT COUNT(*) FROM request WHERE request_id = 'x' OR request_id = 'new'`); n != 0 {
		t.Errorf("refused forks reserved %d keys (trap T7)", n)
	}
}

// contract: E4. The blobs of a deleted checkpoint stay while a fork, a fork of that, or
// a later checkpoint is made of them.
func TestE4_SharedLayersStayUntilNothingIsMadeOfThem(t *testing.T) {
	h := newHarness(t)
	source := h.mustCreate("one")
	c := h.mustTake("c", source.ID)
	first := h.mustFork("f", c.ID)
	d := h.mustTake("d", first.ID)
	forkOfFork := h.mustFork("ff", d.ID)
	below, above := "checkpoints/"+string(c.ID)+"/1", "checkpoints/"+string(d.ID)+"/1"
	if keys := h.keysOf(forkOfFork); !slices.Equal(keys, []string{below, above}) {
		t.Errorf("a fork of a fork is made of %v", keys)
	}
	stays := func(when string, want ...string) {
		t.Helper()
		h.sweep(SweepBlobs)
		if keys := h.blobs(); !slices.Equal(keys, want) {
			t.Fatalf("%s: the store has %v, want %v", when, keys, want)
		}
	}
	if _, err := h.deleteCheckpoint(c.ID); err != nil {
		t.Fatal(err)
	}
	stays("its checkpoint is deleted", below, above)
	h.delete(first.ID)
	stays("the fork is deleted", below, above)
	h.delete(forkOfFork.ID)
	stays("the fork's fork is deleted", below, above)
	if _, err := h.deleteCheckpoint(d.ID); err != nil {
		t.Fatal(err)
	}
	stays("the last checkpoint is deleted")
	if n := h.count(`SELECT COUNT(*) FROM layer_use`); n != 0 {
		t.Errorf("%d uses are left", n)
	}
}

// contract: E4; trap T53. Many forks and a delete of one checkpoint at once: a fork is
// refused, or its layers stay.
func TestT53_AForkAndADeleteOfItsCheckpointRace(t *testing.T) {
	h := newHarness(t)
	source := h.mustCreate("one")
	for round := range prove.Slice(20, 6) {
		c := h.mustTake(fmt.Sprint("c", round), source.ID)
		var group sync.WaitGroup
		start := make(chan struct{})
		forks := make([]holdfast.Sandbox, 4)
		for i := range forks {
			group.Go(func() {
				<-start
				sb, err := h.fork(fmt.Sprintf("f%d-%d", round, i), c.ID)
				if err != nil && holdfast.ReasonOf(err) != holdfast.ReasonState {
					t.Errorf("a fork: %v", err)
				}
				forks[i] = sb
			})
		}
		group.Go(func() {
			<-start
			if _, err := h.deleteCheckpoint(c.ID); err != nil {
				t.Errorf("the delete: %v", err)
			}
		})
		close(start)
		group.Wait()
		h.sweep(SweepBlobs)
		living := 0
		for _, sb := range forks {
			if sb.ID == "" {
				continue
			}
			living++
			for _, key := range h.keysOf(sb) {
				if _, err := h.fleet.blobs.Stat(t.Context(), key); err != nil {
					t.Fatalf("%s was forked, and %s is gone: %v", sb.ID, key, err)
				}
			}
			h.delete(sb.ID)
		}
		h.sweep(SweepBlobs)
		if keys := h.blobs(); len(keys) != 0 {
			t.Fatalf("of %d forks nothing is left but %v", living, keys)
		}
	}
}

// trap T53, step by step: the delete waits for the fork that has looked at the
// checkpoint and has not committed.
func TestT53_ADeleteWaitsForAForkThatIsBeingRecorded(t *testing.T) {
	h := newHarness(t)
	if !h.locksRows() {
		t.Skip("SQLite has one writer at a time")
	}
	source := h.mustCreate("one")
	c := h.mustTake("c", source.ID)
	looked, goOn, forked := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	var layers []holdfast.Layer
	go func() {
		forked <- h.db.Update(context.Background(), func(tx store.Tx) error {
			r := row{Sandbox: holdfast.Sandbox{ID: "sb-fork", Project: alice.Project}}
			err := fork(context.Background(), tx, holdfast.CreateSandbox{Source: c.ID}, &r)
			layers = r.Spec.Layers
			close(looked)
			<-goOn
			return err
		})
	}()
	<-looked
	deleted := make(chan error, 1)
	go func() { deleted <- second(h.deleteCheckpoint(c.ID)) }()
	for h.count(`SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%checkpoint%'`) == 0 {
		select {
		case err := <-deleted:
			t.Fatalf("the delete did not wait: %v", err)
		default:
		}
	}
	release()
	if err := <-forked; err != nil {
		t.Fatal(err)
	}
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
	if len(layers) != 1 || !slices.Equal(h.blobs(), []string{layers[0].Key}) {
		t.Errorf("forked of %v, and the store has %v", layers, h.blobs())
	}
}

// contract: A11, C5. FROM_CHECKPOINT goes back to the newest checkpoint of it.
func TestRestartFromCheckpointGoesBackToTheNewestOne(t *testing.T) {
	h := newHarness(t)
	sb, err := h.CreateSandbox(t.Context(), alice, holdfast.CreateSandbox{RequestID: "one", Environment: "base", Restart: holdfast.RestartFromCheckpoint})
	if err != nil {
		t.Fatal(err)
	}
	lose := func(want ...string) {
		t.Helper()
		was := h.get(sb.ID)
		h.fleet.set(sb.Instance, holdfast.InstanceExited)
		h.sweep(SweepInstances)
		is := h.get(sb.ID)
		for until := time.Now().Add(10 * time.Second); is.State != holdfast.SandboxReady && time.Now().Before(until); is = h.get(sb.ID) {
			h.backoffOver()
			h.sweep(SweepOperations)
		}
		if is.State != holdfast.SandboxReady || is.Incarnation != was.Incarnation+1 {
			t.Fatalf("it is %s, incarnation %d: %+v", is.State, is.Incarnation, is.Failure)
		}
		if keys := h.keysOf(sb); !slices.Equal(keys, want) {
			t.Errorf("incarnation %d is made of %v, want %v", is.Incarnation, keys, want)
		}
	}
	lose()
	old, c := h.mustTake("old", sb.ID), h.mustTake("c", sb.ID)
	key := "checkpoints/" + string(c.ID) + "/1"
	lose(key)
	for _, id := range []holdfast.CheckpointID{old.ID, c.ID} {
		if _, err := h.deleteCheckpoint(id); err != nil {
			t.Fatal(err)
		}
	}
	h.sweep(SweepBlobs)
	if keys := h.blobs(); !slices.Equal(keys, []string{key}) {
		t.Errorf("it is made of %s, and the store has %v", key, keys)
	}
	lose(key) // what it last went back to
	h.delete(sb.ID)
	h.sweep(SweepBlobs)
	if keys := strings.Join(h.blobs(), " "); keys != "" {
		t.Errorf("left: %s", keys)
	}
}
