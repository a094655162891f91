package runc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/runtime/runtimetest/probe"
)

// testBundle makes a fresh instance's.
func testBundle(t testing.TB, root string, egress holdfast.Egress) runtime.Bundle {
	t.Helper()
	id := holdfast.InstanceID(holdfast.IDs{}.New(holdfast.PrefixInstance))
	b := runtime.Bundle{
		Ref: holdfast.InstanceRef{Instance: id, Incarnation: 1}, RootFS: root, Spool: filepath.Join(t.TempDir(), "spool"),
		Spec:  holdfast.InstanceSpec{Egress: egress},
		Guest: holdfast.GuestConfig{Instance: id, Incarnation: 1},
	}
	if err := os.Mkdir(b.Spool, 0o700); err != nil {
		t.Fatal(err)
	}
	return b
}

func ask(t testing.TB, d *Driver, b runtime.Bundle, request string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	answer, err := probe.Ask(ctx, func(ctx context.Context) (net.Conn, error) { return d.DialGuest(ctx, b.Ref) }, request)
	if err != nil {
		t.Fatalf("asking the guest %q: %v", request, err)
	}
	return answer
}

// median of the durations; it sorts them.
func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkCreateToFirstAnswer splits the time from Prepare to the guest's first
// answer, and prints a bare "run" of the same bundle beside it.
func BenchmarkCreateToFirstAnswer(b *testing.B) {
	d := newTestDriver(b)
	root := testRoot(b)
	gateway, _, err := d.Open(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer gateway.Close() //nolint:errcheck // the process ends
	defer d.Close()       //nolint:errcheck // the process ends
	var prepare, start, answer, bare, stop []time.Duration
	for b.Loop() {
		made := testBundle(b, root, holdfast.EgressInternet)
		t0 := time.Now()
		if err := d.Prepare(b.Context(), made); err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		if err := d.Start(b.Context(), made.Ref); err != nil {
			b.Fatal(err)
		}
		t2 := time.Now()
		ask(b, d, made, "nonce")
		t3 := time.Now()
		took, err := bareRun(d, made)
		if err != nil {
			b.Fatal(err)
		}
		t4 := time.Now()
		if err := d.Stop(b.Context(), made.Ref); err != nil {
			b.Fatal(err)
		}
		stop = append(stop, time.Since(t4))
		prepare, start, answer, bare = append(prepare, t1.Sub(t0)), append(start, t2.Sub(t1)), append(answer, t3.Sub(t2)), append(bare, took)
	}
	report := func(name string, d time.Duration) { b.ReportMetric(float64(d.Microseconds())/1000, name) }
	ours := median(prepare) + median(start) + median(answer)
	report("ms-prepare", median(prepare))
	report("ms-start", median(start))
	report("ms-answer", median(answer))
	report("ms-stop", median(stop))
	report("ms-bare-run", median(bare))
	b.ReportMetric(float64(ours)/float64(median(bare)), "ratio")
}

// bareRun runs the bundle of an instance, on a fresh layer and without its
// network, with a command that prints and ends: what the OCI runtime takes by
// itself.
func bareRun(d *Driver, made runtime.Bundle) (took time.Duration, err error) {
	bare := files(d.files(made.Ref).path("bare"))
	for _, dir := range []string{string(bare), bare.upper(), bare.work(), bare.merged(), bare.run()} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return 0, err
		}
	}
	begin := time.Now()
	if err := mountRoot(made, bare); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unmountRoot(context.Background(), bare)) }()
	features, err := readHostFeatures()
	if err != nil {
		return 0, err
	}
	config := spec{bundle: made, files: bare, guest: d.config.Guest, cgroup: d.cgroups.path("bare"), host: features}.build()
	config.Process.Args = []string{"/bin/busybox", "echo", "hi"}
	data, err := json.Marshal(config)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(bare.bundle(), "config.json"), data, 0o600); err != nil {
		return 0, err
	}
	out, err := exec.Command(d.oci.binary, "--root", bare.path("root"), "run", "--bundle", bare.bundle(), "bare").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	return time.Since(begin), nil
}
