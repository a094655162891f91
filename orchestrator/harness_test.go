package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/postgres"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

// fleet is a scripted fleet: it keeps levels like the real one, and does what
// ensure says before it answers.
type fleet struct {
	mu     sync.Mutex
	seen   map[holdfast.InstanceID]holdfast.Observation
	boots  map[holdfast.InstanceRef]int
	calls  []holdfast.Level
	ensure func(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) // nil: reached at once
	get    func(holdfast.InstanceID) (holdfast.Observation, error)

	blobs      blob.Store
	copies     map[holdfast.CheckpointID]holdfast.CheckpointObservation
	copyCalls  []holdfast.CheckpointLevel
	madeOf     map[holdfast.InstanceID][]holdfast.Layer // as the last level said
	checkpoint func(ctx context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error)
}

func newFleet() *fleet {
	return &fleet{seen: map[holdfast.InstanceID]holdfast.Observation{}, boots: map[holdfast.InstanceRef]int{},
		copies: map[holdfast.CheckpointID]holdfast.CheckpointObservation{}, madeOf: map[holdfast.InstanceID][]holdfast.Layer{}}
}

func (f *fleet) EnsureInstance(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) {
	f.mu.Lock()
	f.calls = append(f.calls, l)
	if l.Spec != nil {
		f.madeOf[l.Instance] = l.Spec.Layers
	}
	ensure := f.ensure
	f.mu.Unlock()
	if ensure != nil {
		return ensure(ctx, l)
	}
	return f.reach(l)
}

// reach does what a fleet does when all goes well.
func (f *fleet) reach(l holdfast.Level) (holdfast.Observation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was, known := f.seen[l.Instance]
	if known && l.Generation < was.Generation {
		return holdfast.Observation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleGeneration, "stale").
			With("seen", strconv.FormatInt(was.Generation, 10))
	}
	if known && l.Incarnation < was.Incarnation {
		return holdfast.Observation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation, "an older boot")
	}
	again := known && l.Incarnation == was.Incarnation
	if again && (was.State == holdfast.InstanceExited || was.State == holdfast.InstanceAbsent) && l.Desired != holdfast.DesiredAbsent {
		was.Generation = l.Generation
		f.seen[l.Instance] = was
		return was, nil
	}
	states := map[holdfast.Desired]holdfast.InstanceState{
		holdfast.DesiredRunning: holdfast.InstanceRunning, holdfast.DesiredSuspended: holdfast.InstanceSuspended,
		holdfast.DesiredExited: holdfast.InstanceExited, holdfast.DesiredAbsent: holdfast.InstanceAbsent}
	if !again && l.Desired == holdfast.DesiredRunning {
		f.boots[holdfast.InstanceRef{Instance: l.Instance, Incarnation: l.Incarnation}]++
	}
	o := holdfast.Observation{Instance: l.Instance, Incarnation: l.Incarnation, Generation: l.Generation, State: states[l.Desired],
		HostURL: "http://host", Host: "ho-1"}
	f.seen[l.Instance] = o
	return o, nil
}

// EnsureCheckpoint does what checkpoint says, or all goes well.
func (f *fleet) EnsureCheckpoint(ctx context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	f.mu.Lock()
	f.copyCalls = append(f.copyCalls, l)
	fn := f.checkpoint
	f.mu.Unlock()
	if fn != nil {
		return fn(ctx, l)
	}
	return f.copy(l)
}

// copy is a host that keeps tombstones and copies at once, under a key that ends in the claim.
func (f *fleet) copy(l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, known := f.copies[l.Checkpoint]
	switch {
	case l.Desired == holdfast.CheckpointAbsent:
		o = holdfast.CheckpointObservation{Checkpoint: l.Checkpoint, Instance: l.Instance, State: holdfast.CopyAbsent}
	case known:
		return o, nil
	case l.Generation < f.seen[l.Instance].Generation:
		return o, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleGeneration, "stale").
			With("seen", strconv.FormatInt(f.seen[l.Instance].Generation, 10))
	default:
		key := fmt.Sprintf("checkpoints/%s/%d", l.Checkpoint, l.Claim)
		info, err := f.blobs.Put(context.Background(), key, strings.NewReader("disk of "+string(l.Instance)+" for "+key))
		if err != nil {
			return o, err
		}
		o = holdfast.CheckpointObservation{Checkpoint: l.Checkpoint, Instance: l.Instance, State: holdfast.CopyPresent, Claim: l.Claim, Added: info.Size,
			Layers: append(slices.Clone(f.madeOf[l.Instance]), holdfast.Layer{Key: key, Size: info.Size, SHA256: info.SHA256})}
	}
	f.copies[l.Checkpoint] = o
	return o, nil
}

func (f *fleet) copyLevels() []holdfast.CheckpointLevel {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.copyCalls)
}

func (f *fleet) scriptCopies(fn func(ctx context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checkpoint = fn
}

func (f *fleet) GetInstance(_ context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.get != nil {
		return f.get(id)
	}
	o, ok := f.seen[id]
	if !ok {
		return o, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "unknown")
	}
	return o, nil
}

func (f *fleet) ListInstances(_ context.Context, after string, limit int) (holdfast.InstancePage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var page holdfast.InstancePage
	for _, id := range slices.Sorted(maps.Keys(f.seen)) {
		if string(id) <= after {
			continue
		}
		if len(page.Instances) == limit {
			page.Next = string(page.Instances[limit-1].Instance)
			break
		}
		page.Instances = append(page.Instances, f.seen[id])
	}
	return page, nil
}

func (f *fleet) ListHosts(context.Context) ([]holdfast.Host, error) { return nil, nil }

func (f *fleet) set(id holdfast.InstanceID, state holdfast.InstanceState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.seen[id]
	o.Instance, o.State, o.Incarnation = id, state, max(o.Incarnation, 1)
	f.seen[id] = o
}

func (f *fleet) script(fn func(ctx context.Context, l holdfast.Level) (holdfast.Observation, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ensure = fn
}

func (f *fleet) levels() []holdfast.Level {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

var alice = holdfast.Caller{Project: holdfast.ProjectDefault, Name: "alice"}

type harness struct {
	*Service
	fleet *fleet
	db    store.DB
	t     *testing.T
}

// TestOnPostgres runs every test of this package on PostgreSQL as well.
func TestOnPostgres(t *testing.T) { testenv.OnPostgres(t) }

// newHarness is an orchestrator over its own database.
func newHarness(t *testing.T, change ...func(*Config)) *harness {
	t.Helper()
	db, err := database(t)()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return newHarnessOn(t, db, newFleet(), change...)
}

var migrated testenv.Template

// database is a new one, opened as often as it is called: a SQLite file, or a schema on PostgreSQL.
func database(t *testing.T) (open func() (store.DB, error)) {
	t.Helper()
	if url, schema, ok := testenv.PostgresSchema(t); ok {
		return func() (store.DB, error) {
			return postgres.Open(t.Context(), postgres.Config{URL: url, Schema: schema}, Migrations()...)
		}
	}
	path := filepath.Join(t.TempDir(), "orchestrator.db")
	migrated.Copy(t, path, func(path string) error {
		db, err := sqlite.Open(t.Context(), sqlite.Config{Path: path}, Migrations()...)
		if err != nil {
			return err
		}
		return db.Close()
	})
	return func() (store.DB, error) {
		return sqlite.Open(t.Context(), sqlite.Config{Path: path}, Migrations()...)
	}
}

// newHarnessOn is another process over the same database and fleet.
func newHarnessOn(t *testing.T, db store.DB, f *fleet, change ...func(*Config)) *harness {
	t.Helper()
	if f.blobs == nil {
		blobs, err := blob.Open(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		f.blobs = blobs
	}
	config := Config{
		Blobs: f.blobs, DB: db, Fleet: f, Cluster: "cl", ClusterKey: []byte("key"), FleetSecret: []byte("fleet"),
		Image: func(name string) (string, error) {
			if name != "base" {
				return "", holdfast.E(holdfast.InvalidArgument, holdfast.ReasonNoSuchImage, "no environment %q", name)
			}
			return name, nil
		},
		HeldWait: 50 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(testLog{t}, nil)), SweepEvery: time.Microsecond,
	}
	config.Joiner, _ = db.(store.Joiner)
	for _, c := range change {
		c(&config)
	}
	s, err := New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(s.Drain(ctx), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return &harness{Service: s, fleet: f, db: db, t: t}
}

func (h *harness) create(requestID string) (holdfast.Sandbox, error) {
	return h.CreateSandbox(h.t.Context(), alice, holdfast.CreateSandbox{RequestID: requestID, Environment: "base"})
}

func (h *harness) mustCreate(requestID string) holdfast.Sandbox {
	h.t.Helper()
	sb, err := h.create(requestID)
	if err != nil {
		h.t.Fatalf("create %s: %v", requestID, err)
	}
	return sb
}

func (h *harness) get(id holdfast.SandboxID) holdfast.Sandbox {
	h.t.Helper()
	sb, err := h.GetSandbox(h.t.Context(), alice, id)
	if err != nil {
		h.t.Fatalf("get %s: %v", id, err)
	}
	return sb
}

func (h *harness) sweep(name string) {
	h.t.Helper()
	for _, s := range h.Sweeps() {
		if s.Name != name {
			continue
		}
		for after := ""; ; {
			items, next, err := s.Page(h.t.Context(), after, 100)
			if err != nil {
				h.t.Fatalf("sweep %s: %v", name, err)
			}
			for _, item := range items {
				if err := item.Act(h.t.Context()); err != nil {
					h.t.Logf("sweep %s %s: %v", name, item.Key, err)
				}
			}
			if next == "" {
				return
			}
			after = next
		}
	}
	h.t.Fatalf("no sweep %s", name)
}

// wantError fails unless err has the code and the reason.
func wantError(t *testing.T, err error, code holdfast.Code, reason holdfast.Reason) {
	t.Helper()
	if holdfast.CodeOf(err) != code || holdfast.ReasonOf(err) != reason {
		t.Fatalf("got %v (%s %s), want %s %s", err, holdfast.CodeOf(err), holdfast.ReasonOf(err), code, reason)
	}
}

func (h *harness) count(query string, args ...any) int {
	h.t.Helper()
	n := 0
	err := h.db.View(h.t.Context(), func(tx store.Tx) error {
		return tx.QueryRowContext(h.t.Context(), query, args...).Scan(&n)
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

// testLog writes the service's log to the test's.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}
