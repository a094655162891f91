package hostagent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
)

// posted is one request as a receiver got it.
type posted struct {
	path   string
	header http.Header
	body   []byte
}

// receiver is a fleet or an orchestrator that answers as told.
func receiver(t *testing.T, status func(posted) int) (string, chan posted) {
	t.Helper()
	got := make(chan posted, 256)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read: %v", err)
		}
		p := posted{r.URL.Path, r.Header, body}
		got <- p
		code := status(p)
		w.WriteHeader(code)
	}))
	t.Cleanup(server.Close)
	return server.URL, got
}

func (b *bench) next(from chan posted, path string) posted {
	b.t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for {
		select {
		case p := <-from:
			if strings.HasPrefix(p.path, path) {
				return p
			}
		case <-deadline.C:
			b.t.Fatalf("nothing was posted to %s", path)
		}
	}
}

func toFleet(url string) func(*bench) {
	return func(b *bench) {
		b.config.Fleet = FleetLink{
			URL: url, Token: "tok", Secret: func(h holdfast.HostID) []byte { return []byte("secret of " + h) },
			After: func(time.Duration) <-chan time.Time { c := make(chan time.Time, 1); c <- time.Time{}; return c },
		}
		b.config.Timing.Heartbeat = 5 * time.Millisecond
	}
}

// contract: B2, B5, B8
func TestB2_FactsGoToTheFleetSignedUnderOneIDForOneEvent(t *testing.T) {
	failures := 0
	url, got := receiver(t, func(p posted) int {
		if strings.HasPrefix(p.path, "/deliveries") && failures < 2 {
			failures++
			return http.StatusServiceUnavailable
		}
		return http.StatusNoContent
	})
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock(), toFleet(url))
	w.change(func() { w.readyFrom = false })
	b.begin(b.level(1, 3, holdfast.DesiredRunning)) // nobody waits for the answer
	b.becomes(testInstance, holdfast.InstanceBooting)
	w.change(func() { w.instances[refOf(1)].ready = true })
	var ids []string
	read := func() holdfast.Observation {
		p := b.next(got, "/deliveries/hosts/"+string(b.ID()))
		signed, err := delivery.Verify([]byte("secret of "+b.ID()), p.header, p.body)
		must(t, err, "verify")
		ids = append(ids, signed.ID)
		var envelope struct {
			Type string
			Data holdfast.Observation
		}
		must(t, json.Unmarshal(p.body, &envelope), "decode")
		if envelope.Type != string(holdfast.DeliveryObserved) {
			t.Errorf("kind %q", envelope.Type)
		}
		return envelope.Data
	}
	for range 3 { // two are lost
		if o := read(); o.State != holdfast.InstanceRunning || o.Generation != 3 || len(o.Ports) != 1 {
			t.Errorf("fact %+v", o)
		}
	}
	if ids[0] != ids[1] || ids[1] != ids[2] {
		t.Errorf("one event came under the ids %v", ids)
	}
	w.exit(refOf(1))
	if o := read(); o.State != holdfast.InstanceExited || o.Failure == nil || o.Failure.Reason != holdfast.ReasonExited || !strings.Contains(o.Failure.LogTail, "booting") {
		t.Errorf("fact %+v", o)
	}
	if ids[3] == ids[0] {
		t.Error("two events share an id")
	}
}

// What a waiting call is answered with needs no report; what the call left without
// does (contract: D1).
func TestD1_AFactIsReportedUnlessACallWasAnsweredWithIt(t *testing.T) {
	url, got := receiver(t, func(posted) int { return http.StatusNoContent })
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock(), toFleet(url))
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	m := b.find(testInstance)
	m.mu.Lock()
	if m.waiting != 0 || m.untold != 0 {
		t.Errorf("%d wait, %d is untold", m.waiting, m.untold)
	}
	m.mu.Unlock()
	w.change(func() { w.readyFrom = false })
	other := b.level(1, 1, holdfast.DesiredRunning)
	other.Instance = "in-00000000000000000000000002"
	b.machine(other.Instance) // what is looked at below is there from now on
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := b.EnsureInstance(ctx, other)
		gone <- err
	}()
	b.becomes(other.Instance, holdfast.InstanceBooting)
	hangUp()
	if err := <-gone; err == nil {
		t.Error("it was answered")
	}
	w.change(func() { w.instances[holdfast.InstanceRef{Instance: other.Instance, Incarnation: 1}].ready = true })
	p := b.next(got, "/deliveries/hosts/")
	var envelope struct{ Data holdfast.Observation }
	must(t, json.Unmarshal(p.body, &envelope), "decode")
	if envelope.Data.Instance != other.Instance { // the first one's was not sent before it
		t.Errorf("a report of %s, which a call was answered with", envelope.Data.Instance)
	}
}

// contract: B2
func TestB2_AFactsIDIsItsEventsWhoeverDerivesIt(t *testing.T) {
	fact := holdfast.Observation{Instance: testInstance, Incarnation: 1, Generation: 3, State: holdfast.InstanceRunning, At: time.Unix(1, 0)}
	again := fact
	again.At, again.BootID = time.Unix(2, 0), "another"
	if factID(fact) != factID(again) {
		t.Error("one event has two ids")
	}
	for name, change := range map[string]func(*holdfast.Observation){
		"state":       func(o *holdfast.Observation) { o.State = holdfast.InstanceExited },
		"generation":  func(o *holdfast.Observation) { o.Generation = 4 },
		"incarnation": func(o *holdfast.Observation) { o.Incarnation = 2 },
		"instance":    func(o *holdfast.Observation) { o.Instance = "in-00000000000000000000000002" },
	} {
		other := fact
		change(&other)
		if factID(fact) == factID(other) {
			t.Errorf("another %s is not another event", name)
		}
	}
}

// contract: C6: what ended while the agent was away is reported.
func TestC6_WhatEndedMeanwhileIsReported(t *testing.T) {
	url, got := receiver(t, func(posted) int { return http.StatusNoContent })
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock())
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	must(t, b.Close(), "close")
	w.exit(refOf(1))
	b = start(t, w, b.config.Directory, b.clock, toFleet(url))
	if p := b.next(got, "/deliveries"); !strings.Contains(string(p.body), `"EXITED"`) {
		t.Errorf("reported %s", p.body)
	}
}

// contract: B6
func TestB6_HeartbeatsRiseOverRestartsAndTheirFailureBlocksNothing(t *testing.T) {
	url, got := receiver(t, func(p posted) int {
		if p.path == "/heartbeat" {
			return http.StatusInternalServerError
		}
		return http.StatusNoContent
	})
	b := start(t, newWorld(), t.TempDir(), newClock(), toFleet(url))
	var last int64
	read := func() {
		p := b.next(got, "/heartbeat")
		var h holdfast.Heartbeat
		must(t, json.Unmarshal(p.body, &h), "decode")
		if p.header.Get("Authorization") != "Bearer tok" || h.Host != b.ID() || h.Cluster != "cl-1" || h.BootID != "boot-1" ||
			h.Capacity.CPUMillis == 0 || h.Capacity.MemoryBytes == 0 || h.Capacity.Instances == 0 || h.Runtime != "fake" {
			t.Errorf("heartbeat %+v", h)
		}
		if h.Sequence <= last {
			t.Errorf("sequence %d after %d", h.Sequence, last)
		}
		last = h.Sequence
	}
	read()
	read()
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	must(t, b.Close(), "close")
	for len(got) > 0 {
		<-got
	}
	b = start(t, b.driver.world, b.config.Directory, b.clock, toFleet(url))
	read()
}

// contract: C2, T46: a fleet that never answers delays no level.
func TestASilentFleetDelaysNothing(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	b := start(t, newWorld(), t.TempDir(), newClock(), toFleet(silent.URL))
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.ensure(b.level(1, 2, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
	must(t, b.Close(), "close")
}

func TestOneInstancesPanicDoesNotTakeTheAgentDown(t *testing.T) {
	other := holdfast.InstanceID("in-00000000000000000000000002")
	b := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) {
		b.driver.meet = func(_ context.Context, point string, ref holdfast.InstanceRef) error {
			if ref.Instance == testInstance && point == "before Prepare" {
				panic(errors.New("a bug"))
			}
			return nil
		}
	})
	b.refused(b.level(1, 1, holdfast.DesiredRunning), holdfast.ReasonRuntime)
	l := b.level(1, 1, holdfast.DesiredRunning)
	l.Instance = other
	b.ensure(l, holdfast.InstanceRunning)
}
