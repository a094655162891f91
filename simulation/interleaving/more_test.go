package interleaving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// What races of keys, quotas and the outbox are made of.

func purges(replica int) actor { return sweeps(orchestrator.SweepPurge, replica) }

// longDeleted is a sandbox whose tombstone may be purged.
func longDeleted(ctx context.Context, w *world) error {
	if err := isReady(ctx, w); err != nil {
		return err
	}
	_, err := deletes(0).do(ctx, w)
	pass(holdfast.TombstoneKept + time.Hour)
	return err
}

// noneLives: whatever was answered, the key stands for what is gone.
func noneLives(w *world) error {
	var errs []error
	for _, h := range w.hosts {
		if n := len(h.living()); n != 0 {
			errs = append(errs, fmt.Errorf("%d instances live on %s", n, h.id))
		}
	}
	if a, ok := w.answers["create 1"]; ok && (a.err != nil || a.sandbox.State != holdfast.SandboxDeleted) {
		errs = append(errs, fmt.Errorf("the repeated create was answered %s, %w", a.sandbox.State, a.err))
	}
	n, err := w.count(w.odb, `SELECT COUNT(*) FROM request`)
	if err == nil && n != 1 {
		err = fmt.Errorf("%d request ids are kept", n)
	}
	return errors.Join(append(errs, err)...)
}

// isRecovered is a SUSPENDED sandbox whose database was restored from a backup of
// when it was READY, and recovered since.
func isRecovered(ctx context.Context, w *world) error {
	if err := isSuspended(ctx, w); err != nil {
		return err
	}
	err := w.odb.Update(ctx, func(tx store.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE sandbox SET state = 'READY', generation = 1, retained = FALSE`)
		if err == nil {
			_, err = tx.ExecContext(ctx, `DELETE FROM operation WHERE kind = 'SUSPEND'`)
		}
		if err == nil {
			_, err = lineage.Recover(ctx, tx, time.Now(), 1)
		}
		return err
	})
	pass(time.Minute)
	for replica := range w.orch { // each learns of it with its next sweep
		err = errors.Join(err, w.sweep(ctx, replica, orchestrator.SweepOperations))
	}
	return err
}

// roomForOne is a project that may have one sandbox.
func roomForOne(ctx context.Context, w *world) error {
	one := int64(1)
	_, err := w.orch[0].SetQuotas(ctx, alice, holdfast.SetQuotas{Project: string(alice.Project), Quotas: holdfast.QuotaChange{Sandboxes: &one}})
	return err
}

// fullQuota is one that has it.
func fullQuota(ctx context.Context, w *world) error {
	if err := roomForOne(ctx, w); err != nil {
		return err
	}
	return isReady(ctx, w)
}

// createsNamed creates under a request id of its own.
func createsNamed(replica int, id string) actor {
	return actor{"create " + id, func(ctx context.Context, w *world) (holdfast.Sandbox, error) {
		sb, err := w.orch[replica].CreateSandbox(ctx, alice, holdfast.CreateSandbox{RequestID: id, Environment: "base"})
		w.mu.Lock()
		defer w.mu.Unlock()
		if err == nil && w.sandbox == "" {
			w.sandbox, w.instance = sb.ID, sb.Instance
		}
		return holdfast.Sandbox{}, err
	}}
}

// oneOf: one of two was taken, the other refused for the quota, and nothing of it is recorded.
func oneOf(a, b string) func(w *world) error {
	return func(w *world) error {
		x, y := holdfast.CodeOf(w.answers[a].err), holdfast.CodeOf(w.answers[b].err)
		if !(x == "" && y == holdfast.ResourceExhausted || y == "" && x == holdfast.ResourceExhausted) {
			return fmt.Errorf("they were answered %q and %q", x, y)
		}
		n, err := w.count(w.odb, `SELECT COUNT(*) FROM request`)
		if err == nil && n != 1 {
			err = fmt.Errorf("%d request ids are recorded", n)
		}
		return err
	}
}

// hasMail is a fleet with one event for the orchestrator.
func hasMail(ctx context.Context, w *world) error {
	if err := isReady(ctx, w); err != nil {
		return err
	}
	return w.fdb.Update(ctx, func(tx store.Tx) error {
		return outbox.Enqueue(ctx, tx, outbox.Row{ID: "event", Destination: "orchestrator", Kind: "instance.exited", Body: []byte(`{}`)}, time.Now())
	})
}

// dispatches is one look of a replica's dispatcher.
func dispatches(replica int) actor {
	return plain(fmt.Sprintf("dispatcher %d", replica), func(ctx context.Context, w *world) error {
		db := w.fdb
		d, err := outbox.New(outbox.Config{
			Update: func(ctx context.Context, fn func(outbox.Tx) error) error {
				w.sched.step(ctx, "outbox transaction")
				return db.Update(ctx, func(tx store.Tx) error { return fn(tx) })
			},
			View: func(ctx context.Context, fn func(outbox.Tx) error) error {
				w.sched.step(ctx, "outbox look")
				return db.View(ctx, func(tx store.Tx) error { return fn(tx) })
			},
			Send: func(ctx context.Context, _ outbox.Row) error {
				w.sched.step(ctx, "send")
				w.mu.Lock()
				defer w.mu.Unlock()
				w.sent++
				return nil
			},
			Holder: fmt.Sprintf("dispatcher/%d", replica), Log: slog.New(slog.DiscardHandler), Jitter: func(string, int) float64 { return 0 },
		})
		if err != nil {
			return err
		}
		_, err = d.RunOnce(ctx)
		return err
	})
}

// sentOnce: two dispatchers share the work.
func sentOnce(w *world) error {
	n, err := w.count(w.fdb, `SELECT COUNT(*) FROM outbox WHERE state = 'SENT'`)
	if err == nil && (n != 1 || w.sent != 1) {
		err = fmt.Errorf("it was sent %d times, %d are recorded as sent", w.sent, n)
	}
	return err
}
