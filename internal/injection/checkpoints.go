package injection

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/transport"
)

// copies are the orders about checkpoints, to the fleet (H2) and to the host (H3).
func copies() []experiment {
	var all []experiment
	for _, hop := range []struct{ name, path, to string }{{"H2", "/fleet/checkpoint", "fleet"}, {"H3", "/host/checkpoint", "host"}} {
		at := about{path: hop.path}
		all = append(all,
			experiment{hop: hop.name, message: "EnsureCheckpoint", cell: Twice, does: "each level of a checkpoint arrives at the " + hop.to + " twice at the same time", run: func(l *lab) (string, error) {
				fault := l.wire.always(transport.Overlap, at)
				c, err := l.take(l, "twice")
				if err = errors.Join(err, l.fired(fault)); err != nil {
					return "", err
				}
				return seen(l.copied(c, 1), "%d levels doubled: READY, one copy", fault.count())
			}},
			experiment{hop: hop.name, message: "EnsureCheckpoint", cell: Late, does: "the level PRESENT arrives at the " + hop.to + " again once the checkpoint is deleted", run: func(l *lab) (string, error) {
				kept := l.wire.tape(about{path: hop.path, body: `"desired":"PRESENT"`})
				c, err := l.take(l, "late")
				if err == nil {
					_, err = l.client.DeleteCheckpoint(l, holdfast.MutateCheckpoint{ID: c.ID})
				}
				if err != nil {
					return "", err
				}
				status, answer, err := l.wire.again(l, kept, 0)
				if err == nil && status == 200 && !strings.Contains(answer, string(holdfast.CopyAbsent)) {
					err = fmt.Errorf("it was answered %s", answer)
				}
				return seen(errors.Join(err, l.copied(c, 0)), "answered %d, and nothing was copied", status)
			}},
			experiment{hop: hop.name, message: "EnsureCheckpoint", cell: Never, does: "every level of a checkpoint to the " + hop.to + " is lost, and the caller gives up", run: func(l *lab) (string, error) {
				fault := l.wire.always(transport.Drop, at)
				c, err := l.untaken("never", fault)
				if err != nil {
					return "", err
				}
				l.wire.lift(fault)
				l.clock.forward(20 * time.Second) // what waits for its next try is due
				began := time.Now()
				err = l.until("the checkpoint is READY", func() (bool, error) {
					is, err := l.client.GetCheckpoint(l, c.ID)
					return err == nil && is.State == holdfast.CheckpointReady, err
				})
				return seen(errors.Join(err, l.copied(c, 1)), "READY %s after the hop was back, by a sweep; one copy", since(began))
			}},
		)
	}
	return append(all, experiment{message: "orchestrator checkpoint", cell: FirstContact,
		does: "the instance dies before its host was told to copy it, and the caller has given up", run: func(l *lab) (string, error) {
			fault := l.wire.always(transport.Drop, about{path: "/host/checkpoint", body: `"desired":"PRESENT"`})
			c, err := l.untaken("unheard", fault)
			if err != nil {
				return "", err
			}
			sb, err := l.client.GetSandbox(l, c.Sandbox)
			if err = errors.Join(err, l.machine.kill(l, ref(sb))); err != nil {
				return "", err
			}
			began := time.Now()
			err = l.until("the checkpoint is FAILED", func() (bool, error) {
				c, err = l.client.GetCheckpoint(l, c.ID)
				return err == nil && c.State == holdfast.CheckpointFailed && c.Failure != nil, err
			})
			if err = errors.Join(err, l.copied(c, 0)); err != nil {
				return "", err
			}
			return fmt.Sprintf("FAILED with its sandbox after %s, %s: %s; nothing was copied", since(began), c.Failure.Reason, c.Failure.Message), nil
		}})
}

// untaken is a checkpoint whose caller left when a fault had met it.
func (l *lab) untaken(id string, fault *rule) (holdfast.Checkpoint, error) {
	err := l.givenUp(fault, func(ctx context.Context) error {
		_, err := l.take(ctx, id)
		return err
	})
	page, listing := l.client.ListCheckpoints(l, holdfast.ListCheckpoints{})
	if err = errors.Join(err, listing); err != nil || len(page.Checkpoints) != 1 {
		return holdfast.Checkpoint{}, errors.Join(err, fmt.Errorf("%d checkpoints are recorded", len(page.Checkpoints)))
	}
	return page.Checkpoints[0], nil
}

// take is a sandbox's checkpoint.
func (l *lab) take(ctx context.Context, id string) (holdfast.Checkpoint, error) {
	sb, err := l.create(id)
	if err != nil {
		return holdfast.Checkpoint{}, err
	}
	c, err := l.client.CreateCheckpoint(ctx, holdfast.CreateCheckpoint{RequestID: id, Source: string(sb.ID)})
	if err == nil && c.State != holdfast.CheckpointReady {
		err = fmt.Errorf("it is %s: %+v", c.State, c.Failure)
	}
	return c, err
}

// copied holds that the blob store has so many copies of a checkpoint.
func (l *lab) copied(c holdfast.Checkpoint, want int) error {
	n := 0
	err := filepath.WalkDir(filepath.Join(l.dir, "blobs", "checkpoints", string(c.ID)), func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			n++
		}
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err == nil && n != want {
		err = fmt.Errorf("the blob store has %d copies of %s", n, c.ID)
	}
	return err
}
