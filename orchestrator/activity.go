package orchestrator

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// activities remembers until when the leases go that this process committed, so that
// traffic renews one now and then, and not with each byte (contract: A12).
type activities struct {
	mu    sync.Mutex
	until map[string]time.Time // by session, by the database's clock
}

// activitiesKept bounds the memory of leases; past it, it starts anew, which costs a
// few writes.
const activitiesKept = 10_000

func newActivities() *activities { return &activities{until: map[string]time.Time{}} }

// fresh reports whether a lease goes on for at least half its length.
func (a *activities) fresh(session string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.until[session].Sub(now) > holdfast.ActivityLease/2
}

func (a *activities) put(session string, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.until) >= activitiesKept {
		clear(a.until)
	}
	a.until[session] = until
}

// active commits a lease of activity on a session's sandbox before the first byte,
// and renews it while there is traffic; what belongs to no session pays nothing. A
// lease expires by itself, so that a dead connection is no activity. It locks the
// session's row, as the decision to suspend an idle one does.
func (s *Service) active(ctx context.Context, owner string) error {
	if holdfast.CheckID("session", holdfast.PrefixSession, owner) != nil || s.activity.fresh(owner, s.databaseClock()) {
		return nil
	}
	var until time.Time
	err := s.update(ctx, "activity", func(tx store.Tx, now time.Time) error {
		until = now.Add(holdfast.ActivityLease)
		_, err := tx.ExecContext(ctx, `UPDATE session SET active_at = $2 WHERE id = $1 AND active_at < $2`, owner, store.Micros(until))
		if err != nil {
			return fmt.Errorf("note activity on %s: %w", owner, err)
		}
		return nil
	})
	if err == nil {
		s.activity.put(owner, until)
	}
	return err
}

// livelyGuest is a guest whose traffic renews the lease of the session that its
// sandbox belongs to.
func (s *Service) livelyGuest(ctx context.Context, owner string, g holdfast.Guest) holdfast.Guest {
	renew := func() {
		if err := s.active(ctx, owner); err != nil {
			// What is passed on is passed on all the same: idleness is decided by what was committed.
			s.config.Logger.Warn("activity is not noted", "session", owner, "error", err)
		}
	}
	if g.Processes != nil {
		g.Processes = livelyProcesses{g.Processes, renew}
	}
	if g.Files != nil {
		g.Files = livelyFiles{g.Files, renew}
	}
	return g
}

type livelyProcesses struct {
	holdfast.GuestProcesses
	renew func()
}

func (l livelyProcesses) StreamProcessOutput(ctx context.Context, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	return l.GuestProcesses.StreamProcessOutput(ctx, in, func(c holdfast.OutputChunk) error {
		l.renew()
		return yield(c)
	})
}

type livelyFiles struct {
	holdfast.GuestFiles
	renew func()
}

func (l livelyFiles) ReadFile(ctx context.Context, in holdfast.ReadFile) (holdfast.FileInfo, io.ReadCloser, error) {
	info, body, err := l.GuestFiles.ReadFile(ctx, in)
	if body == nil {
		return info, body, err
	}
	return info, livelyBody{livelyReader{body, l.renew}, body}, err
}

func (l livelyFiles) WriteFile(ctx context.Context, in holdfast.WriteFile, content io.Reader) (holdfast.FileWritten, error) {
	return l.GuestFiles.WriteFile(ctx, in, livelyReader{content, l.renew})
}

type livelyReader struct {
	io.Reader
	renew func()
}

func (l livelyReader) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if n > 0 {
		l.renew()
	}
	return n, err
}

type livelyBody struct {
	livelyReader
	io.Closer
}

// idleSessions finds sessions that nothing was done with for their idle time. The
// index holds those that could be suspended, the longest idle first.
func (s *Service) idleSessions(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	return s.overduePage(ctx, "idle sessions", overdueQuery{`SELECT id, active_at + idle FROM session
		WHERE state = 'READY' AND active_at + idle <= $1 AND (active_at + idle, id) > ($2, $3) ORDER BY active_at + idle, id LIMIT $4`,
		func(ctx context.Context, id string) error { return s.suspendIdle(ctx, holdfast.SessionID(id)) }}, after, limit)
}

// suspendIdle decides again in the transaction that begins the suspension: what was
// done meanwhile is seen, and what comes after finds the suspension.
func (s *Service) suspendIdle(ctx context.Context, id holdfast.SessionID) error {
	began := false
	err := s.update(ctx, "suspend an idle session", func(tx store.Tx, _ time.Time) error {
		began = false
		h, found, now, err := lockSession(ctx, tx, id)
		if err != nil || !found {
			return err
		}
		queued, err := s.queueOf(ctx, tx, []holdfast.SessionID{id})
		if err != nil || !idle(h, queued[id], now) {
			return err
		}
		began = true
		return s.beginIdleSuspend(ctx, tx.(*unit), now, &h)
	})
	return skippedIf(!began, err)
}

// idle reports whether a session is to be suspended: nothing runs, waits or is
// pending, and nothing was done for its idle time.
func idle(h held, q queue, now time.Time) bool {
	return h.State == holdfast.SessionReady && h.pending == nil && h.boxed == nil && q.waiting == 0 && q.running == "" &&
		!now.Before(h.ActiveAt.Add(h.Idle))
}
