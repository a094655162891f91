package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-dev/holdfast/transport"
)

type text = wrapperspb.StringValue

// The RPCs that cross the network in production cross it here: Connect, gRPC and
// gRPC-Web, unary and with both directions streaming at once.
func TestConnectAndGRPCWork(t *testing.T) {
	n := &transport.Network{}
	mux := http.NewServeMux()
	mux.Handle("/t/echo", connect.NewBidiStreamHandler("/t/echo",
		func(_ context.Context, stream *connect.BidiStream[text, text]) error {
			for {
				m, err := stream.Receive()
				if errors.Is(err, io.EOF) {
					return connect.NewError(connect.CodeAborted, errors.New("the end"))
				}
				if err != nil {
					return err
				}
				if err := stream.Send(wrapperspb.String("echo " + m.Value)); err != nil {
					return err
				}
			}
		}))
	n.Handle("h", mux)
	client := &http.Client{Transport: n.RoundTripper()}
	for name, options := range map[string][]connect.ClientOption{
		"connect": nil, "json": {connect.WithProtoJSON()}, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()},
	} {
		t.Run(name, func(t *testing.T) {
			health := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](client, "http://h/t/unknown", options...)
			if _, err := health.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("x"))); connect.CodeOf(err) != connect.CodeUnimplemented {
				t.Errorf("unknown method: %v", err)
			}
			echo := connect.NewClient[text, text](client, "http://h/t/echo", options...).CallBidiStream(t.Context())
			for i := range 3 {
				if err := echo.Send(wrapperspb.String(fmt.Sprint(i))); err != nil {
					t.Fatal(err)
				}
				if m, err := echo.Receive(); err != nil || m.Value != fmt.Sprintf("echo %d", i) {
					t.Fatalf("%v, %v", m, err)
				}
			}
			if err := echo.CloseRequest(); err != nil {
				t.Fatal(err)
			}
			if _, err := echo.Receive(); connect.CodeOf(err) != connect.CodeAborted {
				t.Errorf("the stream ended with %v", err)
			}
			if err := echo.CloseResponse(); err != nil {
				t.Fatal(err)
			}
		})
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
