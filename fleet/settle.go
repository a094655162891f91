package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/store"
)

// settle runs decide in a transaction and applies the change that it returns;
// what follows from it is enqueued there too (contract: B4).
func (s *Service) settle(ctx context.Context, decide func(store.Tx, time.Time) (change, error)) error {
	var ended bool
	err := s.db.Update(ctx, func(tx store.Tx) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		c, err := decide(tx, now)
		ended = c.ended
		if err != nil || !c.changed {
			return err
		}
		return apply(ctx, tx, c, now)
	})
	if err == nil && ended {
		s.outbox.Wake() // a hint: the dispatcher polls anyway (T21)
	}
	return err
}

// apply writes a change to a row that the transaction has locked.
func apply(ctx context.Context, tx store.Tx, c change, now time.Time) error {
	stood, err := updateFacts(ctx, tx, &c.next)
	if err == nil && !stood {
		err = fmt.Errorf("instance %s was locked: %w", c.next.id, errOvertaken)
	}
	if err != nil {
		return err
	}
	if c.freed {
		if err := giveBack(ctx, tx, c.next.host, c.next.cpu, c.next.memory); err != nil {
			return err
		}
	}
	if c.ended {
		return enqueueExited(ctx, tx, c.next, now)
	}
	return nil
}

// enqueueExited tells the orchestrator that an incarnation ended (H8). It ends
// once, so the event's id needs no more than the incarnation (contract: B2).
func enqueueExited(ctx context.Context, tx store.Tx, r row, now time.Time) error {
	o := r.observation()
	o.State = holdfast.InstanceExited // also for one that is ABSENT already: it ended
	body, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode the end of %s: %w", r.id, err)
	}
	return outbox.Enqueue(ctx, tx, outbox.Row{
		ID:          delivery.DeriveID(string(holdfast.DeliveryExited), string(r.id), r.incarnation, "exited"),
		Destination: Orchestrator,
		Kind:        string(holdfast.DeliveryExited),
		Body:        body,
	}, now)
}
