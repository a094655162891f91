package acceptance

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/rpc"
	"github.com/holdfast-dev/holdfast/transport"
)

// faulty is a client whose first call of a procedure meets a fault.
func (s *system) faulty(procedure string, kind transport.Kind) (*client.Client, *transport.Faulty) {
	var fired atomic.Bool
	f := &transport.Faulty{Next: rpc.NewHTTPClient().Transport, Plan: func(r *http.Request) transport.Fault {
		if strings.HasSuffix(r.URL.Path, "/"+procedure) && fired.CompareAndSwap(false, true) {
			return transport.Fault{Kind: kind}
		}
		return transport.Fault{}
	}}
	return s.dial(client.WithHTTPClient(&http.Client{Transport: f})), f
}

// contract: A3
func TestT1_ACreateWhoseAnswerIsLostIsTheSameSandboxAndOneContainer(t *testing.T) {
	s := serve(t)
	for _, kind := range []transport.Kind{transport.LoseAnswer, transport.Overlap, transport.Duplicate} {
		c, f := s.faulty("CreateSandbox", kind)
		in := holdfast.CreateSandbox{RequestID: "r-" + kind.String()[:4], Environment: "base"}
		sb, err := c.CreateSandbox(t.Context(), in)
		s.keep(sb.ID)
		if err != nil || sb.State != holdfast.SandboxReady {
			t.Fatalf("%s: %s %v\n%s", kind, sb.State, err, s.Log())
		}
		again, err := s.client.CreateSandbox(t.Context(), in)
		if err != nil || again.ID != sb.ID {
			t.Fatalf("%s: %s, then %s, %v", kind, sb.ID, again.ID, err)
		}
		if f.Fired(kind) != 1 {
			t.Fatalf("%s did not fire", kind)
		}
		if n := s.containers(); n != len(s.made) {
			t.Fatalf("%s: %d containers of %d sandboxes", kind, n, len(s.made))
		}
	}
}

// contract: A1, A6, C6: killed at any moment of a create, restarted and repeated,
// it is the same sandbox, READY, and one container, within seconds.
func TestA6_SIGKILLAtAnyMomentOfACreate(t *testing.T) {
	s := serve(t)
	s.create("warm") // the image is ready, so that the kills fall on the create itself
	moments := []time.Duration{0, 2, 5, 8, 12, 16, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 90, 100, 120}
	if testing.Short() {
		moments = moments[:6]
	}
	for i, ms := range moments {
		requestID := "kill-" + string(rune('a'+i))
		in := holdfast.CreateSandbox{RequestID: requestID, Environment: "base"}
		first := make(chan holdfast.SandboxID, 1)
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			sb, err := s.client.CreateSandbox(ctx, in)
			if err == nil {
				first <- sb.ID
			}
			close(first)
		})
		moment := time.NewTimer(ms * time.Millisecond)
		<-moment.C
		s.Kill()
		cancel() // this client is gone; another repeats the create
		wg.Wait()
		s.Start()
		began := time.Now()
		sb := s.create(requestID)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("killed after %d ms: READY only %s after the restart", ms, took)
		}
		if id, told := <-first; told && id != sb.ID {
			t.Fatalf("killed after %d ms: %s, then %s", ms, id, sb.ID)
		}
		if sb.Incarnation != 1 {
			t.Errorf("killed after %d ms: incarnation %d", ms, sb.Incarnation)
		}
		if n := s.containers(); n != len(s.made) {
			t.Fatalf("killed after %d ms: %d containers of %d sandboxes\n%s", ms, n, len(s.made), s.Log())
		}
		s.wantOutput(sb.ID, "echo alive", "alive")
		if _, err := s.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil {
			t.Fatal(err)
		}
		s.made = s.made[:1] // the warm one
	}
}

// contract: A3: the repeat of a create resets neither lifetime nor state.
func TestA3_ARepeatedCreateShowsTheSandboxAsItIsNow(t *testing.T) {
	s := serve(t)
	sb := s.create("r1")
	if _, err := s.client.SuspendSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil {
		t.Fatal(err)
	}
	again, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "r1", Environment: "base"})
	if err != nil || again.ID != sb.ID || again.State != holdfast.SandboxSuspended {
		t.Fatalf("%+v %v", again, err)
	}
}

// contract: A2, A6: a server that is stopped for longer than its claim, and goes
// on, changes nothing that happened meanwhile.
func TestT14_AStoppedServersLateWorkChangesNothing(t *testing.T) {
	s := serve(t, "--claim-ttl", "2s")
	s.create("warm")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var sb holdfast.Sandbox
	var err error
	wg.Go(func() {
		sb, err = s.client.CreateSandbox(ctx, holdfast.CreateSandbox{RequestID: "stopped", Environment: "base"})
	})
	moment := time.NewTimer(30 * time.Millisecond)
	<-moment.C
	s.Signal(syscall.SIGSTOP)
	past := time.NewTimer(3 * time.Second) // longer than the claim
	<-past.C
	s.Signal(syscall.SIGCONT)
	wg.Wait()
	s.keep(sb.ID)
	if err != nil || sb.State != holdfast.SandboxReady {
		t.Fatalf("%s %v\n%s", sb.State, err, s.Log())
	}
	if n := s.containers(); n != 2 {
		t.Fatalf("%d containers of 2 sandboxes", n)
	}
}

// contract: A4 and the report that a paused sandbox could not be deleted because
// delete resumed it first.
func TestA4_DeleteWorksInEveryState(t *testing.T) {
	s := serve(t)
	ready, suspended, failed := s.create("ready"), s.create("suspended"), s.create("failed")
	if _, err := s.client.SuspendSandbox(t.Context(), holdfast.MutateSandbox{ID: suspended.ID}); err != nil {
		t.Fatal(err)
	}
	s.killInstance(failed.ID)
	s.awaitState(failed.ID, holdfast.SandboxFailed, 15*time.Second)
	for _, sb := range []holdfast.Sandbox{ready, suspended, failed} {
		for range 2 {
			got, err := s.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID})
			if err != nil || got.State != holdfast.SandboxDeleted {
				t.Fatalf("delete: %s %v\n%s", got.State, err, s.Log())
			}
		}
	}
	testenv.WantNothingLeft(t, s.running(false), s.DataDir)
	// While its create is under way: the delete is wanted, and wins.
	var wg sync.WaitGroup
	wg.Go(func() {
		sb, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "racing", Environment: "base"})
		s.keep(sb.ID)
		t.Logf("the create under a delete: %s %v", sb.State, err)
	})
	var id holdfast.SandboxID
	ok := testenv.Eventually(10*time.Second, func() bool {
		page, err := s.client.ListSandboxes(t.Context(), holdfast.ListSandboxes{})
		if err == nil && len(page.Sandboxes) == 1 {
			id = page.Sandboxes[0].ID
		}
		return id != ""
	})
	if !ok {
		page, err := s.client.ListSandboxes(t.Context(), holdfast.ListSandboxes{})
		t.Fatalf("the create was never recorded: %+v %v\n%s", page, err, s.Log())
	}
	got, err := s.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: id})
	if err != nil || got.State != holdfast.SandboxDeleted {
		t.Fatalf("delete of a sandbox that is being created: %s %v\n%s", got.State, err, s.Log())
	}
	wg.Wait()
	testenv.WantNothingLeft(t, s.running(false), s.DataDir)
}

// running is what a server keeps on the machine while it runs without a live
// instance: its bridge, its runtime's state, its parent cgroups, and with output
// what failed sandboxes wrote.
func (s *system) running(output bool) testenv.Census {
	s.t.Helper()
	c := testenv.TakeCensus(s.t, s.DataDir)
	name := testenv.RuntimeName(s.DataDir)
	keep := testenv.Census{"state": c["state"], "tables": c["tables"], "links": {"hf" + name}}
	for _, group := range c["cgroups"] {
		if strings.HasSuffix(group, "/holdfast-"+name) {
			keep["cgroups"] = append(keep["cgroups"], group)
		}
	}
	for _, file := range c["files"] {
		if output && strings.Contains(file, "/spool/") {
			keep["files"] = append(keep["files"], file)
		}
	}
	return keep
}
