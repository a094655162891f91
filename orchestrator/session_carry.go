package orchestrator

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// advance makes one step of a session's operation, if it is still the pending one;
// otherwise there is nothing more to do. hook is how its hook ended, nil while it has not.
func (s *Service) advance(ctx context.Context, id holdfast.SessionID, op string, hook *hookEnd) (h held, at stage, err error) {
	err = s.update(ctx, "carry a session's operation on", func(tx store.Tx, _ time.Time) error {
		at = stageFinish
		var found bool
		var now time.Time
		var err error
		h, found, now, err = lockSession(ctx, tx, id)
		if err != nil || !found || h.pending == nil || h.pending.ID != op {
			return err
		}
		if hook != nil && h.Hooked != op {
			h.Hooked, h.HookFailure = op, hook.failure
			if err := h.save(ctx, tx, now); err != nil {
				return err
			}
		}
		at, err = s.step(ctx, tx.(*unit), now, &h)
		return err
	})
	return h, at, err
}

// see follows a session's operation to its end: it carries on what can be carried on,
// and waits for what it waits for. It returns nil when the operation has ended,
// however; why it has not, otherwise. It waits until patience or ctx ends.
func (s *Service) see(ctx context.Context, patience <-chan time.Time, id holdfast.SessionID, op string) error {
	for between := lookAgain; ; between = min(between*5/4, lookRarely) {
		rung := s.done.on(string(id))
		h, at, err := s.advance(ctx, id, op, nil)
		if err != nil {
			return err
		}
		moved := false
		switch at {
		case stageFinish:
			return nil
		case stageSandbox:
			moved, err = s.carryBox(ctx, h)
		case stageHook:
			moved, err = s.lookAtHook(ctx, h, op)
		}
		if err != nil {
			return s.ofSession(err, id, op)
		}
		if moved {
			between = lookAgain
			continue
		}
		if !s.done.awaitFor(ctx, rung, patience, between) {
			if at == stageHook {
				s.carrySessionSoon(id) // as an attempt, it outlives its caller (contract: A2)
			}
			return waitsFor(h, at)
		}
	}
}

// carryBox carries on what is pending on a session's sandbox. It reports whether
// something came of it, so that there is no need to wait before the next look.
func (s *Service) carryBox(ctx context.Context, h held) (moved bool, err error) {
	claimed, err := s.carryOnUnlessHeld(ctx, h.Sandbox)
	var other *heldError
	switch {
	case err == nil:
		return h.boxed != nil && !claimed, nil
	case errors.As(err, &other):
		return false, nil
	case holdfast.ReasonOf(err) == holdfast.ReasonPreparing && ctx.Err() == nil && h.box != nil:
		if s.prepared(ctx, h.box.Instance) {
			return true, nil
		}
	case holdfast.CodeOf(err) == holdfast.Aborted: // it gave way: the next look says to what
		return false, nil
	}
	return false, err
}

// ofSession is a sandbox's error as the caller hears it who asked for its session.
func (s *Service) ofSession(err error, id holdfast.SessionID, op string) error {
	if _, domain := errors.AsType[*holdfast.Error](err); !domain {
		return err
	}
	return holdfast.AsError(err).On(string(id)).During(op)
}

// waitsFor is what a caller hears whose time is over before the operation's.
func waitsFor(h held, at stage) error {
	what := map[stage]string{
		stageBuild: "its environment's build", stageTask: "the running task; with force it would be cancelled",
		stageCheckpoint: "the checkpoint being taken", stageHook: "its hook", stageSandbox: "its sandbox",
	}[at]
	reason := holdfast.ReasonClaimed
	if at == stageBuild {
		reason = holdfast.ReasonPreparing
	}
	return holdfast.E(holdfast.Unavailable, reason, "the %s of %s is recorded and waits for %s: repeat it, or wait", h.pending.Kind, h.ID, what).
		On(string(h.ID)).During(h.pending.ID).With("waits_for", string(at)).With("kind", h.pending.Kind).Retry(time.Second)
}

// carrySessionSoon carries on in the background what is pending on a session, at once.
func (s *Service) carrySessionSoon(id holdfast.SessionID) {
	s.background.Go(func() {
		if err := s.carrySession(s.ctx, id); err != nil {
			s.config.Logger.Info("a session's operation stays pending; a sweep carries it on", "session", id, "error", err)
		}
	})
}

// carrySession carries on whatever is pending on a session, as long as its hook takes.
func (s *Service) carrySession(ctx context.Context, id holdfast.SessionID) error {
	var op string
	err := s.view(ctx, "pending operation of a session", func(tx store.Tx, _ time.Time) error {
		op = ""
		pending, err := pendingOn(ctx, tx, operation.Resource{Kind: kindSession, ID: string(id)})
		if pending != nil {
			op = pending.ID
		}
		return err
	})
	if err != nil || op == "" {
		return err
	}
	for {
		h, at, err := s.advance(ctx, id, op, nil)
		switch {
		case err != nil || at == stageFinish:
			return err
		case at == stageSandbox:
			return s.carryOnQuietly(ctx, h.Sandbox)
		case at != stageHook:
			return nil // its end wakes whoever carries it on
		}
		moved, err := s.lookAtHook(ctx, h, op)
		if err != nil {
			return err
		}
		if !moved && !s.done.await(ctx, s.done.on(string(id)), nil) {
			return ctx.Err()
		}
	}
}

// carryAllSoon carries the operations of many sandboxes on, not all at once (trap T30).
func (s *Service) carryAllSoon(ids []holdfast.SandboxID) {
	work := make(chan holdfast.SandboxID, len(ids))
	for _, id := range ids {
		work <- id
	}
	close(work)
	for range min(len(ids), expiryRoom/2) {
		s.background.Go(func() {
			for id := range work {
				if s.ctx.Err() != nil {
					return
				}
				if err := s.carryOn(s.ctx, id); err != nil {
					s.config.Logger.Info("an operation stays pending; a sweep carries it on", "sandbox", id, "error", err)
				}
			}
		})
	}
}
