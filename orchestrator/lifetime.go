package orchestrator

import (
	"context"
	"encoding/json"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// ExtendSandbox moves the end of a lifetime, or of a suspended one's retention,
// to the later of what it is and now + ttl (contract: A11).
func (s *Service) ExtendSandbox(ctx context.Context, caller holdfast.Caller, in holdfast.ExtendSandbox) (holdfast.Sandbox, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Sandbox{}, err
	}
	to := holdfast.MutateSandbox{ID: in.ID, IfGeneration: in.IfGeneration}
	return s.changeLifetime(ctx, caller, to, func(r *row, now time.Time) error {
		if err := s.allowed(*r, in.TTL); err != nil {
			return err
		}
		if r.ExpiresAt.IsZero() { // not ready yet: the lifetime to come
			r.TTL = max(r.TTL, in.TTL)
			return nil
		}
		if until := now.Add(in.TTL); until.After(r.ExpiresAt) {
			r.ExpiresAt = until
		}
		return nil
	})
}

// SetSandboxLifetime sets what the present lifetime is and those to come; a
// suspended one's retention stays as it is (contract: A11).
func (s *Service) SetSandboxLifetime(ctx context.Context, caller holdfast.Caller, in holdfast.SetSandboxLifetime) (holdfast.Sandbox, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Sandbox{}, err
	}
	to := holdfast.MutateSandbox{ID: in.ID, IfGeneration: in.IfGeneration}
	return s.changeLifetime(ctx, caller, to, func(r *row, now time.Time) error {
		if in.OnExpiry != "" {
			r.OnExpiry = in.OnExpiry
		}
		if in.TTL == 0 {
			return nil
		}
		if err := s.checkTTL(in.TTL); err != nil {
			return err
		}
		r.TTL = in.TTL
		if !r.ExpiresAt.IsZero() && !r.Retained {
			r.ExpiresAt = now.Add(in.TTL)
		}
		return nil
	})
}

// changeLifetime needs no claim and waits for no attempt: it changes no intent.
// It and expiry decide under the same row's lock, so whoever commits first wins
// (trap T43).
func (s *Service) changeLifetime(ctx context.Context, caller holdfast.Caller, to holdfast.MutateSandbox, change func(*row, time.Time) error) (holdfast.Sandbox, error) {
	var r row
	var pending *operation.Operation
	err := s.update(ctx, "change the lifetime", func(tx store.Tx, _ time.Time) error {
		var found bool
		var now time.Time
		var err error
		if r, found, now, err = lockRow(ctx, tx, to.ID); err != nil {
			return err
		}
		if !found || r.Project != caller.Project {
			return notFound(to.ID)
		}
		if r.Owner != "" {
			return owned(r)
		}
		op, has, err := operation.Pending(ctx, tx, r.resource())
		if err != nil {
			return err
		}
		if pending = nil; has {
			pending = &op
		}
		if !lives(r, pending) {
			return s.refuseLifetime(ctx, tx, r, pending)
		}
		if to.IfGeneration != 0 && to.IfGeneration != r.Generation {
			return otherGeneration(r, to.IfGeneration)
		}
		if err := change(&r, now); err != nil {
			return err
		}
		return r.save(ctx, tx, now)
	})
	if err != nil {
		return holdfast.Sandbox{}, err
	}
	return s.show(r, pending), nil
}

// lives reports whether a sandbox has a lifetime that can still be changed: the
// last columns of lifecycle.md's table.
func lives(r row, pending *operation.Operation) bool {
	switch r.State {
	case holdfast.SandboxCreating, holdfast.SandboxReady, holdfast.SandboxSuspended:
		return !r.DeleteWanted && (pending == nil || causeOf(*pending) != holdfast.ReasonExpired)
	}
	return false
}

func (s *Service) refuseLifetime(ctx context.Context, tx store.Tx, r row, pending *operation.Operation) error {
	last := pending
	if last == nil {
		journal, err := operation.List(ctx, tx, operation.Filter{Resource: r.resource(), Newest: true, Limit: 1})
		if err != nil {
			return err
		}
		if len(journal) > 0 {
			last = &journal[0]
		}
	}
	e := holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "%s is %s: its lifetime is over", r.ID, r.State).
		On(string(r.ID)).With("state", string(r.State))
	if r.DeleteWanted {
		e.Message = "a delete of " + string(r.ID) + " is wanted: its lifetime is over"
	}
	if last != nil {
		e = e.During(last.ID)
		if causeOf(*last) == holdfast.ReasonExpired {
			e.Reason = holdfast.ReasonExpired
			e.Message = "the lifetime of " + string(r.ID) + " ended before this, and the " + last.Kind + " that ends it has begun: create another one, or resume it once it is SUSPENDED"
		}
	}
	return e
}

// allowed holds an extension against the limit of what it extends.
func (s *Service) allowed(r row, ttl time.Duration) error {
	if !r.Retained {
		return s.checkTTL(ttl)
	}
	if ttl > s.config.MaxRetention {
		return outOfRange(ttl, s.config.MaxRetention, "a suspended sandbox is kept")
	}
	return nil
}

// checkTTL holds a lifetime against this server's limit. A create that is known
// already is not held against it: a limit that was lowered breaks no old retry.
func (s *Service) checkTTL(ttl time.Duration) error {
	if ttl > s.config.MaxTTL {
		return outOfRange(ttl, s.config.MaxTTL, "a sandbox lives")
	}
	return nil
}

func outOfRange(ttl, most time.Duration, what string) error {
	return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "ttl is %s; on this server %s for %s to %s at a time",
		ttl, what, holdfast.MinTTL, most).With("field", "ttl")
}

// arrive is what a finished operation changes of a sandbox.
func (s *Service) arrive(r *row, verb holdfast.OperationKind, seen holdfast.Observation, now time.Time) {
	r.State = target(verb)
	switch verb {
	case holdfast.OperationCreate, holdfast.OperationResume, holdfast.OperationReplace:
		if r.ReadyAt.IsZero() {
			r.ReadyAt = now
		}
		// A replacement goes on with the lifetime of what it replaces, unless that was suspended.
		if verb != holdfast.OperationReplace || r.Retained || r.ExpiresAt.IsZero() {
			r.ExpiresAt, r.Retained = now.Add(r.TTL), false
		}
		if len(seen.Ports) > 0 {
			r.Ports = seen.Ports
		}
	case holdfast.OperationSuspend:
		r.ExpiresAt, r.Retained = now.Add(s.config.Retention), true
	case holdfast.OperationDelete:
		r.DeletedAt = now
	}
	r.livesAsOwner()
}

// fail makes a sandbox FAILED: its record and output are kept for a while.
func (r *row) fail(failure *holdfast.Failure, now time.Time) {
	r.State, r.Failure = holdfast.SandboxFailed, failure
	r.ExpiresAt, r.Retained = now.Add(holdfast.FailedKept), true
	r.livesAsOwner()
}

// origin is what is stored with an operation: why it began where no caller asked for
// it, and what it takes.
type origin struct {
	Cause      holdfast.Reason       `json:"cause,omitempty"`
	Checkpoint holdfast.CheckpointID `json:"checkpoint,omitempty"` // that a CHECKPOINT takes
}

func (o origin) json() []byte {
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err) // two strings
	}
	return raw
}

// causeOf is why an operation began; "" where a caller asked for it.
func causeOf(op operation.Operation) holdfast.Reason { return originOf(op).Cause }

func originOf(op operation.Operation) (o origin) {
	if len(op.Input) == 0 || json.Unmarshal(op.Input, &o) != nil {
		return origin{}
	}
	return o
}
