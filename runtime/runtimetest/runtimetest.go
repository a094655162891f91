// Package runtimetest is the conformance suite of runtime drivers: what the host
// agent relies on, asked of each. A new driver joins with a Harness and the
// guest of package probe.
package runtimetest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/runtime/runtimetest/probe"
)

// Harness makes hosts to run the suite on.
type Harness struct {
	New func(t *testing.T) Host
}

// Host is a machine with a driver that is not open yet. Its guest is the probe;
// when it boots it makes the file "booted" in the spool and prints "guest: up".
type Host struct {
	Driver  runtime.Driver
	Restart func(t *testing.T) runtime.Driver // another driver on the same host; the old one is closed
	RootFS  string                            // of bundles

	// Census lists everything of the driver's instances that the host has:
	// processes, mounts, links, control groups, files.
	Census func(t *testing.T) []string
	// Half makes the remains of a Prepare that was cut off, one per step.
	Half map[string]func(t *testing.T, d runtime.Driver, b runtime.Bundle)
}

// Run runs the suite.
func Run(t *testing.T, harness Harness) {
	for name, test := range map[string]func(*testing.T, *bench){
		"EveryPhaseInOrder":                      phases,
		"EveryCallCanBeRepeated":                 repeats,
		"T49_StartBootsOnceAndOnlyWhatIsReady":   order,
		"T47_StopRemovesEverythingInEveryPhase":  stops,
		"StopAndPrepareWorkAfterEveryHalfStep":   halves,
		"C6_ANewDriverFindsWhatRuns":             restarts,
		"C4_ListSeesWhatNobodyRecorded":          lists,
		"WaitReturnsWhenTheGuestEnds":            waits,
		"ASuspendedGuestStandsStillAndComesBack": suspends,
		"T50_ACheckpointHasTheFilesAndNoSecret":  checkpoints,
		"E4_ForksAndTheirSourceAreIndependent":   forks,
		"ACheckpointLeavesNothingStandingStill":  standingStill,
		"ACheckpointIsOfWhatLives":               onlyTheLiving,
		"GuestsReachTheGateway":                  gateways,
		"ManyAtOnce":                             many,
		"ACancelledCallLeavesNothingHidden":      cancelled,
	} {
		t.Run(name, func(t *testing.T) {
			host := harness.New(t)
			b := &bench{t: t, Host: host, driver: host.Driver}
			b.open()
			before := b.Census(t)
			test(t, b)
			b.stopAll()
			if after := b.Census(t); !slices.Equal(before, after) {
				t.Errorf("after every Stop something is left:\n%s\nbefore there was:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
			}
		})
	}
}

// bench is one host with an open driver and a gateway that answers 204.
type bench struct {
	t *testing.T
	Host
	driver  runtime.Driver
	url     string
	ids     holdfast.IDs
	bundles []runtime.Bundle
	server  *http.Server
}

func (b *bench) open() {
	b.t.Helper()
	gateway, url, err := b.driver.Open(b.t.Context())
	b.must(err, "open")
	b.url = url
	b.server = &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
	}
	server, driver := b.server, b.driver
	done := make(chan error, 1)
	go func() { done <- server.Serve(gateway) }()
	b.t.Cleanup(func() {
		if err := errors.Join(server.Close(), driver.Close()); err != nil {
			b.t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			b.t.Error(err)
		}
	})
}

// restart replaces the driver as after a crash of the host agent.
func (b *bench) restart() {
	b.t.Helper()
	b.must(b.server.Close(), "closing the gateway")
	b.must(b.driver.Close(), "close")
	b.driver = b.Restart(b.t)
	b.open()
}

func (b *bench) must(err error, what string) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// bundle makes a new instance's, and stops it in the end.
func (b *bench) bundle() runtime.Bundle {
	b.t.Helper()
	id := holdfast.InstanceID(b.ids.New(holdfast.PrefixInstance))
	ref := holdfast.InstanceRef{Instance: id, Incarnation: 1}
	dir := filepath.Join(b.t.TempDir(), string(id))
	made := runtime.Bundle{
		Ref: ref, RootFS: b.RootFS, Directory: dir, Spool: filepath.Join(dir, "spool"),
		Spec:  holdfast.InstanceSpec{Image: "base", Egress: holdfast.EgressNone},
		Guest: holdfast.GuestConfig{Instance: id, Incarnation: 1, Secret: []byte(secret), CallbackURL: b.url},
	}
	b.must(os.MkdirAll(made.Spool, 0o700), "spool")
	b.bundles = append(b.bundles, made)
	return made
}

// secret is what every guest is told.
const secret = "nobody may read this"

func (b *bench) stopAll() {
	for _, each := range b.bundles {
		if err := b.driver.Stop(context.WithoutCancel(b.t.Context()), each.Ref); err != nil {
			b.t.Errorf("stop %v: %v", each.Ref, err)
		}
	}
}

// running prepares and starts a new instance and waits until it answers.
func (b *bench) running() runtime.Bundle {
	b.t.Helper()
	made := b.bundle()
	b.must(b.driver.Prepare(b.t.Context(), made), "prepare")
	b.must(b.driver.Start(b.t.Context(), made.Ref), "start")
	b.nonce(made)
	return made
}

func (b *bench) nonce(made runtime.Bundle) string {
	b.t.Helper()
	answer, err := b.ask(made, "nonce", 10*time.Second)
	b.must(err, "asking the guest")
	return answer
}

// ask sends one request to the guest, whose listener is there before it boots.
func (b *bench) ask(made runtime.Bundle, request string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(b.t.Context(), within)
	defer cancel()
	return probe.Ask(ctx, func(ctx context.Context) (net.Conn, error) { return b.driver.DialGuest(ctx, made.Ref) }, request)
}

func (b *bench) phase(made runtime.Bundle, want runtime.Phase) {
	b.t.Helper()
	status, err := b.driver.Inspect(b.t.Context(), made.Ref)
	b.must(err, "inspect")
	if status.Phase != want {
		b.t.Fatalf("the phase is %s (%s), want %s", status.Phase, status.Detail, want)
	}
	if status.Ref != made.Ref {
		b.t.Fatalf("the status is of %v, want %v", status.Ref, made.Ref)
	}
}

func (b *bench) booted(made runtime.Bundle) bool {
	b.t.Helper()
	_, err := os.Lstat(filepath.Join(made.Spool, "booted"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	return err == nil
}

// refused fails the test unless err is a refusal: final, so that the host agent
// does not try again for ever.
func (b *bench) refused(err error, what string) {
	b.t.Helper()
	var refusal *holdfast.Error
	if !errors.As(err, &refusal) || holdfast.Transient(err) {
		b.t.Fatalf("%s: got %v, want a refusal", what, err)
	}
}
