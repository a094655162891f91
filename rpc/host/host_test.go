package host_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc/hop"
	"github.com/holdfast-dev/holdfast/rpc/host"
)

const (
	known   = holdfast.InstanceID("in-00000000000000000000000001")
	missing = holdfast.InstanceID("in-00000000000000000000000002")
)

// agent answers what it was asked.
type agent struct{ level holdfast.Level }

func (a *agent) EnsureInstance(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
	a.level = l
	if l.Generation == 1 {
		return holdfast.Observation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleGeneration, "too late").
			On(string(l.Instance)).With("seen", "7")
	}
	return holdfast.Observation{Instance: l.Instance, Incarnation: l.Incarnation, Generation: l.Generation, State: holdfast.InstanceRunning}, nil
}

func (a *agent) EnsureCheckpoint(_ context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	return holdfast.CheckpointObservation{Checkpoint: l.Checkpoint, Instance: l.Instance, State: holdfast.CopyPresent, Claim: l.Claim,
		Layers: []holdfast.Layer{{Key: "k", Size: 1, SHA256: "ab"}}}, nil
}

func (a *agent) GetInstance(_ context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	if id != known {
		return holdfast.Observation{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "never seen").On(string(id))
	}
	return holdfast.Observation{Instance: id, State: holdfast.InstanceAbsent}, nil
}

func (a *agent) ListInstances(context.Context) ([]holdfast.Observation, error) {
	return []holdfast.Observation{{Instance: known}}, nil
}

func (a *agent) Identity(context.Context) (holdfast.HostIdentity, error) {
	return holdfast.HostIdentity{Host: "ho-1", Life: "hl-1"}, nil
}

// processes is a guest whose one process never ends.
type processes struct {
	holdfast.GuestProcesses
	hungUp chan struct{}
}

func (p processes) StreamProcessOutput(ctx context.Context, _ holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	if err := yield(holdfast.OutputChunk{Stream: holdfast.Stdout, Data: []byte{0, 255, '\n'}}); err != nil {
		return holdfast.Process{}, err
	}
	<-ctx.Done()
	close(p.hungUp)
	return holdfast.Process{}, ctx.Err()
}

func serve(t *testing.T) (url string, key hop.ClusterKey, a *agent, hungUp chan struct{}) {
	t.Helper()
	key, a, hungUp = hop.ClusterKey("key"), &agent{}, make(chan struct{})
	find := func(_ context.Context, ref holdfast.InstanceRef) (holdfast.Guest, error) {
		if ref.Incarnation != 2 {
			return holdfast.Guest{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation, "an older boot").On(string(ref.Instance))
		}
		return holdfast.Guest{
			Processes: processes{hungUp: hungUp},
			Status: func(context.Context) (holdfast.GuestStatus, error) {
				return holdfast.GuestStatus{Instance: ref.Instance, Incarnation: ref.Incarnation, Ready: true}, nil
			},
		}, nil
	}
	server := httptest.NewServer(host.Handler(a, find, key))
	t.Cleanup(server.Close)
	return server.URL, key, a, hungUp
}

func from(url string, key hop.ClusterKey, party string) hop.Client {
	return hop.Client{HTTP: http.DefaultClient, URL: url, Token: key.Token(party, hop.HostAgent)}
}

func TestALevelCrossesTheHopWhole(t *testing.T) {
	url, key, a, _ := serve(t)
	svc := host.Dial(from(url, key, hop.Fleet))
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	in := holdfast.Level{
		Cluster: "cl-1", Instance: known, Incarnation: 2, Generation: 8, Desired: holdfast.DesiredRunning,
		Spec: &holdfast.InstanceSpec{Owner: "sb-1", Image: "base", Env: map[string]string{"A": "1"}}, MintedAt: at, PlacedAt: at, Wait: 3 * time.Second,
	}
	o, err := svc.EnsureInstance(t.Context(), in)
	if err != nil || !o.Reached(in) {
		t.Fatalf("%+v, %v", o, err)
	}
	if a.level.Spec == nil || a.level.Spec.Env["A"] != "1" || !a.level.PlacedAt.Equal(at) || a.level.Wait != in.Wait || a.level.Cluster != "cl-1" {
		t.Errorf("arrived as %+v", a.level)
	}
	in.Generation = 1
	_, err = svc.EnsureInstance(t.Context(), in)
	if e := holdfast.AsError(err); e.Code != holdfast.FailedPrecondition || e.Reason != holdfast.ReasonStaleGeneration || e.Details["seen"] != "7" {
		t.Errorf("a refusal came as %+v", e)
	}
}

func TestACheckpointsLevelCrossesTheHopFromTheFleetAlone(t *testing.T) {
	url, key, _, _ := serve(t)
	level := holdfast.CheckpointLevel{Checkpoint: "ck-1", Instance: known, Claim: 3, Desired: holdfast.CheckpointPresent}
	o, err := host.Dial(from(url, key, hop.Fleet)).EnsureCheckpoint(t.Context(), level)
	if err != nil || o.Checkpoint != "ck-1" || o.Claim != 3 || len(o.Layers) != 1 || o.Layers[0].SHA256 != "ab" {
		t.Errorf("answered %+v, %v", o, err)
	}
	if _, err := host.Dial(from(url, key, hop.Orchestrator)).EnsureCheckpoint(t.Context(), level); holdfast.CodeOf(err) != holdfast.Unauthenticated {
		t.Errorf("the orchestrator gave a host an order: %v", err)
	}
}

// contract: D1; T32: NOT_FOUND is the host's word, silence is not.
func TestT32_NeverSeenIsToldFromUnreachable(t *testing.T) {
	url, key, _, _ := serve(t)
	svc := host.Dial(from(url, key, hop.Fleet))
	if o, err := svc.GetInstance(t.Context(), known); err != nil || o.State != holdfast.InstanceAbsent {
		t.Errorf("a tombstone: %+v, %v", o, err)
	}
	if _, err := svc.GetInstance(t.Context(), missing); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("never seen: %v", err)
	}
	if list, err := svc.ListInstances(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	elsewhere := host.Dial(from(gone.URL, key, hop.Fleet))
	if _, err := elsewhere.GetInstance(t.Context(), known); holdfast.CodeOf(err) == holdfast.NotFound {
		t.Errorf("another server's 404 was taken for the host's word: %v", err)
	}
	gone.Close()
	if _, err := elsewhere.GetInstance(t.Context(), known); holdfast.CodeOf(err) != holdfast.Unavailable {
		t.Errorf("no server: %v", err)
	}
}

func TestEachPartyReachesWhatItNeedsAndNothingElse(t *testing.T) {
	url, key, _, _ := serve(t)
	calls := map[string]func(hop.Client) error{
		"ensure": func(c hop.Client) error {
			_, err := host.Dial(c).EnsureInstance(t.Context(), holdfast.Level{Instance: known, Generation: 2})
			return err
		},
		"get":  func(c hop.Client) error { _, err := host.Dial(c).GetInstance(t.Context(), known); return err },
		"list": func(c hop.Client) error { _, err := host.Dial(c).ListInstances(t.Context()); return err },
		"identity": func(c hop.Client) error {
			who, err := host.Dial(c).Identity(t.Context())
			if err == nil && who != (holdfast.HostIdentity{Host: "ho-1", Life: "hl-1"}) {
				t.Errorf("it says %+v", who)
			}
			return err
		},
		"audit": func(c hop.Client) error { _, err := host.Dial(c).Audit(t.Context()); return err },
		"guest": func(c hop.Client) error {
			_, err := host.DialGuest(c, holdfast.InstanceRef{Instance: known, Incarnation: 2}).Status(t.Context())
			return err
		},
	}
	allowed := map[string]string{hop.Fleet: "ensure get list audit identity", hop.Orchestrator: "get list guest", hop.HostAgent: ""}
	for party, may := range allowed {
		for name, call := range calls {
			want := holdfast.Code("")
			if !strings.Contains(may, name) {
				want = holdfast.Unauthenticated
			}
			if got := holdfast.CodeOf(call(from(url, key, party))); got != want {
				t.Errorf("%s calls %s: %q, want %q", party, name, got, want)
			}
			if got := holdfast.CodeOf(call(from(url, hop.ClusterKey("another"), party))); got != holdfast.Unauthenticated {
				t.Errorf("%s of another cluster calls %s: %q", party, name, got)
			}
		}
	}
}

func TestAGuestIsReachedByItsBoot(t *testing.T) {
	url, key, _, hungUp := serve(t)
	c := from(url, key, hop.Orchestrator)
	g := host.DialGuest(c, holdfast.InstanceRef{Instance: known, Incarnation: 2})
	if s, err := g.Status(t.Context()); err != nil || s.Instance != known || s.Incarnation != 2 {
		t.Errorf("status %+v, %v", s, err)
	}
	stale := host.DialGuest(c, holdfast.InstanceRef{Instance: known, Incarnation: 1})
	if _, err := stale.Status(t.Context()); holdfast.ReasonOf(err) != holdfast.ReasonStaleIncarnation {
		t.Errorf("an older boot: %v", err)
	}
	// What it lacks is no INTERNAL error.
	if err := g.Log(t.Context(), 0, false, nil); holdfast.CodeOf(err) != holdfast.Unimplemented {
		t.Errorf("log: %v", err)
	}

	// A client that hangs up in the middle ends the stream at the host.
	enough := errors.New("enough")
	_, err := g.Processes.StreamProcessOutput(t.Context(), holdfast.ReadOutput{}, func(chunk holdfast.OutputChunk) error {
		if string(chunk.Data) != "\x00\xff\n" {
			t.Errorf("chunk %q", chunk.Data)
		}
		return enough
	})
	if !errors.Is(err, enough) {
		t.Errorf("stream: %v", err)
	}
	select {
	case <-hungUp:
	case <-time.After(10 * time.Second):
		t.Error("the host streams on for nobody")
	}
}

func TestCraftedPathsReachNoGuest(t *testing.T) {
	url, key, _, _ := serve(t)
	c := from(url, key, hop.Orchestrator)
	for _, path := range []string{
		"/host/guest/" + string(known) + "/02/status", "/host/guest/" + string(known) + "/0/status", "/host/guest/" + string(known) + "/+2/status",
		"/host/guest/" + string(known) + "/99999999999999999999/status", "/host/guest/..%2f..%2fetc/2/status", "/host/guest/sb-1/2/status",
	} {
		_, err := hop.Call[struct{}, holdfast.GuestStatus](t.Context(), c, path, struct{}{})
		if holdfast.CodeOf(err) != holdfast.InvalidArgument {
			t.Errorf("%s: %v", path, err)
		}
	}
}
