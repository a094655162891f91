package kill

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// taken is a checkpoint that was acknowledged.
type taken struct {
	create  holdfast.CreateCheckpoint
	id      holdfast.CheckpointID
	deleted bool
}

// checkpoint takes one of a sandbox or a session.
func (c *caller) checkpoint(ctx context.Context, l *life, source string) (*taken, error) {
	l.copies++
	k := &taken{create: holdfast.CreateCheckpoint{RequestID: fmt.Sprintf("%s-copy-%d", l.create.RequestID, l.copies), Source: source}}
	var got holdfast.Checkpoint
	err := c.call(ctx, l, "checkpoint", func(ctx context.Context, api *client.Client) (err error) {
		got, err = api.CreateCheckpoint(ctx, k.create)
		return err
	})
	if err != nil {
		return nil, err
	}
	if got.State != holdfast.CheckpointReady {
		if c.round.wasStruck(l) || l.late {
			l.ended = true
			return nil, errEnded
		}
		return nil, fmt.Errorf("a checkpoint of it is %s, %+v", got.State, got.Failure)
	}
	k.id = got.ID
	c.round.mu.Lock()
	defer c.round.mu.Unlock()
	c.round.copies = append(c.round.copies, k)
	return k, nil
}

// dropCheckpoint deletes one half of the time.
func (c *caller) dropCheckpoint(ctx context.Context, l *life, k *taken) error {
	if c.random.IntN(2) == 0 {
		return nil
	}
	err := c.ask(ctx, l, "delete checkpoint", func(ctx context.Context, api *client.Client) error {
		_, err := api.DeleteCheckpoint(ctx, holdfast.MutateCheckpoint{ID: k.id})
		return err
	})
	k.deleted = err == nil
	return err
}

// fork lets a life of its own begin with what is on the disk of another. The fork has
// that, whatever becomes of its source and of the checkpoint, and none of its
// processes.
func (c *caller) fork(ctx context.Context, l *life) error {
	k, err := c.checkpoint(ctx, l, string(l.id))
	if err != nil {
		return err
	}
	f := &life{create: holdfast.CreateSandbox{RequestID: k.create.RequestID + "-fork", Source: k.id, Restart: holdfast.RestartNone,
		Resources: l.create.Resources}, files: maps.Clone(l.files), before: append(slices.Sorted(maps.Keys(l.starts)), l.before...), starts: map[string]holdfast.ProcessID{}}
	c.round.born(f)
	err = c.born(ctx, f)
	if err == nil {
		err = c.verifyInside(ctx, f)
	}
	if err == nil {
		err = c.dropCheckpoint(ctx, f, k)
	}
	if err == nil && c.random.IntN(2) == 0 {
		err = c.delete(ctx, f)
	}
	if err != nil && !errors.Is(err, errEnded) {
		c.round.violate("%s %s, a fork of %s: %v", f.create.RequestID, f.id, l.id, err)
	}
	return nil
}

// forkWork is fork for a session: it has the lines of its source's tasks, and tasks of
// its own alone.
func (c *caller) forkWork(ctx context.Context, w *work) error {
	k, err := c.checkpoint(ctx, w.life, string(w.id))
	if err != nil {
		return err
	}
	f := &work{life: w.life.successor(k.create.RequestID + "-fork"), before: slices.Clone(w.before), maybe: slices.Clone(w.maybe)}
	f.create = holdfast.CreateSession{RequestID: f.life.create.RequestID, Source: k.id, Restart: holdfast.RestartNone, Resources: w.create.Resources}
	for _, j := range w.jobs {
		if j.end == holdfast.TaskSucceeded || j.end == holdfast.TaskFailed {
			f.before = append(f.before, j.in.RequestID)
		} else { // whether it had begun nobody was told
			f.maybe = append(f.maybe, j.in.RequestID)
		}
	}
	c.round.engaged(f)
	err = c.engage(ctx, f)
	if err == nil {
		err = c.dropCheckpoint(ctx, f.life, k)
	}
	if err == nil {
		err = c.tasks(ctx, f)
	}
	if err == nil && c.random.IntN(2) == 0 {
		err = c.moveWork(ctx, f, (*client.Client).DeleteSession, holdfast.SessionDeleted)
	}
	if err != nil && !errors.Is(err, errEnded) {
		c.round.violate("%s %s, a fork of %s: %v", f.create.RequestID, f.id, w.id, err)
	}
	return nil
}

// successor is a life of another name, of which nothing is known yet.
func (l *life) successor(name string) *life {
	return &life{create: holdfast.CreateSandbox{RequestID: name, Restart: l.create.Restart, Resources: l.create.Resources}}
}

// verifyCheckpoint holds a checkpoint against what its client was told.
func (c *caller) verifyCheckpoint(ctx context.Context, k *taken) error {
	nobody := &life{}
	var got holdfast.Checkpoint
	err := c.ask(ctx, nobody, "checkpoint at the end", func(ctx context.Context, api *client.Client) (err error) {
		got, err = api.CreateCheckpoint(ctx, k.create)
		return err
	})
	want := holdfast.CheckpointReady
	if k.deleted {
		want = holdfast.CheckpointDeleted
	}
	switch {
	case err != nil:
		return err
	case got.ID != k.id:
		return fmt.Errorf("its request id is %s's", got.ID)
	case got.State != want:
		return fmt.Errorf("it was told to be %s, and is %s, %+v", want, got.State, got.Failure)
	}
	return nil
}
