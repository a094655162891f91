package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/store"
)

const (
	// taskBlobs is what the keys of kept output begin with.
	taskBlobs = "tasks/"
	// maxTaskLog bounds what is kept of one stream, in bytes: the last of it.
	maxTaskLog = 64 << 20
	// taskChunk is how much of kept output one chunk carries, in bytes.
	taskChunk = 64 << 10
)

// taskPrefix is what the keys of what attempts kept of a task begin with.
func taskPrefix(id holdfast.TaskID) string { return taskBlobs + string(id) + "/" }

// StreamTaskOutput yields a task's output from where its process writes it, and once
// that is over from where it is kept; any replica does so. With Follow it waits for a
// task that has not started, and until the end is recorded (contract: A14, E3).
func (s *Service) StreamTaskOutput(ctx context.Context, caller holdfast.Caller, in holdfast.TaskOutput, yield func(holdfast.OutputChunk) error) (holdfast.Task, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Task{}, err
	}
	at := in
	moved := func(c holdfast.OutputChunk) error {
		if err := yield(c); err != nil {
			return err
		}
		end := c.Offset + int64(len(c.Data))
		if c.Stream == holdfast.Stderr {
			at.StderrOffset = end
		} else {
			at.StdoutOffset = end
		}
		return nil
	}
	var t taskRow
	for {
		rung := s.done.on(string(in.ID))
		if !s.hasStarted(&t) {
			var err error
			if t, err = s.readTask(ctx, caller, in.ID); err != nil {
				return holdfast.Task{}, err
			}
			s.hasStarted(&t)
		}
		if t.ended() && (t.Log != nil || t.Process == "") {
			return t.Task, s.keptOutput(ctx, t, at, moved)
		}
		if t.Process != "" {
			p, err := s.liveOutput(ctx, t, at, in.Follow, moved)
			if err != nil {
				return t.Task, err
			}
			if t.ended() || !in.Follow {
				return t.Task, nil
			}
			if p.State == holdfast.ProcessExited {
				// Its end is recorded by the report that is on its way, or by this.
				if err := s.endAsked(ctx, t, p); err != nil {
					return t.Task, err
				}
				continue
			}
		}
		if !in.Follow {
			return t.Task, nil
		}
		if !s.done.await(ctx, rung, nil) && ctx.Err() != nil {
			return t.Task, holdfast.AsError(ctx.Err())
		}
	}
}

// liveOutput reads where the process writes, which its host can do while the guest is
// frozen or gone.
// Who reads is no activity: the task itself is.
func (s *Service) liveOutput(ctx context.Context, t taskRow, in holdfast.TaskOutput, follow bool, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	at, err := s.guestOfTask(ctx, t, accessSpool)
	if err != nil {
		return holdfast.Process{}, err
	}
	return guestCall(s, ctx, at, func(g holdfast.Guest) (holdfast.Process, error) {
		return g.Processes.StreamProcessOutput(ctx, holdfast.ReadOutput{
			Process: t.Process, StdoutOffset: in.StdoutOffset, StderrOffset: in.StderrOffset, Follow: follow}, yield)
	})
}

// keptOutput reads what was kept.
func (s *Service) keptOutput(ctx context.Context, t taskRow, in holdfast.TaskOutput, yield func(holdfast.OutputChunk) error) error {
	if t.Log == nil {
		return nil // it never started
	}
	if t.Log.Lost {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonInstanceLost, "the output of %s went with the instance it ran on", t.ID).On(string(t.ID))
	}
	err := s.keptStream(ctx, t.Log.Stdout, holdfast.Stdout, in.StdoutOffset, yield)
	if err == nil {
		err = s.keptStream(ctx, t.Log.Stderr, holdfast.Stderr, in.StderrOffset, yield)
	}
	return err
}

func (s *Service) keptStream(ctx context.Context, k keptLog, stream holdfast.Stream, offset int64, yield func(holdfast.OutputChunk) error) (err error) {
	end := k.Base + k.Size
	if offset > end {
		return holdfast.E(holdfast.OutOfRange, holdfast.ReasonBadField, "offset %d of %s is beyond its end at %d", offset, stream, end)
	}
	offset = max(offset, k.Base)
	if k.Key == "" || offset == end {
		return nil
	}
	r, _, err := s.config.Blobs.Get(ctx, k.Key)
	if err != nil {
		return unreadable(err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if _, err := io.CopyN(io.Discard, r, offset-k.Base); err != nil {
		return unreadable(err)
	}
	for offset < end {
		data := make([]byte, min(taskChunk, end-offset))
		if _, err := io.ReadFull(r, data); err != nil {
			return unreadable(err)
		}
		if err := yield(holdfast.OutputChunk{Stream: stream, Offset: offset, Data: data}); err != nil {
			return err
		}
		offset += int64(len(data))
	}
	return nil
}

func unreadable(err error) error {
	code, reason := holdfast.Unavailable, holdfast.ReasonStorage
	if errors.Is(err, blob.ErrNotFound) {
		code, reason = holdfast.FailedPrecondition, holdfast.ReasonBlobGone
	}
	return holdfast.E(code, reason, "the output that was kept cannot be read from the blob store").Because(err)
}

// keepLog copies the output of a task that ended to where it outlives its instance,
// under keys of this attempt alone, then names the copy in the task's row. A copy
// that comes second is removed.
func (s *Service) keepLog(ctx context.Context, t taskRow) error {
	if s.config.Blobs == nil || t.Log != nil || t.Process == "" {
		return s.logKept(ctx, t, t.Log)
	}
	attempt, err := s.beginLog(ctx, t.ID)
	if err != nil {
		return err
	}
	log := &taskLog{}
	for _, part := range []struct {
		stream holdfast.Stream
		into   *keptLog
	}{{holdfast.Stdout, &log.Stdout}, {holdfast.Stderr, &log.Stderr}} {
		key := fmt.Sprintf("%s%s-%d", taskPrefix(t.ID), part.stream, attempt)
		*part.into, err = s.keepStream(ctx, t, part.stream, key)
		if lostForGood(err) {
			return errors.Join(s.logKept(ctx, t, &taskLog{Lost: true}), s.dropLog(ctx, *log))
		}
		if err != nil {
			return errors.Join(fmt.Errorf("keep the output of %s: %w", t.ID, err), s.dropLog(ctx, *log))
		}
	}
	return s.logKept(ctx, t, log)
}

// outputHolds is for how long at most the output of tasks that cannot be kept holds up
// the delete of what they ran on.
const outputHolds = time.Minute

// keepLogs keeps the output of those tasks that ended on what is about to be deleted:
// it goes with it (contract: E3). An error holds the delete up.
func (s *Service) keepLogs(ctx context.Context, b begun) error {
	if s.config.Blobs == nil || !b.row.ofSession() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patienceOf(ctx))
	defer cancel()
	var ended []taskRow
	var now time.Time
	err := s.view(ctx, "tasks whose output is not kept", func(tx store.Tx, at time.Time) (err error) {
		now = at
		ended, err = tasks(ctx, tx, `WHERE session = $1 AND finished_at > 0 AND process <> '' AND log = '' ORDER BY id`, b.row.Owner)
		return err
	})
	for _, t := range ended {
		err = errors.Join(err, s.keepLog(ctx, t))
	}
	if err == nil {
		return nil
	}
	if now.Sub(b.op.EnteredAt) < outputHolds {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage, "the output of its tasks cannot be kept yet").Because(err).Retry(time.Second)
	}
	s.config.Logger.Warn("the output of tasks goes with what they ran on", "session", b.row.Owner, "error", err)
	return nil
}

// lostForGood reports whether whoever had the output says that it is gone: with its
// boot, or since its process's record is not one any more.
func lostForGood(err error) bool {
	reason := holdfast.ReasonOf(err)
	return reason == holdfast.ReasonIncarnation || holdfast.CodeOf(err) == holdfast.NotFound ||
		holdfast.CodeOf(err) == holdfast.FailedPrecondition && (reason == holdfast.ReasonState || reason == holdfast.ReasonStorage)
}

func (s *Service) beginLog(ctx context.Context, id holdfast.TaskID) (attempt int64, err error) {
	err = s.update(ctx, "begin to keep output", func(tx store.Tx, now time.Time) error {
		t, found, err := lockTask(ctx, tx, id)
		if err != nil || !found {
			return err
		}
		t.LogAttempts++
		attempt = t.LogAttempts
		return t.save(ctx, tx, now)
	})
	return attempt, err
}

// keepStream copies one stream, as it is when the copy begins, to one object.
func (s *Service) keepStream(ctx context.Context, t taskRow, stream holdfast.Stream, key string) (keptLog, error) {
	p, err := s.askForTask(ctx, t)
	if err != nil {
		return keptLog{}, err
	}
	in := holdfast.TaskOutput{ID: t.ID, StdoutOffset: p.StdoutSize, StderrOffset: p.StderrSize}
	from := &in.StdoutOffset
	if stream == holdfast.Stderr {
		from = &in.StderrOffset
	}
	if *from == 0 {
		return keptLog{}, nil
	}
	*from = max(0, *from-maxTaskLog)
	kept := keptLog{Key: key, Base: -1}
	r, w := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		_, err := s.liveOutput(ctx, t, in, false, func(c holdfast.OutputChunk) error {
			if c.Stream != stream {
				return nil
			}
			if kept.Base < 0 {
				kept.Base = c.Offset
			}
			if c.Offset != kept.Base+kept.Size { // what lay between was dropped by its bounded spool
				_, err := w.Write(make([]byte, c.Offset-kept.Base-kept.Size))
				if err != nil {
					return err
				}
				kept.Size = c.Offset - kept.Base
			}
			n, err := w.Write(c.Data)
			kept.Size += int64(n)
			return err
		})
		copied <- errors.Join(err, w.CloseWithError(err))
	}()
	info, err := s.config.Blobs.Put(ctx, key, r)
	if err = errors.Join(err, r.CloseWithError(err), <-copied); err != nil {
		return keptLog{}, err
	}
	kept.Base, kept.Size = max(kept.Base, 0), info.Size
	return kept, nil
}

// logKept names the copy in the task's row, or removes it where another was first. A
// transaction whose outcome was not known is made again, and may find its own word.
func (s *Service) logKept(ctx context.Context, t taskRow, log *taskLog) error {
	won := false
	err := s.update(ctx, "keep output", func(tx store.Tx, now time.Time) error {
		row, found, err := lockTask(ctx, tx, t.ID)
		if err != nil || !found {
			return err
		}
		if row.Log == nil {
			row.Log = log
		}
		won = row.Log.sameCopy(log)
		row.LookAt = time.Time{}
		return row.save(ctx, tx, now)
	})
	if err != nil || won || log == nil || log == t.Log {
		return err
	}
	return s.dropLog(ctx, *log)
}

// dropLog removes the objects of a copy that no row names.
func (s *Service) dropLog(ctx context.Context, log taskLog) error {
	var errs []error
	for _, k := range []keptLog{log.Stdout, log.Stderr} {
		if k.Key != "" {
			errs = append(errs, s.config.Blobs.Delete(ctx, k.Key))
		}
	}
	return errors.Join(errs...)
}
