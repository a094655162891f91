package acceptance

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cluster"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/rpc"
)

// deployment is make cluster's, for a test.
type deployment struct {
	*cluster.Cluster
	t      *testing.T
	client *client.Client
}

// startCluster starts the seven processes; at the end of the test the sandboxes
// are deleted and the machine has to be what it was.
func startCluster(t *testing.T, config cluster.Config) *deployment {
	t.Helper()
	testenv.RequirePostgres(t)
	if config.Runtime == "" {
		testenv.RequireRoot(t)
	}
	config.Binaries, config.Directory = testenv.Binaries(t), t.TempDir()
	config.Flags = append([]string{"--sweep-every", "1s"}, config.Flags...)
	c, err := cluster.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.Empty(ctx); err != nil {
			t.Errorf("%v\n%s", err, c.Logs())
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		testenv.WantNothingLeft(t, testenv.Census{}, c.DataDirs()...)
	})
	d := &deployment{Cluster: c, t: t}
	d.client = d.dial(0)
	if !testenv.Eventually(20*time.Second, func() bool { return d.hosts() == len(c.Hosts) }) {
		t.Fatalf("%d hosts are known, want %d\n%s", d.hosts(), len(c.Hosts), c.Logs())
	}
	return d
}

func (d *deployment) dial(i int) *client.Client {
	d.t.Helper()
	c, err := d.Client(i)
	if err != nil {
		d.t.Fatal(err)
	}
	return c
}

// hosts is how many hosts the fleet can reach, as the audit says.
func (d *deployment) hosts() (n int) {
	matrix, err := d.client.GetMatrix(d.t.Context())
	if err != nil {
		return 0
	}
	for _, p := range matrix.Parties {
		if p.Party == "hostagent" && p.Reachable {
			n++
		}
	}
	return n
}

// The README's tour is the same on seven processes as on one.
func TestB1_TheREADMEsTourIsTrueOfTheCluster(t *testing.T) {
	d := startCluster(t, cluster.Config{})
	for _, o := range d.Orchestrators[1:] {
		walkTour(t, o.URL(), o.DataDir)
	}
}

// contract: C6: each of the seven is restarted in turn, under load. No call fails
// but with what a client repeats, nothing acknowledged is lost, nothing is done
// twice, and what runs in a sandbox runs on.
func TestC6_ARollingRestartOfEveryProcessLosesNothing(t *testing.T) {
	d := startCluster(t, cluster.Config{})
	sb, err := d.client.CreateSandbox(t.Context(), base("long"))
	if err != nil {
		t.Fatalf("create: %v\n%s", err, d.Logs())
	}
	p, err := d.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{RequestID: "p", Command: "sh",
		Args: []string{"-c", "while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 7"}})
	if err != nil {
		t.Fatal(err)
	}
	l := &load{t: t, ready: map[string]holdfast.SandboxID{}, failures: map[string]int{}}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	var workers sync.WaitGroup
	for w := range 2 {
		api := rpc.Dial(rpc.NewHTTPClient(), d.Orchestrators[w].URL(), d.Key)
		workers.Go(func() { l.work(ctx, api, w) })
	}
	l.await(ctx, 2)
	for _, process := range d.All() {
		if err := process.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		l.await(ctx, 2)
	}
	l.stopping.Store(true)
	workers.Wait()
	for failure, n := range l.failures {
		t.Logf("%d calls were answered %s", n, failure)
	}
	l.wantKept(d)
	if _, err := d.client.Exec(t.Context(), sb.ID, holdfast.StartProcess{Command: "touch", Args: []string{"/tmp/go"}}, client.ExecIO{}); err != nil {
		t.Fatalf("exec after it all: %v\n%s", err, d.Logs())
	}
	p, err = d.client.StreamProcessOutput(t.Context(), sb.ID, holdfast.ReadOutput{Process: p.ID, Follow: true}, func(holdfast.OutputChunk) error { return nil })
	if err != nil || p.ExitCode != 7 || p.Lost {
		t.Errorf("the process that ran all the while: %+v %v", p, err)
	}
}

// wantKept asks at every orchestrator for what was acknowledged: it is READY, on
// its first boot, and nothing of it is pending.
func (l *load) wantKept(d *deployment) {
	l.t.Helper()
	for i := range d.Orchestrators {
		api := d.dial(i)
		for requestID, id := range l.ready {
			sb, err := api.CreateSandbox(l.t.Context(), base(requestID))
			if err != nil || sb.ID != id || sb.State != holdfast.SandboxReady || sb.Incarnation != 1 || sb.Operation != nil {
				l.t.Errorf("%s was acknowledged as %s, and is %s %s of incarnation %d (%+v), %v", requestID, id, sb.ID, sb.State, sb.Incarnation, sb.Operation, err)
			}
		}
	}
	l.t.Logf("%d creates acknowledged, %d calls failed", l.done.Load(), l.failed.Load())
}
