package orchestrator

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// show is a sandbox as its callers see it, with what is pending (contract: A5).
func (s *Service) show(r row, pending *operation.Operation) holdfast.Sandbox {
	out := r.Sandbox
	out.HostUnreachable = s.unreachable(r)
	if r.Unreadable != nil && out.Failure == nil {
		out.Failure = &holdfast.Failure{Reason: holdfast.ReasonBug, Message: "its record cannot be read: " + r.Unreadable.Error()}
	}
	if pending != nil && pending.State == operation.StatePending {
		op := showOperation(*pending, s.databaseClock(), r.DeleteWanted)
		out.Operation = &op
	}
	return out
}

func showOperation(op operation.Operation, now time.Time, deleteWanted bool) holdfast.Operation {
	out := holdfast.Operation{
		ID: holdfast.OperationID(op.ID), Resource: op.Resource.ID, Kind: holdfast.OperationKind(op.Kind),
		State: holdfast.OperationState(op.State), Generation: op.Generation, Attempts: op.Attempts,
		Since: op.EnteredAt, UpdatedAt: op.UpdatedAt, FinishedAt: op.FinishedAt, WaitsFor: op.WaitsFor,
		Cause: causeOf(op), Next: next(op, now, deleteWanted),
	}
	if op.Claimed(now) {
		out.Claim = &holdfast.Claim{Holder: op.Holder, Number: op.Claim, ExpiresAt: op.ClaimExpires}
	}
	if f := op.LastError; f != nil {
		out.LastError = holdfast.E(holdfast.Code(f.Code), holdfast.Reason(f.Reason), "%s", f.Message)
	}
	return out
}

// next says what is safe to do about an operation.
func next(op operation.Operation, now time.Time, deleteWanted bool) string {
	switch {
	case op.State != operation.StatePending:
		return "nothing: it has ended"
	case deleteWanted && op.Claimed(now):
		return "wait: a delete is wanted and begins when this attempt ends"
	case op.Claimed(now):
		return "wait: an attempt is executing; repeating the same call joins it"
	case op.WaitsFor != "":
		return "wait for the " + op.WaitsFor + ", or repeat the call; a delete gives it up"
	case op.Kind == string(holdfast.OperationDelete):
		return "repeat the delete, or wait: the reconciler carries it on until it is done"
	}
	return "repeat the call to carry it on now, or wait: the reconciler carries it on; a delete gives it up"
}

// ListOperations pages the journal of one resource, newest first.
func (s *Service) ListOperations(ctx context.Context, caller holdfast.Caller, in holdfast.ListOperations) (holdfast.OperationPage, error) {
	if err := in.Validate(); err != nil {
		return holdfast.OperationPage{}, err
	}
	if err := checkToken(in.PageToken, holdfast.PrefixOperation); err != nil {
		return holdfast.OperationPage{}, err
	}
	of, deleteWanted, err := s.journalOf(ctx, caller, in.Resource)
	if err != nil {
		return holdfast.OperationPage{}, err
	}
	size := in.PageSize
	if size == 0 {
		size = holdfast.DefaultPageSize
	}
	var page holdfast.OperationPage
	err = s.view(ctx, "list operations", func(tx store.Tx, now time.Time) error {
		page = holdfast.OperationPage{}
		list, err := operation.List(ctx, tx, operation.Filter{
			Resource: of, After: in.PageToken, Limit: size + 1, Newest: true})
		if err != nil {
			return err
		}
		if len(list) > size {
			list = list[:size]
			page.NextPageToken = list[size-1].ID
		}
		for _, op := range list {
			page.Operations = append(page.Operations, showOperation(op, now, deleteWanted))
		}
		return nil
	})
	return page, err
}

// journalOf is the resource of the caller's project that an id names, and whether its
// delete is wanted.
func (s *Service) journalOf(ctx context.Context, caller holdfast.Caller, id string) (of operation.Resource, deleteWanted bool, err error) {
	if holdfast.CheckID("resource", holdfast.PrefixCheckpoint, id) == nil {
		c, err := s.GetCheckpoint(ctx, caller, holdfast.CheckpointID(id))
		return checkpoint{Checkpoint: c}.resource(), false, err
	}
	r, _, err := s.read(ctx, caller, holdfast.SandboxID(id))
	return r.resource(), r.DeleteWanted, err
}

// GetOperation returns one operation of the caller's project.
func (s *Service) GetOperation(ctx context.Context, caller holdfast.Caller, id holdfast.OperationID) (holdfast.Operation, error) {
	if err := holdfast.CheckID("id", holdfast.PrefixOperation, string(id)); err != nil {
		return holdfast.Operation{}, err
	}
	var out holdfast.Operation
	err := s.view(ctx, "get operation", func(tx store.Tx, now time.Time) error {
		unknown := holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no operation %s in this project", id).On(string(id))
		op, err := operation.Get(ctx, tx, string(id))
		if isNotFound(err) {
			return unknown
		}
		if err != nil {
			return err
		}
		if op.Resource.Kind == kindCheckpoint {
			c, found, err := oneCheckpoint(ctx, tx, holdfast.CheckpointID(op.Resource.ID), "")
			if err != nil || !found || c.Project != caller.Project {
				return errors.Join(err, unknown)
			}
			out = showOperation(op, now, false)
			return nil
		}
		r, found, err := oneRow(ctx, tx, `WHERE id = $1`, op.Resource.ID)
		if err != nil {
			return err
		}
		if !found || r.Project != caller.Project {
			return unknown
		}
		out = showOperation(op, now, r.DeleteWanted)
		return nil
	})
	return out, err
}

// checkToken tells a page token from what no list ever returned, which would
// otherwise be taken for the end of the list. Tokens are the ids pages end with.
func checkToken(token, prefix string) error {
	if token == "" || holdfast.CheckID("page_token", prefix, token) == nil {
		return nil
	}
	return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "page_token is none that a list returned").With("field", "page_token")
}
