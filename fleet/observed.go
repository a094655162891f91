package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/store"
)

// HostSource names a host as the source of deliveries.
func HostSource(host holdfast.HostID) string { return "host:" + string(host) }

// Observed takes a host's delivery about one of its instances (H7). The record
// of it and its effect commit together; a repeat has none (contract: B3). What
// concerns an instance not known yet is delivery.ErrNotYet, never a refusal
// (contract: B7).
func (s *Service) Observed(ctx context.Context, host holdfast.HostID, d delivery.Received) error {
	if d.Kind != string(holdfast.DeliveryObserved) {
		return fmt.Errorf("%w: kind %q is not one that hosts send", delivery.ErrMalformed, d.Kind)
	}
	var seen holdfast.Observation
	if err := json.Unmarshal(d.Body, &seen); err != nil {
		return fmt.Errorf("%w: %w", delivery.ErrMalformed, err)
	}
	if err := holdfast.CheckID("instance", holdfast.PrefixInstance, string(seen.Instance)); err != nil {
		return fmt.Errorf("%w: %w", delivery.ErrMalformed, err)
	}
	if seen.Host == "" {
		seen.Host = host
	}
	if seen.Host != host {
		return fmt.Errorf("%w: host %s speaks for %s", delivery.ErrMalformed, host, seen.Host)
	}
	err := s.settle(ctx, func(tx store.Tx, now time.Time) (change, error) {
		return takeDelivery(ctx, tx, d, seen, now)
	})
	if err != nil {
		return fmt.Errorf("take delivery %s of %s: %w", d.ID, host, err)
	}
	return nil
}

// applied is what a delivery mostly did.
const applied = "applied"

// takeDelivery runs inside the guarded transaction: everything that the event
// triggers is in the change that it returns, or written here.
func takeDelivery(ctx context.Context, tx store.Tx, d delivery.Received, seen holdfast.Observation, now time.Time) (change, error) {
	source := HostSource(seen.Host)
	fresh, err := inbox.Record(ctx, tx, inbox.Delivery{Source: source, ID: d.ID, Kind: d.Kind, ReceivedAt: now, Body: d.Body, Outcome: applied})
	if err != nil || !fresh {
		return change{}, err
	}
	cur, found, err := getInstance(ctx, tx, seen.Instance, tx.ForUpdate())
	if err != nil {
		return change{}, err
	}
	if !found || seen.Incarnation > cur.incarnation {
		// The error rolls the record back, or the retry would be taken for a repeat.
		return change{}, fmt.Errorf("incarnation %d of %s: %w", seen.Incarnation, seen.Instance, delivery.ErrNotYet)
	}
	if seen.Life != "" && cur.hostLife != "" && seen.Life != cur.hostLife && seen.Host == cur.host {
		// Of a new agent that has not been heard yet, or of another machine with the
		// host's directory: which of the two, its heartbeat decides.
		return change{}, fmt.Errorf("this agent of %s has not been heard yet: %w", seen.Host, delivery.ErrNotYet)
	}
	c := fold(cur, seen, delivered, now)
	outcome := applied
	switch {
	case seen.Incarnation < cur.incarnation:
		outcome, err = endLeftover(ctx, tx, seen, c.ignored)
	case c.ignored != "":
		outcome = c.ignored
	case !c.changed:
		outcome = "applied: it was known"
	}
	if err != nil || outcome == applied {
		return c, err
	}
	return c, inbox.Note(ctx, tx, source, d.ID, outcome)
}
