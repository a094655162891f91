package guestagent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
)

// Telemetry is the body of guest.telemetry (H6).
type Telemetry struct {
	Instance    holdfast.InstanceID `json:"instance"`
	Incarnation int64               `json:"incarnation"`
	MemoryBytes int64               `json:"memory_bytes"` // in use by the instance; 0: not known
	Processes   int                 `json:"processes"`    // running ones that were started through the agent
	At          time.Time           `json:"at"`
}

// callHome delivers ready or failed within the budget of contract: B5. Its id is
// the boot's, so that it is one event however often it is sent (B2).
func (a *Agent) callHome(ctx context.Context, failure *holdfast.Failure) error {
	boot := a.config.Guest
	if boot.CallbackURL == "" {
		return nil
	}
	kind := holdfast.DeliveryReady
	if failure != nil {
		kind = holdfast.DeliveryFailed
	}
	body, err := json.Marshal(holdfast.GuestReport{Instance: boot.Instance, Incarnation: boot.Incarnation, Failure: failure})
	if err != nil {
		return fmt.Errorf("call home: %w", err)
	}
	id := delivery.DeriveID(string(kind), string(boot.Instance), boot.Incarnation, "boot")
	sender := delivery.Sender{Client: a.client(a.config.HTTP), Secret: boot.Secret, URL: boot.CallbackURL + "/deliveries", Clock: a.config.Clock, Jitter: a.config.Jitter}
	if err := sender.Send(ctx, delivery.Message{ID: id, Kind: string(kind), Body: body}); err != nil {
		return fmt.Errorf("call home: %w", err)
	}
	return nil
}

// sendTelemetry is fire and forget: its own client, its own pace (contract: B6).
func (a *Agent) sendTelemetry(ctx context.Context) {
	boot := a.config.Guest
	sender := delivery.Sender{Client: a.client(a.config.Telemetry), Secret: boot.Secret, URL: boot.CallbackURL + "/telemetry", Clock: a.config.Clock}
	telemetry := delivery.NewTelemetry(delivery.TelemetryConfig{Send: sender.Attempt, Capacity: 4})
	var worker sync.WaitGroup
	defer worker.Wait()
	first := true
	ticker := time.NewTicker(a.config.TelemetryEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		body, err := json.Marshal(a.measure())
		if err != nil {
			a.config.Log.Error("encode telemetry", "error", err)
			continue
		}
		if first {
			worker.Go(func() { telemetry.Run(ctx) })
			first = false
		}
		telemetry.Offer(delivery.Message{ID: delivery.NewID(a.config.Clock(), a.config.IDs.Rand), Kind: string(holdfast.TelemetryGuest), Body: body})
	}
}

func (a *Agent) measure() Telemetry {
	a.processes.mu.Lock()
	running := a.processes.running
	a.processes.mu.Unlock()
	return Telemetry{
		Instance: a.config.Guest.Instance, Incarnation: a.config.Guest.Incarnation,
		MemoryBytes: memoryInUse(), Processes: running, At: a.config.Clock().UTC(),
	}
}

// memoryInUse asks the instance's own control group, in either version.
func memoryInUse() int64 {
	for _, path := range []string{"/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes"} {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64); err == nil {
			return n
		}
	}
	return 0
}

// client names this boot on every request.
func (a *Agent) client(base *http.Client) *http.Client {
	c := http.Client{}
	if base != nil {
		c = *base
	}
	next := c.Transport
	if next == nil {
		// Not the default one: its proxy settings come from the environment, and
		// the two kinds of deliveries must not share connections.
		next = &http.Transport{MaxIdleConns: 1, IdleConnTimeout: time.Minute}
	}
	c.Transport = named{next: next, instance: string(a.config.Guest.Instance), incarnation: strconv.FormatInt(a.config.Guest.Incarnation, 10)}
	return &c
}

type named struct {
	next                  http.RoundTripper
	instance, incarnation string
}

func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(holdfast.HeaderInstance, n.instance)
	r.Header.Set(holdfast.HeaderIncarnation, n.incarnation)
	return n.next.RoundTrip(r)
}
