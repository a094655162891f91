package orchestrator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/store"
)

// savedLog is a build's log, as it was put into the blob store, and its end.
type savedLog struct {
	log  buildLog
	tail string
}

// buildPrefix is where what belongs to a build lies in the blob store; its copy of the
// builder's disk lies with the checkpoints.
func buildPrefix(id holdfast.BuildID) string { return "builds/" + string(id) + "/" }

// saveLog puts the setup's log into the blob store, once, before the build ends.
func (s *Service) saveLog(ctx context.Context, a *buildAttempt) error {
	if a.build.Log.Key != "" || a.build.Process == "" {
		return nil
	}
	kept, err := s.copyLog(ctx, a.build, a.builder, a.claim.Number)
	if err != nil {
		return err
	}
	return s.changeBuild(ctx, a, func(b *buildRow, _ time.Time) {
		b.Log = kept.log
		if kept.tail != "" {
			b.LogTail = kept.tail
		}
	})
}

// copyLog copies what the host has of a setup's output into the blob store, under a key
// of this attempt's own. Where nothing is to be had for good, nothing is kept.
func (s *Service) copyLog(ctx context.Context, b buildRow, builder row, claim int64) (savedLog, error) {
	if b.Process == "" || b.Log.Key != "" || !accessRecorded.fits(builder.State) {
		return savedLog{}, nil
	}
	p, err := s.GetProcess(ctx, b.caller(), b.Sandbox, b.Process)
	if err != nil {
		return savedLog{}, gone(err)
	}
	kept := savedLog{log: buildLog{From: max(0, p.StdoutSize-holdfast.MaxBuildLog)}}
	var end tail
	copied, out := io.Pipe()
	read := make(chan error, 1)
	go func() {
		first := true
		_, err := s.StreamProcessOutput(ctx, b.caller(), b.Sandbox, holdfast.ReadOutput{Process: b.Process, StdoutOffset: kept.log.From},
			func(c holdfast.OutputChunk) error {
				if c.Stream != holdfast.Stdout {
					return nil
				}
				if first {
					kept.log.From, first = c.Offset, false // the spool is bounded
				}
				end.add(c.Data)
				_, err := out.Write(c.Data)
				return err
			})
		read <- errors.Join(err, out.CloseWithError(err))
	}()
	if s.config.Blobs == nil {
		_, err = io.Copy(io.Discard, copied)
	} else {
		var info blob.Info
		kept.log.Key = fmt.Sprintf("%s%d", buildPrefix(b.ID), claim)
		info, err = s.config.Blobs.Put(ctx, kept.log.Key, copied)
		kept.log.Size = info.Size
		if err != nil {
			err = blobError(err)
		}
	}
	err = errors.Join(err, copied.CloseWithError(err))
	if from := <-read; from != nil {
		return savedLog{}, gone(from)
	}
	kept.tail = tidy(end.text())
	return kept, err
}

// gone takes the word that there is nothing to read for an empty log.
func gone(err error) error {
	if err != nil && !holdfast.Transient(err) {
		return nil
	}
	return err
}

// tail keeps the end of what is written.
type tail struct{ kept []byte }

func (t *tail) add(p []byte) {
	t.kept = append(t.kept, p[max(0, len(p)-holdfast.MaxReportTail):]...)
	t.kept = t.kept[max(0, len(t.kept)-holdfast.MaxReportTail):]
}

// text begins with a whole line, where there is one.
func (t *tail) text() string {
	kept := t.kept
	if at := bytes.IndexByte(kept, '\n'); at >= 0 && at < len(kept)-1 && len(kept) == holdfast.MaxReportTail {
		kept = kept[at+1:]
	}
	return string(kept)
}

// logPoll is how often a follower looks whether a build got further.
const logPoll = 500 * time.Millisecond

// StreamBuildLog yields what the setup writes, from an offset on: from the builder's
// host while it is there, from the blob store after. With Follow it goes on until the
// setup has ended, from before it began on.
func (s *Service) StreamBuildLog(ctx context.Context, caller holdfast.Caller, in holdfast.BuildLog, yield func(holdfast.OutputChunk) error) error {
	if err := in.Validate(); err != nil {
		return err
	}
	at := in.Offset
	take := func(c holdfast.OutputChunk) error {
		at = max(at, c.Offset+int64(len(c.Data)))
		return yield(c)
	}
	for {
		b, builder, err := s.buildOf(ctx, caller, in.ID)
		if err != nil {
			return err
		}
		switch {
		case b.Log.Key != "":
			return s.storedLog(ctx, b, at, take)
		case b.Process != "" && accessRecorded.fits(builder.State):
			p, err := s.StreamProcessOutput(ctx, b.caller(), b.Sandbox, holdfast.ReadOutput{Process: b.Process, StdoutOffset: at, Follow: in.Follow}, take)
			if err == nil && (!in.Follow || p.State == holdfast.ProcessExited) {
				return nil
			}
			if err != nil && holdfast.ReasonOf(err) != holdfast.ReasonState { // the log may have moved meanwhile
				return err
			}
		case !b.FinishedAt.IsZero():
			return nil
		}
		if !in.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return holdfast.AsError(ctx.Err())
		case <-time.After(logPoll):
		}
	}
}

// buildOf is a build of the caller's project with its builder.
func (s *Service) buildOf(ctx context.Context, caller holdfast.Caller, id holdfast.BuildID) (b buildRow, builder row, err error) {
	err = s.view(ctx, "look at a build", func(tx store.Tx, _ time.Time) error {
		var found bool
		if b, found, err = oneBuild(ctx, tx, id, ""); err != nil {
			return err
		}
		if !found || b.Project != caller.Project {
			return noBuild(id)
		}
		builder, _, err = oneRow(ctx, tx, `WHERE id = $1`, string(b.Sandbox))
		return err
	})
	return b, builder, err
}

// storedLog yields a kept log from an offset on.
func (s *Service) storedLog(ctx context.Context, b buildRow, at int64, yield func(holdfast.OutputChunk) error) (err error) {
	if s.config.Blobs == nil {
		return errNoBlobs()
	}
	body, _, err := s.config.Blobs.Get(ctx, b.Log.Key)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return holdfast.E(holdfast.NotFound, holdfast.ReasonBlobGone, "the log of %s is not in the blob store any more", b.ID).On(string(b.ID))
	case err != nil:
		return blobError(err)
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	at = max(at, b.Log.From)
	if _, err := io.CopyN(io.Discard, body, at-b.Log.From); err != nil {
		if errors.Is(err, io.EOF) {
			return nil
		}
		return blobError(err)
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if err := yield(holdfast.OutputChunk{Stream: holdfast.Stdout, Offset: at, Data: bytes.Clone(buffer[:n])}); err != nil {
				return err
			}
			at += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return blobError(err)
		}
	}
}
