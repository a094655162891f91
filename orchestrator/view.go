package orchestrator

import (
	"context"
	"strings"
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
	case op.Kind == string(holdfast.OperationBuild):
		return "wait: it goes on by itself; another build of the environment takes its place"
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
	of, wanted, err := s.resourceOf(ctx, caller, in.Resource)
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
			page.Operations = append(page.Operations, showOperation(op, now, wanted))
		}
		return nil
	})
	return page, err
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
		project, wanted, err := ownerOf(ctx, tx, op.Resource)
		if err != nil {
			return err
		}
		if project != caller.Project {
			return unknown
		}
		out = showOperation(op, now, wanted)
		return nil
	})
	return out, err
}

// resourceOf is a resource of the caller's project that has a journal, and whether its
// delete is wanted.
func (s *Service) resourceOf(ctx context.Context, caller holdfast.Caller, id string) (of operation.Resource, deleteWanted bool, err error) {
	of = operation.Resource{Kind: kindSandbox, ID: id}
	unknown := notFound(holdfast.SandboxID(id))
	switch prefix, _, _ := strings.Cut(id, "-"); prefix {
	case holdfast.PrefixSession:
		of.Kind, unknown = kindSession, noSession(holdfast.SessionID(id))
	case holdfast.PrefixBuild:
		of.Kind, unknown = kindBuild, noBuild(holdfast.BuildID(id))
	case holdfast.PrefixCheckpoint:
		of.Kind, unknown = kindCheckpoint, noCheckpoint(holdfast.CheckpointID(id))
	}
	err = s.view(ctx, "whose journal", func(tx store.Tx, _ time.Time) error {
		project, wanted, err := ownerOf(ctx, tx, of)
		if err == nil && project != caller.Project {
			err = unknown
		}
		deleteWanted = wanted
		return err
	})
	return of, deleteWanted, err
}

// ownerOf is the project of what an operation is on, and whether its delete is wanted;
// "" where it is not there.
func ownerOf(ctx context.Context, tx store.Tx, of operation.Resource) (project holdfast.ProjectID, deleteWanted bool, err error) {
	switch of.Kind {
	case kindSession:
		r, _, err := oneSession(ctx, tx, `WHERE id = $1`, of.ID)
		return r.Project, r.DeleteWanted, err
	case kindBuild:
		b, _, err := oneBuild(ctx, tx, holdfast.BuildID(of.ID), "")
		return b.Project, false, err
	case kindCheckpoint:
		c, _, err := oneCheckpoint(ctx, tx, holdfast.CheckpointID(of.ID), "")
		return c.Project, false, err
	}
	r, _, err := oneRow(ctx, tx, `WHERE id = $1`, of.ID)
	return r.Project, r.DeleteWanted, err
}

// checkToken tells a page token from what no list ever returned, which would
// otherwise be taken for the end of the list. Tokens are the ids pages end with.
func checkToken(token, prefix string) error {
	if token == "" || holdfast.CheckID("page_token", prefix, token) == nil {
		return nil
	}
	return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "page_token is none that a list returned").With("field", "page_token")
}
