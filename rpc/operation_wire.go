package rpc

import (
	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
)

func operationToWire(o holdfast.Operation) *v1.Operation {
	out := &v1.Operation{
		Id: string(o.ID), Resource: o.Resource,
		Kind:       enum[v1.Operation_Kind](v1.Operation_Kind_value, o.Kind),
		State:      enum[v1.Operation_State](v1.Operation_State_value, o.State),
		Generation: o.Generation, Attempts: int32(o.Attempts),
		Since: stamp(o.Since), UpdatedAt: stamp(o.UpdatedAt), FinishedAt: stamp(o.FinishedAt),
		WaitsFor: text(o.WaitsFor), LastError: errorToWire(o.LastError), Next: text(o.Next),
		Cause: text(string(o.Cause)),
	}
	if c := o.Claim; c != nil {
		out.Claim = &v1.Claim{Holder: text(c.Holder), Number: c.Number, ExpiresAt: stamp(c.ExpiresAt)}
	}
	return out
}

func operationFromWire(o *v1.Operation) holdfast.Operation {
	out := holdfast.Operation{
		ID: holdfast.OperationID(o.GetId()), Resource: o.GetResource(),
		Kind:       word[holdfast.OperationKind](v1.Operation_Kind_name, o.GetKind()),
		State:      word[holdfast.OperationState](v1.Operation_State_name, o.GetState()),
		Generation: o.GetGeneration(), Attempts: int(o.GetAttempts()),
		Since: instant(o.GetSince()), UpdatedAt: instant(o.GetUpdatedAt()), FinishedAt: instant(o.GetFinishedAt()),
		WaitsFor: o.GetWaitsFor(), LastError: errorFromWire(o.GetLastError()), Next: o.GetNext(),
		Cause: holdfast.Reason(o.GetCause()),
	}
	if c := o.GetClaim(); c != nil {
		out.Claim = &holdfast.Claim{Holder: c.GetHolder(), Number: c.GetNumber(), ExpiresAt: instant(c.GetExpiresAt())}
	}
	return out
}

func errorToWire(e *holdfast.Error) *v1.Error {
	if e == nil {
		return nil
	}
	return &v1.Error{
		Code:   enum[v1.Error_Code](v1.Error_Code_value, byCode(e.Code).code),
		Reason: text(string(e.Reason)), Message: text(e.Message), Resource: text(e.Resource), Operation: text(e.Operation),
		RetryAfter: span(e.RetryAfter), Details: texts(e.Details),
	}
}

func errorFromWire(e *v1.Error) *holdfast.Error {
	if e == nil {
		return nil
	}
	return &holdfast.Error{
		Code: word[holdfast.Code](v1.Error_Code_name, e.GetCode()), Reason: holdfast.Reason(e.GetReason()), Message: e.GetMessage(),
		Resource: e.GetResource(), Operation: e.GetOperation(), RetryAfter: e.GetRetryAfter().AsDuration(), Details: filled(e.GetDetails()),
	}
}
