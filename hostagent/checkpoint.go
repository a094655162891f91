package hostagent

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// EnsureCheckpoint takes a level of a checkpoint and answers with what is observed:
// at once when it is settled, else after at most level.Wait. What is begun goes on
// when the caller leaves; a copy that did not succeed for a reason that may pass is
// tried again by the next level alone. Its refusals are those of EnsureInstance, with
// LEVEL_CONFLICT for a checkpoint of another boot, NOT_CAPABLE without a blob store,
// and, where no record was made, why the instance has ended. ABSENT is answered only
// when nothing is uploaded any more. contract: E4
func (a *Agent) EnsureCheckpoint(ctx context.Context, level holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	if err := checkCopy(level); err != nil {
		return holdfast.CheckpointObservation{}, err
	}
	if err := a.obey(order{level.Cluster, level.Epoch, string(level.Checkpoint)}); err != nil {
		return holdfast.CheckpointObservation{}, err
	}
	if !a.open.Load() {
		return holdfast.CheckpointObservation{}, draining(level.Instance)
	}
	if a.config.Blobs == nil && level.Desired == holdfast.CheckpointPresent {
		return holdfast.CheckpointObservation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNotCapable,
			"this host has no blob store, so it takes no checkpoints").On(string(level.Checkpoint))
	}
	wait := time.NewTimer(min(max(level.Wait, 0), holdfast.MaxLevelWait))
	defer wait.Stop()
	for {
		c := a.copying(level.Checkpoint)
		mine, ok, err := c.accept(level)
		if !ok {
			continue // forgotten meanwhile
		}
		a.dropCopy(c)
		if err != nil {
			return holdfast.CheckpointObservation{}, err
		}
		return c.until(ctx, mine, wait.C)
	}
}

// copying is one checkpoint at this host: its record, and at most one attempt that
// copies.
type copying struct {
	agent *Agent
	id    holdfast.CheckpointID

	mu       sync.Mutex // taken before the agent's and a machine's
	dropped  bool       // no longer in the agent's map: look it up again
	record   copyRecord // without a state: nothing is recorded
	packed   bool       // the part is whole, and of this process
	progress string     // for a person
	attempt  *copyAttempt
	changed  chan struct{} // closed and replaced by every change
}

// copyAttempt is one try to copy. Levels join it.
type copyAttempt struct {
	done   chan struct{}
	err    error // set before done is closed
	cancel context.CancelCauseFunc
}

func (a *Agent) copying(id holdfast.CheckpointID) *copying {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.copies[id]
	if c == nil {
		c = &copying{agent: a, id: id, changed: make(chan struct{})}
		a.copies[id] = c
	}
	return c
}

func (a *Agent) allCopies() []*copying {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]*copying, 0, len(a.copies))
	for _, c := range a.copies {
		list = append(list, c)
	}
	return list
}

// dropCopy forgets a checkpoint of which nothing is recorded.
func (a *Agent) dropCopy(c *copying) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.record.State == "" && !c.dropped {
		a.mu.Lock()
		defer a.mu.Unlock()
		c.dropped = true
		delete(a.copies, c.id)
	}
}

func (c *copying) broadcast() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// accept takes the level, and returns the attempt that is at it, nil if none is. ok is
// false when c was dropped.
func (c *copying) accept(level holdfast.CheckpointLevel) (at *copyAttempt, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped {
		return nil, false, nil
	}
	a := c.agent
	var known *copyRecord
	if c.record.State != "" {
		known = &c.record
	}
	j, err := judgeCopy(level, known, a.subject(holdfast.InstanceRef{Instance: level.Instance, Incarnation: level.Incarnation}), situation{
		now: a.config.Clock(), tooOld: a.config.Timing.LevelTooOld, busy: c.attempt != nil, packed: c.packed,
	})
	if err != nil {
		return nil, true, err
	}
	if j.changed {
		if err := c.write(j.record); err != nil {
			return nil, true, err
		}
	}
	switch {
	case c.record.final() && c.attempt != nil:
		c.attempt.cancel(errRedirected)
	case c.record.final() && j.changed:
		return nil, true, c.clear()
	case j.begin && !c.begin():
		return nil, true, draining(level.Instance)
	}
	return c.attempt, true, nil
}

// subject is what is recorded of a boot.
func (a *Agent) subject(ref holdfast.InstanceRef) subject {
	m := a.find(ref.Instance)
	if m == nil {
		return subject{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.records[ref.Incarnation]
	return subject{record: r.clone(), known: ok && !r.Orphan, newest: m.newest()}
}

// write makes a record durable and shows it; c.mu is held.
func (c *copying) write(r copyRecord) error {
	if err := c.agent.copyStore.save(r); err != nil {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage, "the record of checkpoint %s could not be written", c.id).
			On(string(c.id)).Because(err)
	}
	c.record = r
	c.broadcast()
	return nil
}

// clear removes the parts; c.mu is held, and no attempt is at it.
func (c *copying) clear() error {
	c.packed = false
	if err := c.agent.copyStore.clear(c.id); err != nil {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage, "the parts of checkpoint %s could not be removed", c.id).
			On(string(c.id)).Because(err)
	}
	return nil
}

// observation is what is told; c.mu is held.
func (c *copying) observation() holdfast.CheckpointObservation {
	r := c.record
	o := holdfast.CheckpointObservation{
		Checkpoint: c.id, Instance: r.Ref.Instance, State: r.State, Layers: r.Layers, Added: r.Added, Claim: r.Began,
		Failure: r.Failure, At: c.agent.config.Clock(),
	}
	switch {
	case r.State == holdfast.CopyCopying:
		o.Progress = c.progress
	case r.State == holdfast.CopyAbsent && c.attempt != nil:
		o.State, o.Progress = holdfast.CopyCopying, "being stopped"
	}
	return o
}

// until waits for the level's answer.
func (c *copying) until(ctx context.Context, mine *copyAttempt, wait <-chan time.Time) (holdfast.CheckpointObservation, error) {
	for expired := false; ; {
		c.mu.Lock()
		o, changed := c.observation(), c.changed
		c.mu.Unlock()
		if o.State != holdfast.CopyCopying || expired || mine == nil {
			return o, nil
		}
		select {
		case <-mine.done:
			if mine.err != nil {
				return o, mine.err
			}
			expired = true // one try for one call; what it came to is read once more
		case <-changed:
		case <-wait:
			expired = true
		case <-ctx.Done():
			return o, holdfast.AsError(context.Cause(ctx)).On(string(c.id))
		}
	}
}
