package fleet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/rpc/fleet"
	"github.com/holdfast-dev/holdfast/rpc/hop"
)

const (
	key   = "the cluster's key"
	host  = holdfast.HostID("ho-00000000000000000000000001")
	other = holdfast.HostID("ho-00000000000000000000000002")
)

// served is a fleet that answers what it is given.
type served struct {
	level    holdfast.Level
	copy     holdfast.CheckpointLevel
	err      error
	beat     holdfast.Heartbeat
	host     holdfast.HostID
	received []delivery.Received
}

func (s *served) observation() holdfast.Observation {
	return holdfast.Observation{Instance: "in-1", Incarnation: 2, Generation: 3, State: holdfast.InstanceExited, Host: host,
		Ports: []holdfast.Port{{Guest: 80, Address: "127.0.0.1:1"}}, Failure: &holdfast.Failure{Reason: holdfast.ReasonExited, LogTail: "bye\n"},
		At: time.Unix(5, 6000).UTC()}
}

func (s *served) EnsureInstance(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
	s.level = l
	return s.observation(), s.err
}

func (s *served) EnsureCheckpoint(_ context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	s.copy = l
	return s.copied(), s.err
}

func (s *served) copied() holdfast.CheckpointObservation {
	return holdfast.CheckpointObservation{Checkpoint: "ck-1", Instance: "in-1", State: holdfast.CopyFailed, Claim: 4, Added: 5, Progress: "half",
		Layers: []holdfast.Layer{{Key: "checkpoints/ck-1/4", Size: 6, SHA256: "ab"}}, At: time.Unix(5, 6000).UTC(),
		Failure: &holdfast.Failure{Reason: holdfast.ReasonNoSpace, Message: "full"}}
}

func (s *served) GetInstance(_ context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	o := s.observation()
	o.Instance = id
	return o, s.err
}

func (s *served) ListInstances(_ context.Context, after string, limit int) (holdfast.InstancePage, error) {
	return holdfast.InstancePage{Instances: make([]holdfast.Observation, limit), Next: after + "+"}, s.err
}

func (s *served) ListHosts(context.Context) ([]holdfast.Host, error) {
	return []holdfast.Host{{ID: host, Duty: holdfast.HostDraining, Used: holdfast.Capacity{Instances: 3}}}, s.err
}

func (s *served) SetHostDuty(_ context.Context, in holdfast.SetHostDuty) (holdfast.Host, error) {
	return holdfast.Host{ID: in.Host, Duty: in.Duty, DutyReason: in.Reason}, s.err
}

func (s *served) FindInstances(_ context.Context, in holdfast.FindInstances) (holdfast.InstancePage, error) {
	return holdfast.InstancePage{Instances: make([]holdfast.Observation, in.Limit), Next: string(in.After) + "+"}, s.err
}

func (s *served) Heartbeat(_ context.Context, b holdfast.Heartbeat) error {
	s.beat = b
	return s.err
}

func (s *served) Observed(_ context.Context, host holdfast.HostID, d delivery.Received) error {
	s.host, s.received = host, append(s.received, d)
	return s.err
}

func serve(t *testing.T) (*served, *httptest.Server) {
	t.Helper()
	svc := &served{}
	srv := httptest.NewServer(fleet.Handler(svc, hop.ClusterKey(key), fleet.Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}))
	t.Cleanup(srv.Close)
	return svc, srv
}

func dial(srv *httptest.Server, from string) holdfast.FleetService {
	return fleet.Dial(hop.Client{HTTP: srv.Client(), URL: srv.URL, Token: hop.ClusterKey(key).Token(from, hop.Fleet)})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestH2CarriesLevelsAndAnswersUnchanged(t *testing.T) {
	svc, srv := serve(t)
	client := dial(srv, hop.Orchestrator)
	level := holdfast.Level{Cluster: "cl", Instance: "in-1", Incarnation: 2, Generation: 3, Desired: holdfast.DesiredRunning,
		Spec:     &holdfast.InstanceSpec{Owner: "sb-1", Env: map[string]string{"A": "b"}, Resources: holdfast.Resources{MemoryBytes: 1 << 40}},
		MintedAt: time.Unix(1, 2000).UTC(), Wait: 10 * time.Second}
	got, err := client.EnsureInstance(t.Context(), level)
	check(t, err)
	if !reflect.DeepEqual(got, svc.observation()) || !reflect.DeepEqual(svc.level, level) {
		t.Errorf("sent %+v, answered %+v", svc.level, got)
	}
	if got, err = client.GetInstance(t.Context(), "in-7"); err != nil || got.Instance != "in-7" {
		t.Errorf("got %+v, %v", got, err)
	}
	if page, err := client.ListInstances(t.Context(), "in-7", 3); err != nil || len(page.Instances) != 3 || page.Next != "in-7+" {
		t.Errorf("listed %+v, %v", page, err)
	}
	if hosts, err := client.ListHosts(t.Context()); err != nil || len(hosts) != 1 || hosts[0].Used.Instances != 3 {
		t.Errorf("hosts %+v, %v", hosts, err)
	}
}

func TestH2CarriesACheckpointsLevelAndAnswerUnchanged(t *testing.T) {
	svc, srv := serve(t)
	level := holdfast.CheckpointLevel{Cluster: "cl", Epoch: 2, Checkpoint: "ck-1", Instance: "in-1", Incarnation: 2, Generation: 3, Claim: 4,
		Desired: holdfast.CheckpointPresent, MintedAt: time.Unix(1, 2000).UTC(), Wait: time.Second}
	got, err := dial(srv, hop.Orchestrator).EnsureCheckpoint(t.Context(), level)
	check(t, err)
	if !reflect.DeepEqual(got, svc.copied()) || !reflect.DeepEqual(svc.copy, level) {
		t.Errorf("sent %+v, answered %+v", svc.copy, got)
	}
}

func TestH2CarriesErrorsUnchanged(t *testing.T) {
	svc, srv := serve(t)
	want := holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity, "no host has room").On("in-1").Retry(time.Second).With("free_instances", "0")
	svc.err = want
	_, err := dial(srv, hop.Orchestrator).EnsureInstance(t.Context(), holdfast.Level{})
	if got := holdfast.AsError(err); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

// T32: no answer is not an answer.
func TestAnUnreachableFleetIsUnavailable(t *testing.T) {
	_, srv := serve(t)
	client := dial(srv, hop.Orchestrator)
	srv.Close()
	_, err := client.GetInstance(t.Context(), "in-1")
	if holdfast.CodeOf(err) != holdfast.Unavailable || holdfast.ReasonOf(err) != holdfast.ReasonUnreachable {
		t.Errorf("got %v", err)
	}
}

func TestOnlyTheOrchestratorGivesOrdersAndOnlyHostsBeat(t *testing.T) {
	svc, srv := serve(t)
	for _, from := range []string{hop.HostAgent, hop.Fleet, ""} {
		_, err := dial(srv, from).EnsureInstance(t.Context(), holdfast.Level{Generation: 9})
		if holdfast.CodeOf(err) != holdfast.Unauthenticated || svc.level.Generation != 0 {
			t.Errorf("%q gave an order: %v", from, err)
		}
	}
	if status := beat(t, srv, hop.Orchestrator); status != http.StatusUnauthorized || svc.beat.Sequence != 0 {
		t.Errorf("the orchestrator's heartbeat is answered %d", status)
	}
	if status := beat(t, srv, hop.HostAgent); status != http.StatusOK || svc.beat.Sequence != 4 {
		t.Errorf("a host's heartbeat is answered %d", status)
	}
}

func beat(t *testing.T, srv *httptest.Server, from string) int {
	t.Helper()
	body, err := json.Marshal(holdfast.Heartbeat{Host: host, Sequence: 4})
	check(t, err)
	return post(t, srv, "/heartbeat", http.Header{"Authorization": {"Bearer " + hop.ClusterKey(key).Token(from, hop.Fleet)}}, body)
}

func post(t *testing.T, srv *httptest.Server, path string, header http.Header, body []byte) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+path, bytes.NewReader(body))
	check(t, err)
	req.Header = header
	res, err := srv.Client().Do(req)
	check(t, err)
	check(t, res.Body.Close())
	return res.StatusCode
}

func sender(srv *httptest.Server, as, path holdfast.HostID) *delivery.Sender {
	return &delivery.Sender{Client: srv.Client(), Secret: fleet.HostSecret(hop.ClusterKey(key), as), URL: srv.URL + "/deliveries/hosts/" + string(path),
		Clock: func() time.Time { return time.Unix(1000, 0) }} // a host whose clock is wrong is honest
}

// contract: B7, B8. Signed by the host itself; what is not known yet comes again.
func TestH7TakesWhatTheHostItselfSigned(t *testing.T) {
	svc, srv := serve(t)
	m := delivery.Message{ID: "ev-1", Kind: string(holdfast.DeliveryObserved), Body: []byte(`{"instance":"in-1"}`)}
	check(t, sender(srv, host, host).Attempt(t.Context(), m))
	if len(svc.received) != 1 || svc.host != host || svc.received[0].ID != "ev-1" || string(svc.received[0].Body) != string(m.Body) {
		t.Fatalf("received %+v from %s", svc.received, svc.host)
	}
	for name, s := range map[string]*delivery.Sender{"another host": sender(srv, other, host), "no host": sender(srv, host, "in-1")} {
		var refused *delivery.RefusedError
		if err := s.Attempt(t.Context(), m); !errors.As(err, &refused) || refused.Status != http.StatusUnauthorized {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(svc.received) != 1 {
		t.Error("it was taken")
	}
	for want, err := range map[int]error{http.StatusServiceUnavailable: delivery.ErrNotYet, http.StatusInternalServerError: errors.New("disk")} {
		svc.err = err
		var status *delivery.StatusError
		if err := sender(srv, host, host).Attempt(t.Context(), m); !errors.As(err, &status) || status.Status != want {
			t.Errorf("%v, want %d", err, want)
		}
	}
}

func TestH7BoundsWhatItReads(t *testing.T) {
	svc, srv := serve(t)
	m := delivery.Message{ID: "ev-1", Kind: "k", Body: []byte(`"` + strings.Repeat("a", 300<<10) + `"`)}
	var refused *delivery.RefusedError
	if err := sender(srv, host, host).Attempt(t.Context(), m); !errors.As(err, &refused) || refused.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("got %v", err)
	}
	if len(svc.received) != 0 {
		t.Error("it was taken")
	}
}

// Operators' words and questions cross H2 whole, and come from the orchestrator alone.
func TestH2CarriesTheOperatorsWord(t *testing.T) {
	svc := &served{}
	srv := httptest.NewServer(fleet.Handler(svc, hop.ClusterKey(key), fleet.Options{}))
	defer srv.Close()
	by := func(from string) holdfast.OperatorService {
		return fleet.DialOperator(hop.Client{HTTP: srv.Client(), URL: srv.URL, Token: hop.ClusterKey(key).Token(from, hop.Fleet)})
	}
	h, err := by(hop.Orchestrator).SetHostDuty(t.Context(), holdfast.SetHostDuty{Host: host, Duty: holdfast.HostDraining, Reason: "disk"})
	if err != nil || h.ID != host || h.Duty != holdfast.HostDraining || h.DutyReason != "disk" {
		t.Errorf("%+v %v", h, err)
	}
	page, err := by(hop.Orchestrator).FindInstances(t.Context(), holdfast.FindInstances{After: "in-1", Limit: 3})
	if err != nil || len(page.Instances) != 3 || page.Next != "in-1+" {
		t.Errorf("%+v %v", page, err)
	}
	if _, err := by(hop.HostAgent).SetHostDuty(t.Context(), holdfast.SetHostDuty{Host: host}); holdfast.CodeOf(err) != holdfast.Unauthenticated {
		t.Errorf("a host speaks for operators: %v", err)
	}
	svc.err = holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no such host").On(string(host))
	if _, err := by(hop.Orchestrator).SetHostDuty(t.Context(), holdfast.SetHostDuty{Host: host}); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("%v", err)
	}
}
