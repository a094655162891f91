package acceptance

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/rpc/hop"
	rpchost "github.com/holdfast-dev/holdfast/rpc/host"
)

const hostsKey = "0123456789abcdef0123456789abcdef"

// hosts is one process for orchestrator and fleet, and host processes of the
// simulated runtime, which needs neither root nor containers.
type hosts struct {
	t      *testing.T
	dir    string
	flags  []string // of every host
	front  *testenv.Process
	client *client.Client
	agents map[holdfast.HostID]*testenv.Process
	order  []holdfast.HostID // as started
}

func serveHosts(t *testing.T, n int) *hosts {
	t.Helper()
	t.Parallel() // mostly it waits
	h := &hosts{t: t, dir: t.TempDir(), agents: map[holdfast.HostID]*testenv.Process{}}
	key := filepath.Join(h.dir, "cluster.key")
	if err := os.WriteFile(key, []byte(hostsKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	common := []string{"--cluster-key-file", key, "--sweep-every", "500ms"}
	h.front = testenv.Serve(t, "front", h.data("front"), append([]string{"--roles", "orchestrator,fleet",
		"--host-suspect-after", "2s", "--host-lost-after", "4s", "--host-loss-after", "12s"}, common...)...)
	h.flags = append([]string{"--roles", "host", "--runtime", "simulated", "--fleet-url", h.front.URL, "--orchestrator-url", h.front.URL}, common...)
	var err error
	h.client, err = client.New(h.front.URL, client.WithAPIKey(h.front.Key()), client.WithOverallTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two", "three"}[:n] {
		p := testenv.Serve(t, name, h.data(name), h.flags...)
		for _, known := range h.list() {
			if h.agents[known.ID] == nil {
				h.agents[known.ID], h.order = p, append(h.order, known.ID)
			}
		}
	}
	if len(h.order) != n {
		t.Fatalf("%d hosts were heard when they had started, want %d", len(h.order), n)
	}
	return h
}

func (h *hosts) data(name string) string {
	h.t.Helper()
	dir := filepath.Join(h.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		h.t.Fatal(err)
	}
	return dir
}

func (h *hosts) list() []holdfast.Host {
	h.t.Helper()
	all, err := h.client.ListHosts(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

func (h *hosts) host(id holdfast.HostID) holdfast.Host {
	h.t.Helper()
	for _, known := range h.list() {
		if known.ID == id {
			return known
		}
	}
	h.t.Fatalf("no host %s", id)
	return holdfast.Host{}
}

func (h *hosts) say(id holdfast.HostID, duty holdfast.HostDuty) holdfast.Host {
	h.t.Helper()
	known, err := h.client.SetHostDuty(h.t.Context(), holdfast.SetHostDuty{Host: id, Duty: duty, Reason: "a test"})
	if err != nil {
		h.t.Fatal(err)
	}
	return known
}

func (h *hosts) create(requestID string, restart holdfast.Restart) holdfast.Sandbox {
	h.t.Helper()
	sb, err := h.client.CreateSandbox(h.t.Context(), holdfast.CreateSandbox{RequestID: requestID, Environment: "base", Restart: restart})
	if err != nil || sb.State != holdfast.SandboxReady {
		h.t.Fatalf("create %s: %s %v\n%s", requestID, sb.State, err, h.front.Log())
	}
	return sb
}

// on lists the sandboxes that the fleet has on a host.
func (h *hosts) on(id holdfast.HostID) map[string]holdfast.Observation {
	h.t.Helper()
	page, err := h.client.FindInstances(h.t.Context(), holdfast.FindInstances{Host: id})
	if err != nil {
		h.t.Fatal(err)
	}
	out := map[string]holdfast.Observation{}
	for _, o := range page.Instances {
		out[o.Owner] = o
	}
	return out
}

// has lists what a host itself says that it has.
func (h *hosts) has(id holdfast.HostID) (all []holdfast.InstanceID) {
	h.t.Helper()
	agent := rpchost.Dial(hop.Client{HTTP: http.DefaultClient, URL: h.agents[id].URL, Token: hop.ClusterKey(hostsKey).Token(hop.Fleet, hop.HostAgent)})
	list, err := agent.ListInstances(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	for _, o := range list {
		all = append(all, o.Instance)
	}
	return all
}

func (h *hosts) await(what string, ok func() bool) {
	h.t.Helper()
	if !testenv.Eventually(45*time.Second, ok) {
		h.t.Fatalf("not within 45 s: %s\n%s", what, h.front.Log())
	}
}

func (h *hosts) get(sb holdfast.Sandbox) holdfast.Sandbox {
	h.t.Helper()
	got, err := h.client.GetSandbox(h.t.Context(), sb.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	return got
}

// Cordoned, a host gets nothing; drained, it is emptied of what can be made anew
// elsewhere, shows the rest, and is CORDONED in the end; retired, it ends.
func TestOperatorsTakeAHostOutOfDuty(t *testing.T) {
	h := serveHosts(t, 2)
	one, two := h.order[0], h.order[1]
	h.say(one, holdfast.HostCordoned)
	var moving, staying []holdfast.Sandbox
	for _, name := range []string{"a", "b", "c"} {
		moving = append(moving, h.create("fresh-"+name, holdfast.RestartFresh))
		staying = append(staying, h.create("none-"+name, holdfast.RestartNone))
	}
	if n, m := len(h.on(one)), len(h.on(two)); n != 0 || m != 6 {
		t.Fatalf("%d on the cordoned host, %d on the other", n, m)
	}
	h.say(one, holdfast.HostActive)
	if d := h.say(two, holdfast.HostDraining); d.Duty != holdfast.HostDraining || d.DutyReason != "a test" {
		t.Errorf("drained: %+v", d)
	}
	h.await("what has a restart policy moves", func() bool { return len(h.on(two)) == 3 && len(h.on(one)) == 3 })
	for _, sb := range moving {
		h.await("it is ready again", func() bool { return h.get(sb).State == holdfast.SandboxReady })
		if got := h.get(sb); got.Incarnation != 2 || h.on(one)[string(sb.ID)].State != holdfast.InstanceRunning {
			t.Errorf("%s: incarnation %d", sb.ID, got.Incarnation)
		}
	}
	for _, sb := range staying {
		if got := h.get(sb); got.State != holdfast.SandboxReady || got.Incarnation != 1 || h.on(two)[string(sb.ID)].State != holdfast.InstanceRunning {
			t.Errorf("%s without a policy: %s, incarnation %d", sb.ID, got.State, got.Incarnation)
		}
	}
	if left := h.has(two); len(left) != 3 {
		t.Errorf("the drained host still has %v", left)
	}
	_, err := h.client.SetHostDuty(t.Context(), holdfast.SetHostDuty{Host: two, Duty: holdfast.HostRetired})
	wantCode(t, "retiring a host with instances", err, holdfast.FailedPrecondition, holdfast.ReasonState)
	for _, sb := range staying[:2] {
		if _, err := h.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil {
			t.Fatal(err)
		}
	}
	if d := h.host(two).Duty; d != holdfast.HostDraining {
		t.Errorf("it is %s with one sandbox left", d)
	}
	if _, err := h.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: staying[2].ID}); err != nil {
		t.Fatal(err)
	}
	h.await("the empty host is CORDONED", func() bool { return h.host(two).Duty == holdfast.HostCordoned })
	if d := h.say(two, holdfast.HostRetired); d.Duty != holdfast.HostRetired {
		t.Errorf("retired: %+v", d)
	}
	h.create("after", holdfast.RestartNone)
	if got := h.on(two); len(got) != 0 {
		t.Errorf("on the retired host: %v", got)
	}
}

// contract: C5. A host that stands still for a while: its sandbox keeps its state
// and says so; then it is what it was.
func TestC5_AHostThatIsSilentForAWhile(t *testing.T) {
	h := serveHosts(t, 1)
	sb := h.create("r1", holdfast.RestartNone)
	agent := h.agents[h.order[0]]
	agent.Signal(syscall.SIGSTOP)
	defer agent.Signal(syscall.SIGCONT)
	h.await("the sandbox says that its host is unreachable", func() bool { return h.get(sb).HostUnreachable })
	if got := h.get(sb); got.State != holdfast.SandboxReady {
		t.Errorf("it is %s", got.State)
	}
	if o := h.on(h.order[0])[string(sb.ID)]; o.State != holdfast.InstanceUnknown {
		t.Errorf("its instance is %s", o.State)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	_, err := h.client.StartProcess(ctx, sb.ID, holdfast.StartProcess{Command: "true"})
	cancel()
	if code := holdfast.CodeOf(err); code != holdfast.Unavailable && code != holdfast.DeadlineExceeded {
		t.Errorf("a guest call: %v", err)
	}
	_, err = h.client.CreateSandbox(ctx, holdfast.CreateSandbox{RequestID: "r2", Environment: "base"})
	if err == nil {
		t.Error("a sandbox was placed on a silent host")
	}
	agent.Signal(syscall.SIGCONT)
	h.await("the host is reached again", func() bool {
		got := h.get(sb)
		return !got.HostUnreachable && got.State == holdfast.SandboxReady && h.host(h.order[0]).Health == holdfast.HostReady
	})
	h.await("guest calls work again", func() bool {
		_, err := h.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{Command: "true"})
		return err == nil
	})
	if got := h.get(sb); got.Incarnation != 1 {
		t.Errorf("incarnation %d", got.Incarnation)
	}
}

// contract: C5. A host that stands still for too long: what has a policy is made
// anew elsewhere, the rest is lost in the end, deletes are done; and when it goes
// on, it ends all of that before it gets work.
func TestC5_AHostThatIsLostAndComesBack(t *testing.T) {
	h := serveHosts(t, 2)
	one, two := h.order[0], h.order[1]
	h.say(two, holdfast.HostCordoned)
	fresh, none, gone := h.create("r1", holdfast.RestartFresh), h.create("r2", holdfast.RestartNone), h.create("r3", holdfast.RestartNone)
	h.say(two, holdfast.HostActive)
	agent := h.agents[one]
	agent.Signal(syscall.SIGSTOP)
	defer agent.Signal(syscall.SIGCONT)
	h.await("the host is lost", func() bool { return h.host(one).Health == holdfast.HostLost })
	h.await("the one with a policy is made anew", func() bool {
		got := h.get(fresh)
		return got.State == holdfast.SandboxReady && got.Incarnation == 2 && h.on(two)[string(fresh.ID)].State == holdfast.InstanceRunning
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	_, err := h.client.DeleteSandbox(ctx, holdfast.MutateSandbox{ID: gone.ID})
	cancel()
	if err == nil {
		t.Error("a delete on a silent host was confirmed")
	}
	h.await("the rest is lost, and the delete is done", func() bool {
		got := h.get(none)
		return got.State == holdfast.SandboxFailed && got.Failure.Reason == holdfast.ReasonInstanceLost && h.get(gone).State == holdfast.SandboxDeleted
	})
	if used := h.host(one).Used; used != (holdfast.Capacity{}) {
		t.Errorf("counted on the lost host: %+v", used)
	}
	agent.Signal(syscall.SIGCONT)
	h.await("the host is back", func() bool { return h.host(one).Health == holdfast.HostReady })
	if left := h.has(one); len(left) != 0 {
		t.Errorf("it has work, and still has %v", left)
	}
	h.say(two, holdfast.HostCordoned)
	if again := h.create("r4", holdfast.RestartNone); h.on(one)[string(again.ID)].State != holdfast.InstanceRunning {
		t.Error("it gets no work")
	}
	if got := h.get(fresh); got.State != holdfast.SandboxReady || got.Incarnation != 2 {
		t.Errorf("the one made anew: %s, incarnation %d", got.State, got.Incarnation)
	}
}

// A killed host whose instances lived in it: its sandboxes say that it is
// unreachable, and fail when it is back without them, and not before.
func TestC5_AKilledHostComesBackWithoutItsInstances(t *testing.T) {
	h := serveHosts(t, 2)
	one, two := h.order[0], h.order[1]
	h.say(two, holdfast.HostCordoned)
	sb := h.create("r1", holdfast.RestartNone)
	h.agents[one].Kill()
	h.await("the sandbox says that its host is unreachable", func() bool { return h.get(sb).HostUnreachable })
	if got := h.get(sb); got.State != holdfast.SandboxReady {
		t.Fatalf("T27: it is %s", got.State)
	}
	_, err := h.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{Command: "true"})
	wantCode(t, "a guest call", err, holdfast.Unavailable, holdfast.ReasonHostUnreachable)
	h.agents[one].Start()
	h.await("it is failed by the host's own word", func() bool { return h.get(sb).State == holdfast.SandboxFailed })
	h.say(two, holdfast.HostActive)
	h.create("r2", holdfast.RestartNone)
}

// A host's data directory that was copied: the copy is refused, in words that say
// what to do, and changes nothing about the host's instances.
func TestACopiedHostDirectoryIsRefused(t *testing.T) {
	h := serveHosts(t, 1)
	sb := h.create("r1", holdfast.RestartNone)
	copied := filepath.Join(h.dir, "copy")
	if err := copyDirectory(h.agents[h.order[0]].DataDir, copied); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	args := append([]string{"serve", "--data-dir", copied, "--listen", testenv.FreeAddress(t)}, h.flags...)
	out, err := exec.CommandContext(ctx, filepath.Join(testenv.Binaries(t), "holdfast"), args...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("the copy was not refused: %v\n%s", err, out)
	}
	if text := string(out); !strings.Contains(text, "serves as host "+string(h.order[0])+" already") || !strings.Contains(text, "empty it") {
		t.Errorf("it was told:\n%s", text)
	}
	if got := h.get(sb); got.State != holdfast.SandboxReady || got.HostUnreachable {
		t.Errorf("the sandbox is %s", got.State)
	}
	if _, err := h.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{Command: "true"}); err != nil {
		t.Errorf("a guest call: %v", err)
	}
}

// copyDirectory copies regular files, without those that only a running process means.
func copyDirectory(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), raw, 0o600)
	})
}
