package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client/clienttest"
	"github.com/holdfast-dev/holdfast/rpc"
)

// protocols are the ways to speak to a server.
func protocols() map[string][]connect.ClientOption {
	return map[string][]connect.ClientOption{
		"Connect":      nil,
		"Connect JSON": {connect.WithProtoJSON()},
		"gRPC":         {connect.WithGRPC()},
		"gRPC-Web":     {connect.WithGRPCWeb()},
	}
}

func everyCode() []holdfast.Code {
	return []holdfast.Code{
		holdfast.InvalidArgument, holdfast.Unauthenticated, holdfast.PermissionDenied, holdfast.NotFound, holdfast.AlreadyExists,
		holdfast.FailedPrecondition, holdfast.Aborted, holdfast.ResourceExhausted, holdfast.Unavailable, holdfast.DeadlineExceeded,
		holdfast.Cancelled, holdfast.OutOfRange, holdfast.Unimplemented, holdfast.Internal,
	}
}

func dial(t *testing.T, url string, options ...connect.ClientOption) rpc.Services {
	t.Helper()
	client := rpc.NewHTTPClient()
	t.Cleanup(client.CloseIdleConnections)
	return rpc.Dial(client, url, clienttest.APIKey, options...)
}

// plain is an error without what does not cross a hop.
func plain(t *testing.T, err error) holdfast.Error {
	t.Helper()
	var e *holdfast.Error
	if !errors.As(err, &e) {
		t.Fatalf("no holdfast.Error: %v", err)
	}
	return holdfast.Error{Code: e.Code, Reason: e.Reason, Message: e.Message, Resource: e.Resource, Operation: e.Operation, RetryAfter: e.RetryAfter, Details: e.Details}
}

// contract: A8
func TestA8_EveryErrorCrossesTheWireWhole(t *testing.T) {
	fake := clienttest.New()
	url := fake.Serve(t)
	var answer error
	fake.Before = func(context.Context, clienttest.Call) error { return answer }
	for protocol, options := range protocols() {
		services := dial(t, url, options...)
		for _, code := range everyCode() {
			full := holdfast.E(code, holdfast.ReasonClaimed, "é is %s", "busy").On("sb-1").During("op-1").Retry(1500*time.Millisecond).
				With("kind", "CREATE").With("resource", "a detail").With("operation", "b").With("detail-x", "c").Because(errors.New("secret"))
			for _, sent := range []*holdfast.Error{full, holdfast.E(code, holdfast.ReasonState, "bare")} {
				answer = fmt.Errorf("wrapped: %w", sent)
				_, err := services.Sandboxes.GetSandbox(t.Context(), holdfast.Caller{}, "sb-1")
				if got, want := plain(t, err), plain(t, sent); !reflect.DeepEqual(got, want) {
					t.Errorf("%s %s: unary got %+v, want %+v", protocol, code, got, want)
				}
				err = services.Sandboxes.StreamSandboxLog(t.Context(), holdfast.Caller{}, holdfast.SandboxLog{ID: "sb-1"}, nil)
				if got, want := plain(t, err), plain(t, sent); !reflect.DeepEqual(got, want) {
					t.Errorf("%s %s: stream got %+v, want %+v", protocol, code, got, want)
				}
			}
		}
	}
}

func TestA8_WhatIsNoErrorOfOursIsInternalAndKeepsItsCauseInside(t *testing.T) {
	fake := clienttest.New()
	services := dial(t, fake.Serve(t))
	fake.Before = func(context.Context, clienttest.Call) error { return errors.New("password=1234") }
	_, err := services.Sandboxes.GetSandbox(t.Context(), holdfast.Caller{}, "sb-1")
	if e := plain(t, err); e.Code != holdfast.Internal || e.Reason != holdfast.ReasonBug || strings.Contains(err.Error(), "1234") {
		t.Errorf("got %+v", e)
	}
}

// contract: A8
func TestA8_NoAnswerIsUnavailableWhateverTheTransportCallsIt(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cutting := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler) // the connection breaks without an answer
	})}
	cutting.Protocols.SetHTTP1(true)
	cutting.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error, 1)
	go func() { served <- cutting.Serve(listener) }()
	for protocol, options := range protocols() {
		services := dial(t, "http://"+listener.Addr().String(), options...)
		_, err := services.Sandboxes.GetSandbox(t.Context(), holdfast.Caller{}, "sb-1")
		if e := plain(t, err); e.Code != holdfast.Unavailable || e.Reason != holdfast.ReasonUnreachable {
			t.Errorf("%s: a broken connection is %+v", protocol, e)
		}
	}
	if err := cutting.Close(); err != nil {
		t.Fatal(err)
	}
	<-served
	_, err = dial(t, "http://"+listener.Addr().String()).Sandboxes.GetSandbox(t.Context(), holdfast.Caller{}, "sb-1")
	if e := plain(t, err); e.Code != holdfast.Unavailable || e.Reason != holdfast.ReasonUnreachable {
		t.Errorf("a refused connection is %+v", e)
	}
}

func TestA8_TheCallersOwnEndIsToldFromTheServers(t *testing.T) {
	fake := clienttest.New()
	services := dial(t, fake.Serve(t))
	fake.Before = func(ctx context.Context, _ clienttest.Call) error { <-ctx.Done(); return ctx.Err() }
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := services.Sandboxes.GetSandbox(ctx, holdfast.Caller{}, "sb-1")
	if holdfast.CodeOf(err) != holdfast.DeadlineExceeded {
		t.Errorf("a passed deadline is %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	_, err = services.Sandboxes.GetSandbox(ctx, holdfast.Caller{}, "sb-1")
	if holdfast.CodeOf(err) != holdfast.Cancelled {
		t.Errorf("a cancelled call is %v", err)
	}
}

func TestA8_AnotherServerIsNamedAsSuchAndNotRetried(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other := rpc.NewServer(http.NotFoundHandler())
	t.Cleanup(func() { _ = other.Close() })
	go func() { _ = other.Serve(listener) }()
	_, err = dial(t, "http://"+listener.Addr().String()).Sandboxes.GetSandbox(t.Context(), holdfast.Caller{}, "sb-1")
	if e := plain(t, err); e.Code != holdfast.Unimplemented || !strings.Contains(e.Message, "no Holdfast server") {
		t.Errorf("got %+v", e)
	}
}

func TestA8_AFieldThatIsNotUTF8IsTheCallersFault(t *testing.T) {
	services := dial(t, clienttest.New().Serve(t))
	_, err := services.Files.StatFile(t.Context(), holdfast.Caller{}, "sb-1", "/\xff")
	if holdfast.CodeOf(err) != holdfast.InvalidArgument {
		t.Errorf("got %v", err)
	}
}
