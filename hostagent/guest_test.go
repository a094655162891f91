package hostagent

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/spool"
)

// write is what a guest leaves in its spool.
func (b *bench) write(process holdfast.Process, output string) {
	b.t.Helper()
	writer, err := spool.NewWriter(b.places.spool(refOf(1)), spool.Limits{})
	must(b.t, err, "open the spool")
	log, err := writer.Begin(process)
	must(b.t, err, "begin")
	_, err = log.Stream(holdfast.Stdout).Write([]byte(output))
	must(b.t, err, "write")
	process.StdoutSize = int64(len(output))
	must(b.t, log.Record(process), "record")
}

// contract: A14
func TestA14_OutputIsReadFromTheHostInEveryState(t *testing.T) {
	id := holdfast.ProcessID("pr-00000000000000000000000001")
	b := start(t, newWorld(), t.TempDir(), newClock())
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.write(holdfast.Process{ID: id, Incarnation: 1, Command: "work", State: holdfast.ProcessRunning}, "hello")
	read := func(lost, follow bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		g, err := b.Guest(t.Context(), refOf(1))
		must(t, err, "guest")
		var out strings.Builder
		p, err := g.Processes.StreamProcessOutput(ctx, holdfast.ReadOutput{Process: id, Follow: follow}, func(c holdfast.OutputChunk) error {
			out.Write(c.Data)
			return nil
		})
		must(t, err, "stream")
		list, listErr := g.Processes.ListProcesses(t.Context())
		must(t, listErr, "list")
		if out.String() != "hello" || p.Lost != lost || len(list) != 1 {
			t.Errorf("read %q, lost %v, %d listed", out.String(), p.Lost, len(list))
		}
		if _, err := g.Processes.GetProcess(t.Context(), id); err != nil {
			t.Errorf("get: %v", err)
		}
		var log strings.Builder
		must(t, g.Log(ctx, 0, follow, func(c holdfast.OutputChunk) error { log.Write(c.Data); return nil }), "log")
		if !strings.HasPrefix(log.String(), "booting in-") {
			t.Errorf("log %q", log.String())
		}
	}
	read(false, false)
	b.ensure(b.level(1, 2, holdfast.DesiredSuspended), holdfast.InstanceSuspended)
	read(false, false)
	b.ensure(b.level(1, 3, holdfast.DesiredExited), holdfast.InstanceExited)
	read(true, true) // a follower is told that nothing more comes
	b = b.restart()
	read(true, true)
	b.ensure(b.level(1, 4, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
	if _, err := b.Guest(t.Context(), refOf(1)); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("after the delete: %v", err)
	}
}

// contract: A14
func TestA14_OtherGuestCallsNeedItRunningAndNeverResumeIt(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock())
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	g, err := b.Guest(t.Context(), refOf(1))
	must(t, err, "guest")
	info, err := g.Files.StatFile(t.Context(), "/x")
	if err != nil || info.Path != "/x" {
		t.Errorf("stat: %+v, %v", info, err)
	}
	if s, err := g.Status(t.Context()); err != nil || !s.Ready {
		t.Errorf("status: %+v, %v", s, err)
	}
	b.ensure(b.level(1, 2, holdfast.DesiredSuspended), holdfast.InstanceSuspended)
	ctx := t.Context()
	process := holdfast.ProcessID("pr-00000000000000000000000001")
	for name, call := range map[string]func() error{
		"StartProcess":      func() error { _, err := g.Processes.StartProcess(ctx, holdfast.StartProcess{}); return err },
		"WriteProcessInput": func() error { _, err := g.Processes.WriteProcessInput(ctx, holdfast.ProcessInput{}); return err },
		"SignalProcess":     func() error { return g.Processes.SignalProcess(ctx, process, "TERM") },
		"ResizeTerminal":    func() error { return g.Processes.ResizeTerminal(ctx, process, holdfast.TerminalSize{}) },
		"ReadFile":          func() error { _, _, err := g.Files.ReadFile(ctx, holdfast.ReadFile{}); return err },
		"WriteFile":         func() error { _, err := g.Files.WriteFile(ctx, holdfast.WriteFile{}, nil); return err },
		"StatFile":          func() error { _, err := g.Files.StatFile(ctx, "/"); return err },
		"ListDirectory":     func() error { _, err := g.Files.ListDirectory(ctx, "/"); return err },
		"MakeDirectory":     func() error { _, err := g.Files.MakeDirectory(ctx, "/", 0); return err },
		"MoveFile":          func() error { _, err := g.Files.MoveFile(ctx, "/", "/"); return err },
		"RemoveFile":        func() error { return g.Files.RemoveFile(ctx, "/", false) },
		"WatchDirectory":    func() error { return g.Files.WatchDirectory(ctx, holdfast.WatchDirectory{}, nil) },
		"Status":            func() error { _, err := g.Status(ctx); return err },
	} {
		if err := call(); holdfast.CodeOf(err) != holdfast.FailedPrecondition || holdfast.ReasonOf(err) != holdfast.ReasonState {
			t.Errorf("%s while SUSPENDED: %v", name, err)
		}
	}
	if b.driver.phase(refOf(1)) != runtime.PhaseSuspended {
		t.Error("a guest call resumed it")
	}
}

// T37
func TestAnOlderBootsGuestIsRefused(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock())
	b.ensure(b.level(2, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	for incarnation, want := range map[int64]holdfast.Reason{1: holdfast.ReasonStaleIncarnation, 3: holdfast.ReasonUnknown} {
		if _, err := b.Guest(t.Context(), refOf(incarnation)); holdfast.ReasonOf(err) != want {
			t.Errorf("incarnation %d: %v, want %s", incarnation, err, want)
		}
	}
	other := holdfast.InstanceRef{Instance: "in-00000000000000000000000009", Incarnation: 1}
	if _, err := b.Guest(t.Context(), other); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("an unknown instance: %v", err)
	}
}

// A follower of the console sees a boot from its beginning, and its end.
func TestTheConsoleIsFollowedWhileItBootsUntilItEnds(t *testing.T) {
	w := newWorld()
	w.readyFrom = false
	asked := make(chan struct{}, 1024)
	b := start(t, w, t.TempDir(), newClock(), func(b *bench) {
		b.driver.meet = func(_ context.Context, point string, _ holdfast.InstanceRef) error {
			if point == "before DialGuest" {
				asked <- struct{}{}
			}
			return nil
		}
	})
	b.begin(b.level(1, 1, holdfast.DesiredRunning))
	g, err := b.Guest(t.Context(), refOf(1))
	must(t, err, "guest")
	seen, done := make(chan string, 16), make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() {
		done <- g.Log(ctx, 0, true, func(c holdfast.OutputChunk) error { seen <- string(c.Data); return nil })
	}()
	if line := <-seen; !strings.HasPrefix(line, "booting") {
		t.Errorf("log %q", line)
	}
	<-asked
	w.exit(refOf(1))
	b.becomes(testInstance, holdfast.InstanceExited)
	if err := <-done; err != nil {
		t.Errorf("the follower ended with %v", err)
	}
}

// Found by the real kills: a sandbox was READY, by its guest's own word, and its host,
// which had not written that down yet, refused what was asked of the guest.
func TestAGuestThatBootsIsAskedItselfWhetherItIsReady(t *testing.T) {
	w := newWorld()
	w.readyFrom = false
	b := start(t, w, t.TempDir(), newClock())
	b.begin(b.level(1, 1, holdfast.DesiredRunning))
	b.becomes(testInstance, holdfast.InstanceBooting)
	g, err := b.Guest(t.Context(), refOf(1))
	must(t, err, "guest")
	if _, err := g.Files.StatFile(t.Context(), "/x"); err != nil {
		t.Errorf("a guest that answers: %v", err)
	}
}
