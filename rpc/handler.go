package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

// MaxMessage bounds one message of a request, in bytes, as sent and unpacked.
const MaxMessage = 4 << 20

// compressFrom is the smallest message that is worth compressing, in bytes: a
// sandbox is smaller, and to pack it costs more than to send it.
const compressFrom = 4 << 10

// Services is the root's services that callers reach: offered by NewHandler,
// made of a remote server by Dial.
type Services struct {
	Sandboxes  holdfast.SandboxService
	Operations holdfast.OperationService
	Processes  holdfast.ProcessService
	Files      holdfast.FileService
	Audit      holdfast.AuditService
	Fleet      holdfast.OperatorService
	Projects   holdfast.ProjectService
	Keys       holdfast.KeyService
	Events     holdfast.EventService
	Webhooks   holdfast.WebhookService
	Hooks      holdfast.HookService

	Checkpoints  holdfast.CheckpointService
	Tasks        holdfast.TaskService
	Sessions     holdfast.SessionService
	Environments holdfast.EnvironmentService
}

// Options say how a handler lets callers in and what it tells of itself.
type Options struct {
	// Authenticate finds who a token stands for; an error refuses the call. It
	// is not asked about calls without a token.
	Authenticate func(ctx context.Context, token string) (holdfast.Caller, error)
	// Recheck is how often Authenticate is asked again about a call that lasts,
	// which ends when its token is NOT_FOUND by then; default holdfast.KeyCache.
	Recheck time.Duration
	// Anonymous is who makes calls without a token, and all calls where there is
	// no Authenticate; nil refuses them.
	Anonymous *holdfast.Caller
	// Serving answers the health service; nil is healthy. An error makes it
	// NOT_SERVING (while draining, say).
	Serving func(ctx context.Context) error
	// WatchPatience bounds how long a watcher may take nothing at all while there
	// is something for it: then its stream is broken off, and it watches again
	// after the last version it saw. Default: 1 minute.
	WatchPatience time.Duration
	// Logger takes internal errors with their causes, and panics; nil is the default.
	Logger *slog.Logger
}

// NewHandler offers the services by gRPC, gRPC-Web and Connect (binary and
// JSON), with reflection (v1 and v1alpha) behind the same authentication and
// health open to all (contract: A8).
func NewHandler(services Services, options Options) http.Handler {
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	if options.WatchPatience <= 0 {
		options.WatchPatience = time.Minute
	}
	if options.Recheck <= 0 {
		options.Recheck = holdfast.KeyCache
	}
	handling := []connect.HandlerOption{
		connect.WithReadMaxBytes(MaxMessage),
		strictly(),
		connect.WithCompressMinBytes(compressFrom),
		connect.WithInterceptors(translator{options.Logger}),
		connect.WithRecover(recovered(options.Logger)),
	}
	names := []string{
		holdfastv1connect.SandboxServiceName, holdfastv1connect.OperationServiceName,
		holdfastv1connect.ProcessServiceName, holdfastv1connect.FileServiceName,
		holdfastv1connect.AuditServiceName, holdfastv1connect.FleetServiceName,
		holdfastv1connect.ProjectServiceName, holdfastv1connect.KeyServiceName, holdfastv1connect.CheckpointServiceName, holdfastv1connect.SessionServiceName,
		holdfastv1connect.EventServiceName, holdfastv1connect.WebhookServiceName, holdfastv1connect.HookServiceName,
		holdfastv1connect.TaskServiceName,
		holdfastv1connect.EnvironmentServiceName,
	}
	reflector := grpcreflect.NewStaticReflector(append([]string{grpchealth.HealthV1ServiceName}, names...)...)

	closed := http.NewServeMux()
	path, sandboxes := holdfastv1connect.NewSandboxServiceHandler(sandboxHandler{services.Sandboxes, options.WatchPatience}, handling...)
	closed.Handle(path, writable(sandboxes))
	closed.Handle(holdfastv1connect.NewOperationServiceHandler(operationHandler{services.Operations}, handling...))
	// What guests write is never compressed, though clients ask for it by default:
	// a stream of output was slower by far than what wrote it, and lost its head.
	bulk := slices.Concat(handling, []connect.HandlerOption{connect.WithCompressMinBytes(math.MaxInt)})
	closed.Handle(holdfastv1connect.NewProcessServiceHandler(processHandler{services.Processes}, bulk...))
	closed.Handle(holdfastv1connect.NewFileServiceHandler(fileHandler{services.Files}, bulk...))
	closed.Handle(holdfastv1connect.NewTaskServiceHandler(taskHandler{services.Tasks}, bulk...))
	closed.Handle(holdfastv1connect.NewAuditServiceHandler(auditHandler{services.Audit}, handling...))
	closed.Handle(holdfastv1connect.NewFleetServiceHandler(fleetHandler{services.Fleet}, handling...))
	closed.Handle(holdfastv1connect.NewProjectServiceHandler(projectHandler{services.Projects}, handling...))
	closed.Handle(holdfastv1connect.NewKeyServiceHandler(keyHandler{services.Keys}, handling...))
	path, events := holdfastv1connect.NewEventServiceHandler(eventHandler{services.Events, options.WatchPatience}, handling...)
	closed.Handle(path, writable(events))
	closed.Handle(holdfastv1connect.NewWebhookServiceHandler(webhookHandler{services.Webhooks}, handling...))
	closed.Handle(holdfastv1connect.NewHookServiceHandler(hookHandler{services.Hooks}, handling...))
	closed.Handle(holdfastv1connect.NewSessionServiceHandler(sessionHandler{services.Sessions}, handling...))
	closed.Handle(holdfastv1connect.NewCheckpointServiceHandler(checkpointHandler{services.Checkpoints}, handling...))
	closed.Handle(holdfastv1connect.NewEnvironmentServiceHandler(environmentHandler{services.Environments}, bulk...))
	closed.Handle(grpcreflect.NewHandlerV1(reflector, handling...))
	closed.Handle(grpcreflect.NewHandlerV1Alpha(reflector, handling...))

	open := http.NewServeMux()
	open.Handle(grpchealth.NewHandler(health{names, options.Serving}, handling...))
	refuse := connect.NewErrorWriter(handling...)
	open.Handle("/", authenticated(options, refuse, explained(options.Logger, refuse, closed)))
	return open
}

// translator turns the errors of handlers into statuses, and logs those that
// nobody outside can explain.
type translator struct{ logger *slog.Logger }

func (t translator) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		return res, t.translate(ctx, req.Spec().Procedure, err)
	}
}

func (t translator) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (t translator) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return t.translate(ctx, conn.Spec().Procedure, next(ctx, conn))
	}
}

func (t translator) translate(ctx context.Context, procedure string, err error) error {
	if err == nil {
		return nil
	}
	var ended *holdfast.Error
	if errors.As(context.Cause(ctx), &ended) {
		err = ended // the call was ended for a reason, such as its key's end
	}
	out := toWire(err)
	if out.Code() == connect.CodeInternal {
		t.logger.ErrorContext(ctx, "call failed", "procedure", procedure, "error", err)
	}
	return out
}

func recovered(logger *slog.Logger) func(context.Context, connect.Spec, http.Header, any) error {
	return func(ctx context.Context, spec connect.Spec, _ http.Header, value any) error {
		logger.ErrorContext(ctx, "panic in a call", "procedure", spec.Procedure, "panic", fmt.Sprint(value), "stack", string(debug.Stack()))
		return holdfast.E(holdfast.Internal, holdfast.ReasonBug, "internal error in %s; the server's log has the details", spec.Procedure)
	}
}

// health answers the health service for the whole server and for each service.
type health struct {
	names   []string
	serving func(context.Context) error
}

func (h health) Check(ctx context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	known := req.Service == ""
	for _, name := range h.names {
		known = known || req.Service == name
	}
	if !known {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such service: "+text(req.Service)))
	}
	if h.serving != nil {
		if err := h.serving(ctx); err != nil {
			return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil //nolint:nilerr // that it does not serve is the answer
		}
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}
