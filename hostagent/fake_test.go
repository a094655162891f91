package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// world is what a runtime has: it outlives the drivers, as a machine outlives
// its agents.
type world struct {
	mu        sync.Mutex
	instances map[holdfast.InstanceRef]*body
	boots     map[holdfast.InstanceRef]int
	prepares  map[holdfast.InstanceRef]int
	stops     map[holdfast.InstanceRef]int
	readyFrom bool   // new guests are ready at once
	failing   string // new guests report this failure
	bootID    string
}

type body struct {
	phase   runtime.Phase
	ready   bool
	failure string
	ended   chan struct{}
	bundle  runtime.Bundle
	content string // of its writable layer
}

func newWorld() *world {
	return &world{
		instances: map[holdfast.InstanceRef]*body{}, boots: map[holdfast.InstanceRef]int{},
		prepares: map[holdfast.InstanceRef]int{}, stops: map[holdfast.InstanceRef]int{}, readyFrom: true, bootID: "boot-1",
	}
}

func (w *world) change(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) phase(ref holdfast.InstanceRef) runtime.Phase {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b := w.instances[ref]; b != nil {
		return b.phase
	}
	return runtime.PhaseAbsent
}

func (w *world) booted(ref holdfast.InstanceRef) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.boots[ref]
}

// exit ends an instance by itself.
func (w *world) exit(ref holdfast.InstanceRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.instances[ref]
	b.phase = runtime.PhaseExited
	close(b.ended)
}

// reboot wipes what ran.
func (w *world) reboot(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bootID = id
	for ref, b := range w.instances {
		if b.phase == runtime.PhaseRunning || b.phase == runtime.PhaseSuspended {
			close(b.ended)
		}
		delete(w.instances, ref)
	}
}

// driver is one process's way into the world. meet is called before and after
// every call; an error from it is returned, after an "after" with its effect done.
type driver struct {
	*world
	meet         func(ctx context.Context, point string, ref holdfast.InstanceRef) error
	capabilities runtime.Capabilities
}

func (w *world) driver() *driver {
	return &driver{world: w, capabilities: runtime.Capabilities{Name: "fake", SuspendKind: "frozen"},
		meet: func(context.Context, string, holdfast.InstanceRef) error { return nil }}
}

func (d *driver) around(ctx context.Context, call string, ref holdfast.InstanceRef, effect func() error) error {
	if err := d.meet(ctx, "before "+call, ref); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	err := effect()
	d.mu.Unlock()
	if err != nil {
		return err
	}
	return d.meet(ctx, "after "+call, ref)
}

func (d *driver) Capabilities() runtime.Capabilities { return d.capabilities }

func (d *driver) Open(context.Context) (net.Listener, string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	return l, "http://" + l.Addr().String(), nil
}

func (d *driver) Prepare(ctx context.Context, b runtime.Bundle) error {
	return d.around(ctx, "Prepare", b.Ref, func() error {
		d.prepares[b.Ref]++
		if d.instances[b.Ref] == nil {
			d.instances[b.Ref] = &body{phase: runtime.PhasePrepared, ready: d.readyFrom, failure: d.failing, ended: make(chan struct{}), bundle: b}
		}
		if err := os.MkdirAll(b.Spool, 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(b.Spool, "console"), []byte("booting "+string(b.Ref.Instance)+"\n"), 0o600)
	})
}

func (d *driver) Start(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.around(ctx, "Start", ref, func() error {
		b := d.instances[ref]
		if b == nil || b.phase == runtime.PhaseExited {
			return errors.New("nothing to start")
		}
		if b.phase == runtime.PhasePrepared {
			b.phase = runtime.PhaseRunning
			d.boots[ref]++
		}
		return nil
	})
}

func (d *driver) Suspend(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.around(ctx, "Suspend", ref, func() error { return d.move(ref, runtime.PhaseSuspended) })
}

func (d *driver) Resume(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.around(ctx, "Resume", ref, func() error { return d.move(ref, runtime.PhaseRunning) })
}

func (d *driver) move(ref holdfast.InstanceRef, to runtime.Phase) error {
	b := d.instances[ref]
	if b == nil || b.phase != runtime.PhaseRunning && b.phase != runtime.PhaseSuspended {
		return errors.New("it does not run")
	}
	b.phase = to
	return nil
}

// Checkpoint writes what a test put into the body; a running one stands still meanwhile.
func (d *driver) Checkpoint(ctx context.Context, ref holdfast.InstanceRef, w io.Writer) error {
	var content []byte
	err := d.around(ctx, "Checkpoint", ref, func() error {
		b := d.instances[ref]
		if b == nil || b.phase != runtime.PhaseRunning && b.phase != runtime.PhaseSuspended {
			return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonInstanceLost, "it does not run")
		}
		content = []byte(b.content)
		return nil
	})
	if err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}

func (d *driver) Stop(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.around(ctx, "Stop", ref, func() error {
		d.stops[ref]++
		if b := d.instances[ref]; b != nil {
			if b.phase == runtime.PhaseRunning || b.phase == runtime.PhaseSuspended {
				close(b.ended)
			}
			delete(d.instances, ref)
		}
		return nil
	})
}

func (d *driver) Inspect(ctx context.Context, ref holdfast.InstanceRef) (s runtime.Status, err error) {
	err = d.around(ctx, "Inspect", ref, func() error {
		s = runtime.Status{Ref: ref, Phase: runtime.PhaseAbsent}
		if b := d.instances[ref]; b != nil {
			s.Phase, s.Address = b.phase, "10.0.0.9"
			s.Ports = []holdfast.Port{{Guest: 80, Address: "10.0.0.9:80"}}
		}
		return nil
	})
	return s, err
}

func (d *driver) List(ctx context.Context) (list []runtime.Status, err error) {
	err = d.around(ctx, "List", holdfast.InstanceRef{}, func() error {
		for ref, b := range d.instances {
			list = append(list, runtime.Status{Ref: ref, Phase: b.phase})
		}
		return nil
	})
	return list, err
}

func (d *driver) Wait(ctx context.Context, ref holdfast.InstanceRef) error {
	d.mu.Lock()
	b := d.instances[ref]
	d.mu.Unlock()
	if b == nil {
		return nil
	}
	select {
	case <-b.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// guestConn is a connection to a guest of the world.
type guestConn struct {
	net.Conn
	ask func() (holdfast.GuestStatus, error)
}

func (d *driver) DialGuest(ctx context.Context, ref holdfast.InstanceRef) (net.Conn, error) {
	if err := d.meet(ctx, "before DialGuest", ref); err != nil {
		return nil, err
	}
	return guestConn{ask: func() (holdfast.GuestStatus, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		b := d.instances[ref]
		if b == nil || b.phase != runtime.PhaseRunning {
			return holdfast.GuestStatus{}, errors.New("nobody listens")
		}
		s := holdfast.GuestStatus{Instance: ref.Instance, Incarnation: ref.Incarnation, Ready: b.ready}
		if b.failure != "" {
			s.Ready, s.Failure = false, &holdfast.Failure{Message: b.failure}
		}
		return s, nil
	}}, nil
}

func (d *driver) Close() error { return nil }

func dialFake(dial func(context.Context) (net.Conn, error)) holdfast.Guest {
	return holdfast.Guest{
		Files: echoFiles{},
		Status: func(ctx context.Context) (holdfast.GuestStatus, error) {
			c, err := dial(ctx)
			if err != nil {
				return holdfast.GuestStatus{}, err
			}
			return c.(guestConn).ask()
		},
	}
}

// echoFiles answers StatFile, to show that a call reached the guest.
type echoFiles struct{ holdfast.GuestFiles }

func (echoFiles) StatFile(_ context.Context, path string) (holdfast.FileInfo, error) {
	return holdfast.FileInfo{Path: path}, nil
}

func (echoFiles) ReadFile(context.Context, holdfast.ReadFile) (holdfast.FileInfo, io.ReadCloser, error) {
	return holdfast.FileInfo{}, nil, errors.New("not in this test")
}

// shelf has every image but what begins with "no-".
type shelf struct {
	mu      sync.Mutex
	block   chan struct{} // nil: images are there at once
	began   chan struct{} // gets a token for every preparing begun
	ended   chan error    // gets what a blocked preparing ended with
	working int
	moved   bool                     // what images name is another one by now
	says    holdfast.ProcessDefaults // of every image
}

func (s *shelf) Ensure(ctx context.Context, ref, id string, progress func(string)) (holdfast.BaseImage, error) {
	image := holdfast.BaseImage{ID: "first " + ref, RootFS: "/images/" + ref}
	switch s.mu.Lock(); {
	case id != "":
		image.ID = id
	case s.moved:
		image.ID = "other " + ref
	}
	image.RootFS, image.Defaults = image.RootFS+strings.TrimPrefix(image.ID, "first "+ref), s.says
	s.mu.Unlock()
	if ref == "no-such" {
		return image, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNoSuchImage, "there is no image %q", ref)
	}
	s.mu.Lock()
	s.working++
	block := s.block
	s.mu.Unlock()
	if block == nil {
		return image, nil
	}
	progress("unpacking " + ref)
	s.began <- struct{}{}
	select {
	case <-block:
		return image, nil
	case <-ctx.Done():
		s.ended <- ctx.Err()
		return image, ctx.Err()
	}
}

// clock is the time that decisions see; it runs only when told.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

// bench is one agent over a world and a directory, as a test configures it.
type bench struct {
	*Agent
	t      testing.TB
	driver *driver
	images *shelf
	clock  *clock
	config Config
}

func build(t testing.TB, w *world, dir string, c *clock, adjust ...func(*bench)) *bench {
	t.Helper()
	b := &bench{t: t, driver: w.driver(), images: &shelf{}, clock: c}
	b.config = Config{
		Directory: dir, Driver: b.driver, Images: b.images, ClusterID: "cl-1", ClusterKey: []byte("key"),
		URL: "http://host.test", DialGuest: dialFake, Clock: c.Now,
		BootID: func() (string, error) { return w.bootID, nil },
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Timing: Timing{Sweep: time.Hour},
	}
	if testing.Verbose() {
		b.config.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	for _, change := range adjust {
		change(b)
	}
	a, err := New(b.config)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	b.Agent = a
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

func start(t testing.TB, w *world, dir string, c *clock, adjust ...func(*bench)) *bench {
	t.Helper()
	b := build(t, w, dir, c, adjust...)
	if err := b.Start(t.Context()); err != nil {
		t.Fatalf("Start: %v", err)
	}
	return b
}

// restart closes the agent and starts another over the same directory.
func (b *bench) restart(adjust ...func(*bench)) *bench {
	b.t.Helper()
	if err := b.Close(); err != nil {
		b.t.Fatalf("Close: %v", err)
	}
	return start(b.t, b.driver.world, b.config.Directory, b.clock, adjust...)
}

const testInstance = holdfast.InstanceID("in-00000000000000000000000001")

func refOf(incarnation int64) holdfast.InstanceRef {
	return holdfast.InstanceRef{Instance: testInstance, Incarnation: incarnation}
}

func (b *bench) level(incarnation, generation int64, desired holdfast.Desired) holdfast.Level {
	return holdfast.Level{
		Cluster: "cl-1", Instance: testInstance, Incarnation: incarnation, Generation: generation, Desired: desired,
		Spec:     &holdfast.InstanceSpec{Owner: "sb-1", Image: "base", Env: map[string]string{"A": "1"}},
		MintedAt: b.clock.Now(), PlacedAt: b.clock.Now(), Wait: holdfast.MaxLevelWait,
	}
}

// ensure expects an answer in a state.
func (b *bench) ensure(l holdfast.Level, want holdfast.InstanceState) holdfast.Observation {
	b.t.Helper()
	o, err := b.EnsureInstance(b.t.Context(), l)
	if err != nil {
		b.t.Fatalf("ensure %s generation %d: %v", l.Desired, l.Generation, err)
	}
	if o.State != want {
		b.t.Fatalf("ensure %s generation %d: state %s (failure %+v), want %s", l.Desired, l.Generation, o.State, o.Failure, want)
	}
	return o
}

// begin sends a level and waits for nothing.
func (b *bench) begin(l holdfast.Level) {
	b.t.Helper()
	l.Wait = 0
	_, err := b.EnsureInstance(b.t.Context(), l)
	must(b.t, err, "begin %s", l.Desired)
}

// rests waits until no attempt is at the instance: an answer may come before its
// attempt has quite ended.
func (b *bench) rests() {
	b.t.Helper()
	m := b.find(testInstance)
	m.mu.Lock()
	at := m.attempt
	m.mu.Unlock()
	if at == nil {
		return
	}
	select {
	case <-at.done:
	case <-time.After(10 * time.Second):
		b.t.Fatal("the attempt does not end")
	}
}

// refused expects an error with a reason.
func (b *bench) refused(l holdfast.Level, want holdfast.Reason) error {
	b.t.Helper()
	_, err := b.EnsureInstance(b.t.Context(), l)
	if holdfast.ReasonOf(err) != want {
		b.t.Fatalf("ensure %s generation %d: error %v (%s), want reason %s", l.Desired, l.Generation, err, holdfast.ReasonOf(err), want)
	}
	return err
}

// becomes waits until the instance is seen in a state.
func (b *bench) becomes(id holdfast.InstanceID, want holdfast.InstanceState) holdfast.Observation {
	b.t.Helper()
	m := b.find(id)
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for {
		m.mu.Lock()
		o, _ := m.observation()
		changed := m.changed
		m.mu.Unlock()
		if o.State == want && !o.Stale {
			return o
		}
		select {
		case <-changed:
		case <-deadline.C:
			b.t.Fatalf("%s is %s, stale %v, not %s", id, o.State, o.Stale, want)
		}
	}
}

func (b *bench) get(want holdfast.InstanceState) holdfast.Observation {
	b.t.Helper()
	o, err := b.GetInstance(b.t.Context(), testInstance)
	if err != nil || o.State != want {
		b.t.Fatalf("get: %s, %v; want %s", o.State, err, want)
	}
	return o
}

func must(t testing.TB, err error, what string, args ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf(fmt.Sprintf(what, args...)+": %v", err)
	}
}
