package hostagent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/stack"
	"github.com/holdfast-dev/holdfast/layer"
	"golang.org/x/sys/unix"
)

// Why a copy is cut short.
var (
	errInstanceEnds = errors.New("the instance ends")
	errCopyLate     = errors.New("it took too long")
	errCopyEnded    = errors.New("it is not wanted any more")
)

// begin makes sure that an attempt is at it; c.mu is held. It is false when the agent
// is closing.
func (c *copying) begin() bool {
	a := c.agent
	if c.attempt != nil {
		return true
	}
	if !a.enter() {
		return false
	}
	left := a.config.Timing.Copy - a.config.Clock().Sub(c.record.StartedAt)
	late, stop := context.WithTimeoutCause(a.life, max(left, 0), errCopyLate)
	ctx, cancel := context.WithCancelCause(late)
	at := &copyAttempt{done: make(chan struct{}), cancel: cancel}
	c.attempt = at
	go func() {
		stack.Grow(0)
		defer a.leave()
		defer stop()
		err := c.safely(ctx, at)
		c.finish(context.Cause(ctx), at, err)
		cancel(nil)
	}()
	return true
}

// safely turns a panic into the attempt's error, as a machine does.
func (c *copying) safely(ctx context.Context, at *copyAttempt) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return c.run(ctx, at)
}

// finish ends the attempt. cut is why it was cut short, nil if it was not.
func (c *copying) finish(cut error, at *copyAttempt, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.agent
	if failure := c.failure(cut, err); failure != nil && !c.record.final() {
		err = c.write(c.record.end(holdfast.CopyFailed, failure, a.config.Clock()))
		a.log.Warn("a checkpoint failed", "checkpoint", c.id, "instance", c.record.Ref.Instance, "reason", failure.Reason, "why", failure.Message)
	}
	if c.record.final() && a.life.Err() == nil {
		err = c.clear()
	}
	if err != nil && !errors.Is(err, errCopyEnded) {
		at.err = a.notCopied(c.id, err)
		c.progress = at.err.Error()
	}
	c.attempt = nil
	c.broadcast()
	close(at.done)
}

// failure says whether an attempt's error is for ever, and why.
func (c *copying) failure(cut, err error) *holdfast.Failure {
	switch {
	case err == nil || c.agent.life.Err() != nil:
		return nil
	case errors.Is(cut, errInstanceEnds):
		if why := c.agent.subject(c.record.Ref).ended(); why != nil {
			return why
		}
		return nil // the level that ends it was not kept: the next one tries again
	case errors.Is(cut, errCopyLate):
		return &holdfast.Failure{Reason: holdfast.ReasonCheckpointFailed,
			Message: fmt.Sprintf("it was not copied within %s: %v", c.agent.config.Timing.Copy, err)}
	case cut == nil && !holdfast.Transient(err):
		e := holdfast.AsError(err)
		if e.Reason == "" || e.Reason == holdfast.ReasonBug {
			return nil
		}
		return &holdfast.Failure{Reason: e.Reason, Message: err.Error()}
	}
	return nil
}

// notCopied is what a caller hears of an attempt that failed but may succeed.
func (a *Agent) notCopied(id holdfast.CheckpointID, err error) error {
	var e *holdfast.Error
	switch {
	case a.life.Err() != nil:
		return draining("").Because(err)
	case errors.As(err, &e) && (e.Code == holdfast.Unavailable || !holdfast.Transient(e)):
		return err
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonNoSpace, "the host has no room for a copy").On(string(id)).Because(err)
	}
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonRuntime, "the checkpoint was not copied").On(string(id)).Because(err)
}

// run copies: the layer into a file of the host while the instance stands still, then
// that file into the blob store. A file that is whole is uploaded again as it is.
func (c *copying) run(ctx context.Context, at *copyAttempt) error {
	c.mu.Lock()
	r, packed := c.record, c.packed
	c.mu.Unlock()
	m := c.agent.find(r.Ref.Instance)
	if m == nil {
		at.cancel(errInstanceEnds)
		return errInstanceEnds
	}
	defer m.attach(r.Ref, at.cancel)()
	if !packed {
		if err := c.pack(ctx, m, r); err != nil {
			return err
		}
	}
	below, err := c.below(ctx, r)
	if err != nil {
		return err
	}
	top := holdfast.Layer{Key: r.Key, Base: c.agent.subject(r.Ref).record.Base}
	return c.upload(ctx, r, append(slices.Clone(below), top))
}

func (c *copying) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress = fmt.Sprintf(format, args...)
}

// pack writes the part. Nothing else is done with the instance meanwhile.
func (c *copying) pack(ctx context.Context, m *machine, r copyRecord) error {
	a := c.agent
	c.say("waiting for its turn")
	return m.inTurn(ctx, func() error {
		if of := a.subject(r.Ref); of.ended() == nil && !of.still() {
			return holdfast.E(holdfast.Unavailable, holdfast.ReasonState, "the instance is %s: it can be copied once it runs", of.record.state()).
				On(string(r.Ref.Instance))
		}
		c.say("copying, while the instance stands still")
		err := a.writePart(a.copyStore.part(c.id), func(w io.Writer) error { return a.config.Driver.Checkpoint(ctx, r.Ref, w) })
		if holdfast.ReasonOf(err) == holdfast.ReasonInstanceLost {
			m.observe()
		}
		return err
	})
}

// writePart writes a file of at most as many bytes as a layer may have, or leaves none.
func (a *Agent) writePart(path string, write func(io.Writer) error) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, removeIfThere(path))
		}
	}()
	buffered := bufio.NewWriterSize(&bounded{w: f, left: a.config.MaxCheckpoint, most: a.config.MaxCheckpoint}, 1<<20)
	if err := write(buffered); err != nil {
		return err
	}
	return buffered.Flush()
}

// bounded refuses what is too large for any host to unpack.
type bounded struct {
	w          io.Writer
	left, most int64
}

// Write passes on.
func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonTooLarge,
			"what the instance wrote to its disk is more than the %d bytes that a checkpoint may have", b.most)
	}
	return b.w.Write(p)
}

// below returns the layers below the part. A chain that would be too long is merged
// into the part first: the checkpoint is then one layer above the image.
func (c *copying) below(ctx context.Context, r copyRecord) ([]holdfast.Layer, error) {
	a := c.agent
	of := a.subject(r.Ref).record
	spec := of.Spec
	switch {
	case a.capabilities.WholeLayers:
		return nil, c.whole()
	case spec == nil: // its record was damaged, or it has gone meanwhile
		return nil, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonCheckpointFailed,
			"the host does not know any more what the instance was made from").On(string(c.id))
	}
	if len(spec.Layers) < a.config.MaxChain {
		return spec.Layers, c.whole()
	}
	merged := filepath.Join(a.copyStore.directory(c.id), "merged")
	c.mu.Lock()
	done := c.packed
	c.mu.Unlock()
	if done { // by an earlier attempt of this process
		return nil, nil
	}
	c.say("merging %d layers", len(spec.Layers)+1)
	if err := c.merge(ctx, of, merged); err != nil {
		return nil, errors.Join(fmt.Errorf("merge %d layers: %w", len(spec.Layers)+1, err), removeIfThere(merged))
	}
	if err := os.Rename(merged, a.copyStore.part(c.id)); err != nil {
		return nil, err
	}
	return nil, c.whole()
}

// whole notes that the part is what is uploaded, now and again.
func (c *copying) whole() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.record.State != holdfast.CopyCopying {
		return errCopyEnded
	}
	c.packed = true
	return nil
}

func (c *copying) merge(ctx context.Context, of record, to string) (err error) {
	a, spec := c.agent, of.Spec
	base, err := a.images.ensure(ctx, wantedImage{spec.Image, of.Base}, func(string) {})
	if err != nil {
		return err
	}
	upper := filepath.Join(a.copyStore.directory(c.id), "unpacked")
	if err := errors.Join(os.RemoveAll(upper), os.Mkdir(upper, 0o700)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(upper)) }()
	if err := unpackFile(ctx, a.copyStore.part(c.id), upper); err != nil {
		return err
	}
	all := []string{upper}
	for _, one := range slices.Backward(spec.Layers) {
		dir, err := a.config.Layers.Ensure(ctx, one, nil)
		if err != nil {
			return err
		}
		all = append(all, dir)
	}
	return a.writePart(to, func(w io.Writer) error {
		_, err := layer.Merge(ctx, all, base.RootFS, w)
		return err
	})
}

func unpackFile(ctx context.Context, path, to string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = layer.Unpack(ctx, to, bufio.NewReaderSize(f, 1<<20), layer.Overlay, layer.Limits{})
	return err
}

// upload puts the part under the key of the last of the layers, then records that
// they are there.
func (c *copying) upload(ctx context.Context, r copyRecord, layers []holdfast.Layer) (err error) {
	a := c.agent
	f, err := os.Open(a.copyStore.part(c.id))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	stat, err := f.Stat()
	if err != nil {
		return err
	}
	info, err := a.config.Blobs.Put(ctx, r.Key, &uploading{r: f, size: stat.Size(), say: c.say})
	if err == nil && info.Size != stat.Size() {
		err = fmt.Errorf("it took %d of %d bytes", info.Size, stat.Size())
	}
	if err != nil {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage, "the blob store did not take the checkpoint").On(string(c.id)).Because(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.record.State != holdfast.CopyCopying || context.Cause(ctx) != nil {
		return errors.Join(errCopyEnded, context.Cause(ctx))
	}
	next := c.record.end(holdfast.CopyPresent, nil, a.config.Clock())
	top := &layers[len(layers)-1]
	top.Size, top.SHA256 = info.Size, info.SHA256
	next.Layers, next.Added = layers, info.Size
	return c.write(next)
}

// uploading tells a person how far it is.
type uploading struct {
	r    io.Reader
	size int64
	read int64
	told int64 // tenths
	say  func(string, ...any)
}

// Read passes on.
func (u *uploading) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	u.read += int64(n)
	if u.size > 0 && (u.told == 0 || u.read*10/u.size > u.told) {
		u.told = max(1, u.read*10/u.size)
		u.say("uploading %.1f MiB: %d %%", float64(u.size)/(1<<20), u.read*100/u.size)
	}
	return n, err
}
