package hostagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
)

const (
	sequenceStart = 1
	// reportsAtOnce bounds the facts on their way to the fleet.
	reportsAtOnce = 16
	// beatTimeout bounds one heartbeat.
	beatTimeout = 5 * time.Second
	// introduceWait bounds how long a start waits to be heard by the fleet.
	introduceWait = time.Second
	// maxAnswer bounds what is read of the fleet's answer to one, in bytes.
	maxAnswer = 8 << 10
)

// awaited leaves it to the answer of a waiting call to tell the fleet what is
// about to be recorded of an incarnation; false where no call waits, and a report
// has to. An answer that is lost leaves the fleet asking again, as a lost report
// does (contract: D1). m.mu is held.
func (m *machine) awaited(incarnation int64) bool {
	if m.waiting == 0 {
		return false
	}
	m.untold = incarnation
	return true
}

// attend counts a call that waits for an answer.
func (m *machine) attend() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting++
}

// leave ends a call's waiting. What the last one was not answered with is reported.
func (m *machine) leave(answered bool) {
	m.mu.Lock()
	m.waiting--
	var untold int64
	if answered {
		m.untold = 0
	} else if m.waiting == 0 {
		untold, m.untold = m.untold, 0
	}
	m.mu.Unlock()
	if untold != 0 {
		m.report(untold)
	}
}

// report sends what is recorded of an incarnation to the fleet, detached and
// within a delivery's budget. It is a hint: the fleet asks when it hears nothing,
// so a host keeps no queue of facts (contract: B5).
func (m *machine) report(incarnation int64) {
	a := m.agent
	if a.sender == nil {
		return
	}
	m.mu.Lock()
	fact := a.observed(m.records[incarnation])
	m.mu.Unlock()
	a.spawn(func() {
		select {
		case a.reports <- struct{}{}:
			defer func() { <-a.reports }()
		case <-a.life.Done():
			return
		}
		if err := a.send(a.life, fact); err != nil {
			a.log.Warn("a fact did not reach the fleet, which will ask", "instance", fact.Instance,
				"incarnation", fact.Incarnation, "state", fact.State, "error", err)
		}
	})
}

func (a *Agent) send(ctx context.Context, fact holdfast.Observation) error {
	body, err := json.Marshal(fact)
	if err != nil {
		return fmt.Errorf("encode a fact: %w", err)
	}
	return a.sender.Send(ctx, delivery.Message{ID: factID(fact), Kind: string(holdfast.DeliveryObserved), Body: body})
}

// factID is derived, so that a restarted agent that reports the same fact again
// reports it under the same id (contract: B2).
func factID(fact holdfast.Observation) string {
	cause := fmt.Sprintf("%s@%d", fact.State, fact.Generation)
	return delivery.DeriveID(string(holdfast.DeliveryObserved), string(fact.Instance), fact.Incarnation, cause)
}

// beat sends heartbeats. They are telemetry: a failure is logged and forgotten
// (contract: B6).
func (a *Agent) beat() {
	if a.config.Fleet.URL == "" {
		return
	}
	for number := int64(sequenceStart + 1); ; number++ {
		every := a.config.Timing.Heartbeat
		spread := time.Duration((a.config.Jitter("heartbeat", int(number)) - 0.5) * 0.2 * float64(every)) // hosts that started together drift apart (trap T23)
		if !rest(a.life, every+spread) {
			return
		}
		err := a.beatOnce(a.life, number)
		switch {
		case err == nil || a.life.Err() != nil:
		case holdfast.ReasonOf(err) == holdfast.ReasonHostTwin:
			a.log.Error("the fleet refuses this host: it gets no work, and what it runs is nobody's", "error", err)
		default:
			a.log.Warn("a heartbeat did not reach the fleet", "error", err)
		}
	}
}

// introduce is the first heartbeat. A fleet that is not there, or is not this
// cluster's, hears a later one; that this host is a copy of another is an error.
func (a *Agent) introduce(ctx context.Context) error {
	if a.config.Fleet.URL == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, introduceWait)
	defer cancel()
	err := a.beatOnce(ctx, sequenceStart)
	if holdfast.ReasonOf(err) == holdfast.ReasonHostTwin {
		return fmt.Errorf("the fleet refuses this host: %w", err)
	}
	if err != nil {
		a.log.Warn("a heartbeat did not reach the fleet", "error", err)
	}
	return nil
}

// held are the images that are ready here.
func (a *Agent) held() []string {
	images, ok := a.config.Images.(HeldImages)
	if !ok {
		return nil
	}
	refs, err := images.Held()
	if err != nil {
		a.log.Warn("which images are ready is not known", "error", err)
		return nil
	}
	return refs[:min(len(refs), holdfast.MaxHostImages)]
}

func (a *Agent) beatOnce(ctx context.Context, number int64) (err error) {
	body, err := json.Marshal(holdfast.Heartbeat{
		Host: a.who.ID, Life: a.lifeID, Cluster: a.allegiance().cluster, Name: a.config.Name, URL: a.config.URL,
		Runtime: a.capabilities.Name, BootID: a.bootID, Capacity: a.config.Capacity, Images: a.held(),
		Sequence: a.who.Runs*sequenceStride + number, At: a.config.Clock(),
	})
	if err != nil {
		return fmt.Errorf("encode a heartbeat: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.config.Fleet.URL+"/heartbeat", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if a.config.Fleet.Token != "" {
		req.Header.Set("Authorization", "Bearer "+a.config.Fleet.Token)
	}
	res, err := a.config.Fleet.Client.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	words, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if res.StatusCode >= 300 {
		var refusal holdfast.Error
		if json.Unmarshal(words, &refusal) == nil && refusal.Code != "" {
			return &refusal
		}
		return fmt.Errorf("the fleet answered %s: %s", res.Status, words)
	}
	return nil
}
