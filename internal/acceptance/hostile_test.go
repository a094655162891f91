package acceptance

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// probe is where the probe is in a sandbox.
const probe = "/tmp/probe"

// builtProbe is the program that is hostile in a sandbox, built once.
var builtProbe = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "probe-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory of a test
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "probe"), "./testdata/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the probe: %w\n%s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "probe"))
})

// withProbe puts the probe into a sandbox.
func (s *system) withProbe(sb holdfast.Sandbox) holdfast.Sandbox {
	s.t.Helper()
	program, err := builtProbe()
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.client.Upload(s.t.Context(), sb.ID, holdfast.WriteFile{Path: probe, Mode: 0o755}, bytes.NewReader(program)); err != nil {
		s.t.Fatalf("upload the probe: %v", err)
	}
	return sb
}

// ask runs the probe and returns what it says.
func (s *system) ask(id holdfast.SandboxID, args ...string) string {
	s.t.Helper()
	var out bytes.Buffer
	p, err := s.client.Exec(s.t.Context(), id, holdfast.StartProcess{Command: probe, Args: args}, client.ExecIO{
		Output: func(c holdfast.OutputChunk) error { out.Write(c.Data); return nil }})
	if err != nil || p.ExitCode != 0 {
		s.t.Fatalf("probe %q: exit %d, %v: %s", args, p.ExitCode, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

// askEach runs the probe's verb on each argument, and returns what came of each.
func (s *system) askEach(id holdfast.SandboxID, verb string, args ...string) map[string]string {
	s.t.Helper()
	said := map[string]string{}
	for line := range strings.Lines(s.ask(id, append([]string{verb}, args...)...)) {
		arg, outcome, _ := strings.Cut(strings.TrimSpace(line), " ")
		said[arg] = outcome
	}
	for _, arg := range args {
		if said[arg] == "" {
			s.t.Errorf("the probe says nothing of %s %s: %v", verb, arg, said)
		}
	}
	return said
}

// contract: A14: what reaches the kernel below a sandbox is refused: mounts,
// devices, namespaces, keys, bpf, raw sockets, modules, clocks; and so is what
// would take over the agent in it.
func TestHostile_TheKernelBelowASandboxIsOutOfReach(t *testing.T) {
	s := serve(t)
	sb := s.withProbe(s.create("r1"))
	refused := []string{
		"mount", "bind", "remount", "umount", "pivot_root", "open_tree", "fsopen", "mknod", "mknod-char",
		"unshare-user", "unshare-mount", "clone-user", "setns", "chroot", "keyctl", "add_key", "request_key", "reboot",
		"sethostname", "settime", "packet", "raw", "vsock", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup",
		"init_module", "kexec_load", "open_by_handle_at", "swapon", "acct", "quotactl", "ptrace-init",
	}
	for name, got := range s.askEach(sb.ID, "call", append(refused, "init-memory", "clone3")...) {
		want := map[string]string{"init-memory": "refused EACCES", "clone3": "refused ENOSYS"}[name] // ENOSYS, so that C libraries take clone
		if name != "ok" && got != cmp.Or(want, "refused EPERM") {
			t.Errorf("%s: %s", name, got)
		}
	}
	targets := []string{
		"/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches",
		"/proc/sys/net/ipv4/ip_forward", "/sys/kernel/uevent_helper", "/sys/power/state", "/dev/mem", "/dev/kmsg",
		"/.holdfast/guest", "/proc/1/exe", "/run/holdfast/spool/console",
	}
	for path, got := range s.askEach(sb.ID, "write", targets...) {
		if path != "ok" && !strings.HasPrefix(got, "refused ") {
			t.Errorf("%s can be written: %s", path, got)
		}
	}
	s.wantOutput(sb.ID, "mkfifo /tmp/pipe && (echo through > /tmp/pipe &) && cat /tmp/pipe", "through") // which is no device
}

// crossing is two sandboxes of one server that listens on every address.
type crossing struct {
	*system
	a, b     holdfast.Sandbox
	addressB string         // of b's network
	gateway  netip.AddrPort // where guests call home
	api      string         // the API's port
	hosts    []string       // every address of the host
}

func cross(t *testing.T) crossing {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "--listen", address) // the later one counts
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	s.URL = "http://127.0.0.1:" + port
	s.client = s.dial()
	c := crossing{system: s, api: port, a: s.withProbe(s.create("a")), b: s.withProbe(s.create("b"))}
	c.addressB = strings.TrimPrefix(s.ask(c.b.ID, "address"), "ok ")
	c.gateway = s.gateway()
	all, err := net.InterfaceAddrs() // now, with the bridge
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.To4() == nil {
			continue
		}
		// Bridges of other servers come and go while this test runs.
		at, _ := netip.AddrFromSlice(n.IP.To4())
		if bridges := netip.MustParsePrefix("10.64.0.0/10"); !bridges.Contains(at) || at == c.gateway.Addr() {
			c.hosts = append(c.hosts, at.String())
		}
	}
	return c
}

// gateway is where this server's guests call home.
func (s *system) gateway() netip.AddrPort {
	s.t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.DataDir, "runtime", "network.json"))
	if err != nil {
		s.t.Fatal(err)
	}
	var plan struct {
		Subnet netip.Prefix
		Port   uint16
	}
	if err := json.Unmarshal(raw, &plan); err != nil || plan.Port == 0 {
		s.t.Fatalf("no gateway: %s %v", raw, err)
	}
	return netip.AddrPortFrom(plan.Subnet.Addr().Next(), plan.Port)
}

// acceptEverything listens on every address of the host until the test ends.
func acceptEverything(t *testing.T) (port string) {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close() //nolint:errcheck // the test's own
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// contract: B1: from inside there is no way to the API, whatever address the
// server listens on, to the host's other ports, or to a neighbour: only the
// gateway's port, and there only the two posts.
func TestHostile_AGuestReachesItsGatewayAndNothingElseOfItsHost(t *testing.T) {
	c := cross(t)
	other := acceptEverything(t)
	if _, err := c.client.StartProcess(t.Context(), c.b.ID, holdfast.StartProcess{Command: "sh", Args: []string{"-c", "while nc -l -p 7000; do :; done"}}); err != nil {
		t.Fatal(err)
	}
	neighbour := c.addressB + ":7000"
	if !testenv.Eventually(5*time.Second, func() bool { // from itself, so that it is known to listen
		return c.askEach(c.b.ID, "dial", neighbour)[neighbour] == "ok"
	}) {
		t.Fatal("the neighbour does not listen")
	}
	targets := []string{neighbour}
	for _, host := range c.hosts {
		for _, port := range []string{c.api, other} {
			conn, err := net.DialTimeout("tcp4", net.JoinHostPort(host, port), 5*time.Second)
			if err != nil {
				t.Fatalf("the host itself does not reach %s:%s, which proves nothing about guests: %v", host, port, err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
		targets = append(targets, net.JoinHostPort(host, c.api), net.JoinHostPort(host, other))
	}
	for address, got := range c.askEach(c.a.ID, "dial", append(targets, c.gateway.String())...) {
		if want := address == c.gateway.String() || address == "ok"; want == strings.HasPrefix(got, "refused") {
			t.Errorf("a guest dials %s: %s (the API is at :%s, the neighbour at %s, the gateway at %s)", address, got, c.api, neighbour, c.gateway)
		}
	}
	for _, call := range []string{
		"GET /", "GET /deliveries", "PUT /deliveries", "POST /", "POST /deliveries/", "POST /deliveries/instances", "POST /deliveries/fleet",
		"POST /heartbeat", "GET /metrics", "GET /healthz", "POST /../deliveries/fleet", "POST //deliveries",
		"POST /holdfast.v1.SandboxService/ListSandboxes", "OPTIONS /",
	} {
		method, path, _ := strings.Cut(call, " ")
		if got := c.ask(c.a.ID, "post", method, "http://"+c.gateway.String()+path, "{}"); !strings.HasPrefix(got, "ok 404 ") {
			t.Errorf("%s at the gateway: %s", call, got)
		}
	}
}

// contract: B3, B7, B8: a guest that posts as another, as nobody, unsigned or
// too much is refused, by a 4xx that it does not retry, and nothing changes.
func TestB8_AGuestCannotReportForAnother(t *testing.T) {
	c := cross(t)
	as := func(instance holdfast.InstanceID, incarnation string) []string {
		return []string{"Content-Type:application/json", holdfast.HeaderInstance + ":" + string(instance), holdfast.HeaderIncarnation + ":" + incarnation,
			"webhook-id:forged-" + string(instance), fmt.Sprint("webhook-timestamp:", time.Now().Unix()), "webhook-signature:v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="}
	}
	failed := func(about holdfast.InstanceID) string {
		return fmt.Sprintf(`{"type":"instance.failed","data":{"instance":%q,"incarnation":1,"failure":{"reason":"SETUP_FAILED","message":"forged"}}}`, about)
	}
	before := map[holdfast.SandboxID]holdfast.Sandbox{c.a.ID: c.get(c.a.ID), c.b.ID: c.get(c.b.ID)}
	mine, other := c.a.Instance, c.b.Instance
	for _, post := range []struct {
		name, path, body string
		headers          []string
		status           string
	}{
		{"another's report, as another", "/deliveries", failed(other), as(other, "1"), "403"},
		{"another's report, as itself", "/deliveries", failed(other), as(mine, "1"), "401"},
		{"its own report, not signed", "/deliveries", failed(mine), as(mine, "1")[:3], "401"},
		{"its own report, badly signed", "/deliveries", failed(mine), as(mine, "1"), "401"},
		{"of an incarnation that never was", "/deliveries", failed(mine), as(mine, "2"), "403"},
		{"of no incarnation", "/deliveries", failed(mine), as(mine, "one"), "400"},
		{"as nobody", "/deliveries", failed(mine), nil, "400"},
		{"as one who never was", "/deliveries", failed(mine), as("in-00000000000000000000000000", "1"), "403"},
		{"too much", "/deliveries", "bytes:70000", as(mine, "1"), "413"},
		{"too much telemetry", "/telemetry", "bytes:70000", as(mine, "1"), "413"},
		{"another's telemetry", "/telemetry", "{}", as(other, "1"), "403"},
	} {
		args := append([]string{"post", "POST", "http://" + c.gateway.String() + post.path, post.body}, post.headers...)
		if got := c.ask(c.a.ID, args...); !strings.HasPrefix(got, "ok "+post.status+" ") {
			t.Errorf("%s: %s, want %s", post.name, got, post.status)
		}
	}
	for id, was := range before {
		is := c.get(id)
		if is.State != was.State || is.Generation != was.Generation || !is.UpdatedAt.Equal(was.UpdatedAt) || is.Failure != nil {
			t.Errorf("forged reports changed %s: %+v, was %+v", id, is, was)
		}
		c.wantOutput(id, "echo well", "well")
	}
}

// spoolAttack is what the root of a sandbox does to $P, where the spool keeps a
// process that wrote "original"; $H is a file of the host.
type spoolAttack struct {
	name, script string
	reason       holdfast.Reason // of what reading the process says; "" where it still reads
}

func spoolAttacks() []spoolAttack {
	const out = "$P/stdout.00000000000000000000"
	return []spoolAttack{
		{"a link to the host instead of the output", "rm " + out + "; ln -s $H " + out, ""},
		{"a link to /etc/passwd", "rm " + out + "; ln -s /etc/passwd " + out, ""},
		{"a pipe instead of the output", "rm " + out + "; mkfifo " + out, ""},
		{"a directory instead of the output", "rm " + out + "; mkdir " + out, ""},
		{"a socket instead of the output", "rm " + out + "; " + probe + " socket " + out, ""},
		{"an output of 1 TiB", probe + " sparse " + out, ""},
		{"the last offset there is", "echo x > $P/stdout.09223372036854775807", ""},
		{"ten thousand segments", "seq -f \"$P/stdout.%020.0f\" 1 10000 | xargs touch", ""},
		{"a record that is a link to the host", "rm $P/record.json; ln -s $H $P/record.json", holdfast.ReasonStorage},
		{"a record that is a pipe", "rm $P/record.json; mkfifo $P/record.json", holdfast.ReasonStorage},
		{"a record of garbage", "echo '}{' > $P/record.json", holdfast.ReasonStorage},
		{"a record of 1 TiB", probe + " sparse $P/record.json", holdfast.ReasonStorage},
		{"a record of another", "sed -i 's/\"id\":\"pr-[^\"]*\"/\"id\":\"pr-00000000000000000000000000\"/' $P/record.json", holdfast.ReasonStorage},
		{"impossible sizes", "sed -i 's/\"stdout_size\":[0-9]*/\"stdout_size\":9223372036854775807/' $P/record.json", holdfast.ReasonStorage},
		{"negative sizes", "sed -i 's/\"stdout_size\":[0-9]*/\"stdout_size\":-5/' $P/record.json", ""},
		{"no record", "rm $P/record.json", holdfast.ReasonUnknown},
		{"a link to the host instead of the directory", "rm -r $P; ln -s $(dirname $H) $P", holdfast.ReasonUnknown},
		{"a link to itself instead of the directory", "rm -r $P; ln -s $P $P", holdfast.ReasonUnknown},
		{"a file instead of the directory", "rm -r $P; echo > $P", holdfast.ReasonUnknown},
		{"nothing left of any process", "rm -rf /run/holdfast/spool/pr-*", holdfast.ReasonUnknown},
	}
}

// contract: A14: whatever the root of a sandbox puts where its output is kept,
// no file of the host is read or written, no read hangs or takes the host's
// memory, what was destroyed says so, and everyone else's work goes on.
func TestHostile_TheSpoolLeadsNowhere(t *testing.T) {
	t.Setenv("GOGC", "100") // what is held is measured, not how much garbage a server lets lie
	s := serve(t)
	const secret = "HOSTFILE"                             // no longer than what the process wrote: no more of it is read
	hostFile := filepath.Join(t.TempDir(), "record.json") // as it would be named behind a link
	if err := os.WriteFile(hostFile, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	victim, neighbour := s.withProbe(s.create("victim")), s.create("neighbour")
	before := s.memory("VmRSS")
	for _, attack := range spoolAttacks() {
		p, err := s.client.Exec(t.Context(), victim.ID, holdfast.StartProcess{Command: "echo", Args: []string{"original"}}, client.ExecIO{})
		if err != nil {
			t.Fatalf("before %s: %v", attack.name, err)
		}
		script := strings.NewReplacer("$P", "/run/holdfast/spool/"+string(p.ID), "$H", hostFile).Replace(attack.script)
		// Its own record may be what it destroys, so it is not waited for by it.
		if _, err := s.client.StartProcess(t.Context(), victim.ID, holdfast.StartProcess{Command: "sh", Args: []string{"-c", script + "; touch /tmp/done"}}); err != nil {
			t.Fatalf("%s: %v", attack.name, err)
		}
		if !testenv.Eventually(10*time.Second, func() bool { return s.client.RemoveFile(t.Context(), victim.ID, "/tmp/done", false) == nil }) {
			t.Fatalf("%s: the attack did not come to its end", attack.name)
		}
		s.readAttacked(victim.ID, p.ID, attack, secret)
		s.wantOutput(neighbour.ID, "echo well", "well")
	}
	if grew := s.memory("VmHWM") - before; grew > 64<<20 {
		t.Errorf("reading a hostile spool took %d MiB", grew>>20)
	}
	s.wantOutput(victim.ID, "echo still here", "still here")
	if got, err := s.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: victim.ID}); err != nil || got.State != holdfast.SandboxDeleted {
		t.Errorf("delete: %s %v", got.State, err)
	}
	if raw, err := os.ReadFile(hostFile); err != nil || string(raw) != secret {
		t.Errorf("a file of the host is now %q, %v", raw, err)
	}
}

// readAttacked reads the process that was attacked, in every way there is.
func (s *system) readAttacked(id holdfast.SandboxID, process holdfast.ProcessID, attack spoolAttack, secret string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	p, err := s.client.GetProcess(ctx, id, process)
	if holdfast.ReasonOf(err) != attack.reason || strings.Contains(fmt.Sprint(p, err), secret) {
		s.t.Errorf("%s: get: %+v, %v (%s), want %q", attack.name, p, err, holdfast.ReasonOf(err), attack.reason)
	}
	all, err := s.client.ListProcesses(ctx, id)
	if err != nil || strings.Contains(fmt.Sprint(all), secret) {
		s.t.Errorf("%s: list: %+v, %v", attack.name, all, err)
	}
	for _, follow := range []bool{false, true} {
		_, err = s.client.StreamProcessOutput(ctx, id, holdfast.ReadOutput{Process: process, Follow: follow}, func(c holdfast.OutputChunk) error {
			if bytes.Contains(c.Data, []byte(secret)) || bytes.Contains(c.Data, []byte("root:x:0")) {
				return fmt.Errorf("the output is a file of the host: %.80q", c.Data)
			}
			return nil
		})
		if holdfast.ReasonOf(err) != attack.reason {
			s.t.Errorf("%s: output, follow %t: %v (%s), want %q", attack.name, follow, err, holdfast.ReasonOf(err), attack.reason)
		}
	}
}

// fullDisk gives a test's data directory a disk of its own, of so many MiB.
func fullDisk(t *testing.T, mib int) {
	t.Helper()
	testenv.RequireRoot(t)
	testenv.Binaries(t) // on the big disk
	dir, err := os.MkdirTemp("", "disk-*")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
}

// contract: A8, A14: a sandbox that fills its host's disk is told so, as are the
// others, nothing that was recorded is lost, and making room ends it.
func TestHostile_AFullDiskSaysSoAndIsSurvived(t *testing.T) {
	if _, err := builtProbe(); err != nil {
		t.Fatal(err)
	}
	fullDisk(t, 192)
	s := serve(t)
	filler, neighbour := s.create("filler"), s.create("neighbour")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	filled, err := s.client.Exec(ctx, filler.ID, holdfast.StartProcess{Command: "dd", Args: []string{"if=/dev/zero", "of=/run/holdfast/spool/fill", "bs=1M"}}, client.ExecIO{})
	if err != nil || filled.ExitCode != 1 {
		t.Fatalf("the end of what filled the disk is not told: %+v %v", filled, err)
	}
	c := s.dial(client.WithOverallTimeout(2 * time.Second))
	_, err = c.StartProcess(ctx, neighbour.ID, holdfast.StartProcess{Command: "true"})
	if reason := holdfast.ReasonOf(err); reason != holdfast.ReasonStorage && reason != holdfast.ReasonNoSpace {
		t.Errorf("a start on a full disk: %v", err)
	}
	_, err = c.Upload(ctx, neighbour.ID, holdfast.WriteFile{Path: "/x"}, bytes.NewReader(make([]byte, 1<<20)))
	wantCode(t, "an upload to a full disk", err, holdfast.FailedPrecondition, holdfast.ReasonNoSpace)
	_, err = c.CreateSandbox(ctx, holdfast.CreateSandbox{RequestID: "third", Environment: "base"})
	wantCode(t, "a create on a full disk", err, holdfast.Unavailable, holdfast.ReasonStorage)
	if got := s.get(neighbour.ID).State; got != holdfast.SandboxReady {
		t.Errorf("the neighbour is %s", got)
	}
	if err := s.client.RemoveFile(ctx, filler.ID, "/run/holdfast/spool/fill", false); err != nil {
		t.Errorf("making room: %v", err)
	}
	s.wantOutput(neighbour.ID, "echo well", "well")
	s.create("third")
	s.wantOutput(filler.ID, "echo well", "well")
}
