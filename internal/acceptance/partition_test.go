package acceptance

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/rpc"
)

// wire carries connections to an address, until it is cut: then those there are
// end, and new ones are taken and never answered, as by a network that drops.
type wire struct {
	t        *testing.T
	to       string
	listener net.Listener

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, to: to, listener: l}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		w.set(true)
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed by the cleanup
			}
			go w.carry(c)
		}
	}()
	return w
}

func (w *wire) url() string { return "http://" + w.listener.Addr().String() }

// keep notes a connection; false while the wire is cut.
func (w *wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	return !w.cut
}

func (w *wire) carry(from net.Conn) {
	if !w.keep(from) {
		return
	}
	to, err := net.Dial("tcp", w.to)
	if err != nil || !w.keep(to) {
		_ = from.Close() // nobody is there
		return
	}
	go func() {
		_, _ = io.Copy(to, from) // either side may go at any time
		_ = to.Close()
	}()
	_, _ = io.Copy(from, to)
	_ = from.Close()
}

// set cuts the wire or heals it; either ends the connections there are.
func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	for _, c := range w.conns {
		_ = c.Close() // most have ended
	}
	w.conns = nil
}

// wired is three processes on one machine whose hops can be cut: those between
// host and fleet, and those between fleet and orchestrator.
type wired struct {
	*system
	host, fleet *testenv.Process
	hostToFleet, fleetToHost,
	fleetToOrchestrator, orchestratorToFleet *wire
}

func serveWired(t *testing.T) *wired {
	t.Helper()
	dir := t.TempDir()
	key := filepath.Join(dir, "cluster.key")
	if err := os.WriteFile(key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := map[string]string{"orchestrator": testenv.FreeAddress(t), "fleet": testenv.FreeAddress(t), "host": testenv.FreeAddress(t)}
	w := &wired{system: &system{t: t}, hostToFleet: newWire(t, at["fleet"]), fleetToHost: newWire(t, at["host"]),
		fleetToOrchestrator: newWire(t, at["orchestrator"]), orchestratorToFleet: newWire(t, at["fleet"])}
	serve := func(role string, args ...string) *testenv.Process {
		data := filepath.Join(dir, role)
		if err := os.Mkdir(data, 0o700); err != nil {
			t.Fatal(err)
		}
		return testenv.ServeAt(t, role, data, at[role], append([]string{"--roles", role, "--cluster-key-file", key, "--sweep-every", "1s"}, args...)...)
	}
	w.fleet = serve("fleet", "--orchestrator-url", w.fleetToOrchestrator.url())
	w.host = serve("host", "--runtime", "simulated", "--advertise-url", w.fleetToHost.url(),
		"--orchestrator-url", "http://"+at["orchestrator"], "--fleet-url", w.hostToFleet.url())
	w.Process = serve("orchestrator", "--fleet-url", w.orchestratorToFleet.url())
	w.client = w.dial()
	return w
}

// contract: C4, D2: a host and its fleet, then the fleet and its orchestrator,
// cannot reach each other for a while, and then can again: what ran runs on, on
// its first boot; what was begun meanwhile is done afterwards; nothing is destroyed.
func TestC4_APartitionDestroysNothingAndHeals(t *testing.T) {
	w := serveWired(t)
	sb := w.create("r1")
	for _, hop := range []struct {
		name  string
		wires []*wire
	}{
		{"host-fleet", []*wire{w.hostToFleet, w.fleetToHost}},
		{"fleet-orchestrator", []*wire{w.fleetToOrchestrator, w.orchestratorToFleet}},
	} {
		name := hop.name
		for _, one := range hop.wires {
			one.set(true)
		}
		raw := rpc.Dial(rpc.NewHTTPClient(), w.URL, w.Key())
		begun := make(chan error, 1)
		go func() {
			_, err := raw.Sandboxes.CreateSandbox(t.Context(), holdfast.Caller{}, base(name))
			begun <- err
		}()
		passed := time.NewTimer(4 * time.Second) // several sweeps of everyone
		<-passed.C
		if got := w.get(sb.ID); got.State != holdfast.SandboxReady {
			t.Errorf("cut between %s: it is %s, %+v", name, got.State, got.Failure)
		}
		for _, one := range hop.wires {
			one.set(false)
		}
		<-begun // whatever it heard
		again, err := w.client.CreateSandbox(t.Context(), base(name))
		if err != nil || again.State != holdfast.SandboxReady {
			t.Errorf("begun while %s was cut: %s %v\n%s", name, again.State, err, w.Log())
		}
		if got := w.get(sb.ID); got.State != holdfast.SandboxReady || got.Incarnation != 1 {
			t.Errorf("healed between %s: %s of incarnation %d, %+v", name, got.State, got.Incarnation, got.Failure)
		}
		if p, err := w.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{Command: "echo", Args: []string{"here"}}); err != nil || p.ID == "" {
			t.Errorf("healed between %s: exec: %v", name, err)
		}
	}
}

// contract: A6: an orchestrator is stopped for longer than its claim in the middle
// of an attempt, and goes on then: another has carried the create on and the
// sandbox has changed since; the late writes and the late orders change nothing.
func TestA6_AnOrchestratorThatSleptThroughItsClaimChangesNothing(t *testing.T) {
	s := serveReplicated(t)
	b := s.client(1)
	if _, err := b.CreateSandbox(t.Context(), base("first")); err != nil {
		t.Fatalf("create: %v\n%s", err, s.logs())
	}
	s.host.Signal(syscall.SIGSTOP) // the attempt gets as far as its host
	raw := rpc.Dial(rpc.NewHTTPClient(), s.replicas[0].URL, adminKey)
	late := make(chan error, 1)
	go func() {
		_, err := raw.Sandboxes.CreateSandbox(t.Context(), holdfast.Caller{}, base("r1"))
		late <- err
	}()
	if !testenv.Eventually(20*time.Second, func() bool {
		page, err := b.ListSandboxes(t.Context(), listAll())
		return err == nil && slices.ContainsFunc(page.Sandboxes, func(sb holdfast.Sandbox) bool {
			return sb.State == holdfast.SandboxCreating && sb.Operation != nil && sb.Operation.Claim != nil
		})
	}) {
		t.Fatalf("no attempt is under way\n%s", s.logs())
	}
	s.replicas[0].Signal(syscall.SIGSTOP)
	s.host.Signal(syscall.SIGCONT)
	sb, err := b.CreateSandbox(t.Context(), base("r1")) // waits for the claim's end
	if err != nil || sb.State != holdfast.SandboxReady {
		t.Fatalf("carried on by the other: %+v %v\n%s", sb, err, s.logs())
	}
	if sb, err = b.SuspendSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil || sb.State != holdfast.SandboxSuspended {
		t.Fatalf("suspend: %+v %v\n%s", sb, err, s.logs())
	}
	s.replicas[0].Signal(syscall.SIGCONT)
	t.Log("the sleeper's call was answered:", <-late)
	for i := range s.replicas {
		got, err := s.client(i).GetSandbox(t.Context(), sb.ID)
		if err != nil || got.State != holdfast.SandboxSuspended || got.Generation != sb.Generation || got.Incarnation != 1 || got.Operation != nil {
			t.Errorf("replica %d: %+v %v\n%s", i, got, err, s.logs())
		}
	}
	if got, err := s.client(0).ResumeSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil || got.State != holdfast.SandboxReady || got.Incarnation != 1 {
		t.Errorf("resume at the sleeper: %+v %v", got, err)
	}
}

// contract: A8: a create that finds no room is UNAVAILABLE, NO_CAPACITY, and stays
// pending; it is carried on when room comes, and gone when it is deleted meanwhile.
func TestA8_ACreateWithoutRoomIsCarriedOnOrGone(t *testing.T) {
	p := testenv.Serve(t, "holdfast", filepath.Join(t.TempDir(), "data"), "--runtime", "simulated", "--capacity-instances", "1", "--sweep-every", "500ms")
	s := &system{Process: p, t: t}
	s.client = s.dial()
	first := s.create("first")
	raw := rpc.Dial(rpc.NewHTTPClient(), s.URL, s.Key())
	refused := func(requestID string) holdfast.SandboxID {
		t.Helper()
		_, err := raw.Sandboxes.CreateSandbox(t.Context(), holdfast.Caller{}, base(requestID))
		wantCode(t, requestID, err, holdfast.Unavailable, holdfast.ReasonNoCapacity)
		id := holdfast.SandboxID(holdfast.AsError(err).Resource)
		if got := s.get(id); got.State != holdfast.SandboxCreating || got.Operation == nil || got.Operation.WaitsFor != "capacity" {
			t.Errorf("%s is %s, %+v", requestID, got.State, got.Operation)
		}
		return id
	}
	waits, deleted := refused("waits"), refused("deleted")
	remove := func(id holdfast.SandboxID) {
		t.Helper()
		if got, err := s.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: id}); err != nil || got.State != holdfast.SandboxDeleted {
			t.Fatalf("delete %s: %s %v\n%s", id, got.State, err, s.Log())
		}
	}
	remove(deleted)
	remove(first.ID)
	s.awaitState(waits, holdfast.SandboxReady, 20*time.Second)
	remove(waits)
	again, err := s.dial(client.WithOverallTimeout(10*time.Second)).CreateSandbox(t.Context(), base("deleted"))
	if err != nil || again.ID != deleted || again.State != holdfast.SandboxDeleted {
		t.Errorf("its create repeated, with room: %s %s %v", again.ID, again.State, err)
	}
}
