package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-dev/holdfast"
)

// Domain is the domain of every google.rpc.ErrorInfo that a server sends.
const Domain = "holdfast.dev"

// The keys of ErrorInfo's metadata that are fields of holdfast.Error. A detail
// that would look like one of them travels behind detailPrefix.
const (
	keyResource  = "resource"
	keyOperation = "operation"
	detailPrefix = "detail-"
)

// status pairs a code with its status on the wire, and with the reason to
// assume when a status arrives without one (from a proxy, say).
type status struct {
	code   holdfast.Code
	wire   connect.Code
	reason holdfast.Reason
}

// statuses is the one translation table (contract: A8).
func statuses() []status {
	return []status{
		{holdfast.InvalidArgument, connect.CodeInvalidArgument, holdfast.ReasonBadField},
		{holdfast.Unauthenticated, connect.CodeUnauthenticated, holdfast.ReasonCredentials},
		{holdfast.PermissionDenied, connect.CodePermissionDenied, holdfast.ReasonCredentials},
		{holdfast.NotFound, connect.CodeNotFound, holdfast.ReasonUnknown},
		{holdfast.AlreadyExists, connect.CodeAlreadyExists, holdfast.ReasonRequestReused},
		{holdfast.FailedPrecondition, connect.CodeFailedPrecondition, holdfast.ReasonState},
		{holdfast.Aborted, connect.CodeAborted, holdfast.ReasonConflict},
		{holdfast.ResourceExhausted, connect.CodeResourceExhausted, holdfast.ReasonTooLarge},
		{holdfast.Unavailable, connect.CodeUnavailable, holdfast.ReasonUnreachable},
		{holdfast.DeadlineExceeded, connect.CodeDeadlineExceeded, holdfast.ReasonUnreachable},
		{holdfast.Cancelled, connect.CodeCanceled, holdfast.ReasonUnreachable},
		{holdfast.OutOfRange, connect.CodeOutOfRange, holdfast.ReasonBadField},
		{holdfast.Unimplemented, connect.CodeUnimplemented, holdfast.ReasonNotCapable},
		{holdfast.Internal, connect.CodeInternal, holdfast.ReasonBug},
	}
}

// byCode finds a code's row; a code that is not in the table is INTERNAL.
func byCode(code holdfast.Code) status {
	all := statuses()
	for _, s := range all {
		if s.code == code {
			return s
		}
	}
	return all[len(all)-1]
}

// byWire finds a status' row; a status that is not in the table is INTERNAL.
func byWire(wire connect.Code) status {
	all := statuses()
	for _, s := range all {
		if s.wire == wire {
			return s
		}
	}
	return all[len(all)-1]
}

// toWire makes the status of an error. Its cause stays behind.
func toWire(err error) *connect.Error {
	var already *connect.Error
	if errors.As(err, &already) && len(already.Details()) > 0 {
		return already
	}
	e := holdfast.AsError(err)
	if already != nil { // Connect's own refusal of a message
		row := byWire(already.Code())
		e = holdfast.E(row.code, row.reason, "%s", already.Message())
	}
	out := connect.NewError(byCode(e.Code).wire, errors.New(text(e.Message)))
	info := &errdetails.ErrorInfo{Reason: string(e.Reason), Domain: Domain, Metadata: map[string]string{}}
	for key, value := range e.Details {
		info.Metadata[detailKey(key)] = text(value)
	}
	if e.Resource != "" {
		info.Metadata[keyResource] = text(e.Resource)
	}
	if e.Operation != "" {
		info.Metadata[keyOperation] = text(e.Operation)
	}
	if detail, err := connect.NewErrorDetail(info); err == nil { // fails for messages that cannot be marshalled only
		out.AddDetail(detail)
	}
	if e.RetryAfter > 0 {
		if detail, err := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)}); err == nil {
			out.AddDetail(detail)
		}
	}
	return out
}

func detailKey(key string) string {
	if key == keyResource || key == keyOperation || strings.HasPrefix(key, detailPrefix) {
		return detailPrefix + text(key)
	}
	return text(key)
}

// fromWire makes the error of what a call returned: the server's own, whole; or,
// when no server answered, what is known about that (contract: A8).
func fromWire(ctx context.Context, procedure string, err error) error {
	if err == nil {
		return nil
	}
	var wire *connect.Error
	if !errors.As(err, &wire) {
		wire = connect.NewError(connect.CodeUnknown, err)
	}
	if !connect.IsWireError(err) {
		return unanswered(ctx, procedure, wire)
	}
	row := byWire(wire.Code())
	out := holdfast.E(row.code, row.reason, "%s", wire.Message())
	for _, detail := range wire.Details() {
		value, err := detail.Value()
		if err != nil {
			continue // a detail of a type that a newer server knows
		}
		switch value := value.(type) {
		case *errdetails.ErrorInfo:
			if value.GetDomain() == Domain {
				readInfo(out, value)
			}
		case *errdetails.RetryInfo:
			out.RetryAfter = value.GetRetryDelay().AsDuration()
		}
	}
	return out
}

func readInfo(out *holdfast.Error, info *errdetails.ErrorInfo) {
	out.Reason = holdfast.Reason(info.GetReason())
	for key, value := range info.GetMetadata() {
		switch key {
		case keyResource:
			out.Resource = value
		case keyOperation:
			out.Operation = value
		default:
			if out.Details == nil {
				out.Details = map[string]string{}
			}
			out.Details[strings.TrimPrefix(key, detailPrefix)] = value
		}
	}
}

// unanswered judges a call that got no answer of a Holdfast server. Whatever the
// transport calls it, the call may have happened and may be repeated, unless
// what did answer says that a repeat cannot help.
func unanswered(ctx context.Context, procedure string, wire *connect.Error) error {
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("%s: %w", procedure, holdfast.AsError(cause).Because(wire))
	}
	if strings.HasPrefix(wire.Message(), "marshal message") { // nothing was sent
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "%s: a field is not UTF-8", procedure).Because(wire)
	}
	row := byWire(wire.Code())
	switch row.code {
	case holdfast.Unauthenticated, holdfast.PermissionDenied, holdfast.ResourceExhausted, holdfast.DeadlineExceeded:
	case holdfast.Unimplemented:
		return holdfast.E(row.code, row.reason, "what answered is no Holdfast server, or an older one without %s", procedure).Because(wire)
	default:
		row = byCode(holdfast.Unavailable)
	}
	return holdfast.E(row.code, row.reason, "no answer to %s; it may have happened", procedure).Because(wire)
}

// text makes a string fit for the wire, where strings are UTF-8: what comes out
// of a guest may be anything.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
