package rpc

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

// Dial makes the services of a remote server at baseURL. Nothing is sent yet,
// and no call is repeated (trap T22). Who calls is what the API key says: the
// services ignore the caller that they are given. "" sends no key. The client's
// transport decides how: NewHTTPClient, or memory. More options choose another
// protocol, such as connect.WithGRPC.
func Dial(httpClient *http.Client, baseURL, apiKey string, more ...connect.ClientOption) Services {
	options := append([]connect.ClientOption{connect.WithInterceptors(bearer(apiKey))}, more...)
	return Services{
		Sandboxes:  sandboxDialer{holdfastv1connect.NewSandboxServiceClient(httpClient, baseURL, options...)},
		Operations: operationDialer{holdfastv1connect.NewOperationServiceClient(httpClient, baseURL, options...)},
		Processes:  processDialer{holdfastv1connect.NewProcessServiceClient(httpClient, baseURL, options...)},
		Files:      fileDialer{holdfastv1connect.NewFileServiceClient(httpClient, baseURL, options...)},
		Audit:      auditDialer{holdfastv1connect.NewAuditServiceClient(httpClient, baseURL, options...)},
		Fleet:      fleetDialer{holdfastv1connect.NewFleetServiceClient(httpClient, baseURL, options...)},
		Projects:   projectDialer{holdfastv1connect.NewProjectServiceClient(httpClient, baseURL, options...)},
		Tasks:      taskDialer{holdfastv1connect.NewTaskServiceClient(httpClient, baseURL, options...)},
		Keys:       keyDialer{holdfastv1connect.NewKeyServiceClient(httpClient, baseURL, options...)},
		Events:     eventDialer{holdfastv1connect.NewEventServiceClient(httpClient, baseURL, options...)},
		Webhooks:   webhookDialer{holdfastv1connect.NewWebhookServiceClient(httpClient, baseURL, options...)},
		Hooks:      hookDialer{holdfastv1connect.NewHookServiceClient(httpClient, baseURL, options...)},

		Sessions:     sessionDialer{holdfastv1connect.NewSessionServiceClient(httpClient, baseURL, options...)},
		Checkpoints:  checkpointDialer{holdfastv1connect.NewCheckpointServiceClient(httpClient, baseURL, options...)},
		Environments: environmentDialer{holdfastv1connect.NewEnvironmentServiceClient(httpClient, baseURL, options...)},
	}
}

// bearer is an API key that goes with every call.
type bearer string

func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		b.sign(req.Header())
		return next(ctx, req)
	}
}

func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		b.sign(conn.RequestHeader())
		return conn
	}
}

func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func (b bearer) sign(header http.Header) {
	if b != "" {
		header.Set("Authorization", "Bearer "+string(b))
	}
}

// call makes one unary call and translates both ways.
func call[In, WireOut, Out any](ctx context.Context, procedure string, send func(context.Context, In) (WireOut, error), in In, translate func(WireOut) Out) (Out, error) {
	answer, err := send(ctx, in)
	if err != nil {
		var none Out
		return none, fromWire(ctx, procedure, err)
	}
	return translate(answer), nil
}

// nothing translates an empty answer.
func nothing[WireOut any](WireOut) struct{} { return struct{}{} }

// received yields each message of a stream to its end, and closes it. A stream
// that yield ends by an error is given up, and that error returned.
func received[M any](ctx context.Context, procedure string, open func(context.Context) (*connect.ServerStreamForClient[M], error), yield func(*M) error) error {
	streaming, giveUp := context.WithCancel(ctx)
	defer giveUp()
	stream, err := open(streaming)
	if err != nil {
		return fromWire(ctx, procedure, err)
	}
	for stream.Receive() {
		if err := yield(stream.Msg()); err != nil {
			return closing(ctx, procedure, err, stream)
		}
	}
	if err := stream.Err(); err != nil {
		return closing(ctx, procedure, fromWire(ctx, procedure, err), stream)
	}
	return closing(ctx, procedure, nil, stream)
}

// opening binds a streaming call to its request.
func opening[In, M any](open func(context.Context, In) (*connect.ServerStreamForClient[M], error), in In) func(context.Context) (*connect.ServerStreamForClient[M], error) {
	return func(ctx context.Context) (*connect.ServerStreamForClient[M], error) { return open(ctx, in) }
}

// closing closes a stream after err. What closing says matters only where
// everything had gone well until then.
func closing(ctx context.Context, procedure string, err error, stream interface{ Close() error }) error {
	if failed := stream.Close(); failed != nil && err == nil {
		return fromWire(ctx, procedure, failed)
	}
	return err
}

// interrupted is for a stream that ended well but before what must come last.
func interrupted(procedure, missing string) error {
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonInterrupted, "%s ended without %s", procedure, missing)
}
