package rpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/client/clienttest"
	"github.com/holdfast-dev/holdfast/rpc"
)

// post sends one call as curl would, and returns its status and JSON.
func post(t *testing.T, url, method, authorization, body string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/holdfast.v1."+method, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatalf("%s: %q is no JSON object: %v", method, raw, err)
	}
	return res.StatusCode, out
}

func TestCurlWithJSONCreatesOneSandboxForOneRequestID(t *testing.T) {
	url := clienttest.New().Serve(t)
	const body = `{"requestId":"r-1","environment":"base","ttl":"60s","onExpiry":"SUSPEND"}`
	code, first := post(t, url, "SandboxService/CreateSandbox", "Bearer "+clienttest.APIKey, body)
	if code != http.StatusOK || first["state"] != "READY" || !strings.HasPrefix(first["id"].(string), "sb-") || first["ttl"] != "60s" {
		t.Fatalf("%d %v", code, first)
	}
	_, again := post(t, url, "SandboxService/CreateSandbox", "bearer "+clienttest.APIKey, body)
	if again["id"] != first["id"] {
		t.Errorf("the repeat made %v, the first %v", again["id"], first["id"])
	}
}

func TestBadRequestsGetAClearStatus(t *testing.T) {
	url := clienttest.New().Serve(t)
	key := "Bearer " + clienttest.APIKey
	tests := map[string]struct {
		method, key, body string
		status            int
		code, says        string
	}{
		"no key":                {"SandboxService/GetSandbox", "", `{}`, 401, "unauthenticated", "Authorization: Bearer hf_"},
		"wrong key":             {"SandboxService/GetSandbox", "Bearer hf_wrong", `{}`, 401, "unauthenticated", "not valid"},
		"wrong scheme":          {"SandboxService/GetSandbox", "Basic eDp5", `{}`, 401, "unauthenticated", "must read Bearer"},
		"not JSON":              {"SandboxService/GetSandbox", key, `{"id":`, 400, "invalid_argument", "unmarshal"},
		"wrong type":            {"SandboxService/GetSandbox", key, `{"id":7}`, 400, "invalid_argument", "id"},
		"unknown enum":          {"SandboxService/CreateSandbox", key, `{"requestId":"r","environment":"base","onExpiry":9}`, 400, "invalid_argument", "on_expiry"},
		"zero ttl":              {"SandboxService/CreateSandbox", key, `{"requestId":"r","environment":"base","ttl":"0s"}`, 400, "invalid_argument", "ttl"},
		"endless ttl":           {"SandboxService/CreateSandbox", key, `{"requestId":"r","environment":"base","ttl":"315576000000s"}`, 400, "invalid_argument", "ttl"},
		"no request id":         {"SandboxService/CreateSandbox", key, `{"environment":"base"}`, 400, "invalid_argument", "request_id"},
		"wide terminal":         {"ProcessService/ResizeTerminal", key, `{"size":{"columns":70000,"rows":1}}`, 400, "invalid_argument", "terminal"},
		"negative input offset": {"ProcessService/WriteProcessInput", key, `{"offset":"-1"}`, 400, "invalid_argument", "offset"},
		"oversized":             {"SandboxService/GetSandbox", key, `{"id":"` + strings.Repeat("x", rpc.MaxMessage) + `"}`, 429, "resource_exhausted", "4194304"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			status, out := post(t, url, test.method, test.key, test.body)
			message, _ := out["message"].(string)
			if status != test.status || out["code"] != test.code || !strings.Contains(message, test.says) {
				t.Errorf("got %d %v, want %d %s saying %q", status, out, test.status, test.code, test.says)
			}
		})
	}
}

func TestAPanicIsInternalAndTheServerLives(t *testing.T) {
	fake := clienttest.New()
	var log bytes.Buffer
	handler := rpc.NewHandler(fake.Services(), rpc.Options{Anonymous: &holdfast.Caller{}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	server := httptest.NewServer(handler)
	defer server.Close()
	fake.Before = func(context.Context, clienttest.Call) error { panic("the secret") }
	status, out := post(t, server.URL, "SandboxService/GetSandbox", "", `{"id":"x"}`)
	if status != http.StatusInternalServerError || out["code"] != "internal" || strings.Contains(out["message"].(string), "secret") {
		t.Errorf("got %d %v", status, out)
	}
	if !strings.Contains(log.String(), "the secret") || !strings.Contains(log.String(), "goroutine") {
		t.Errorf("the log does not say what happened: %s", log.String())
	}
	fake.Before = nil
	if status, out = post(t, server.URL, "SandboxService/GetSandbox", "", `{"id":"x"}`); out["code"] != "not_found" {
		t.Errorf("after the panic: %d %v", status, out)
	}
}

func dialGRPC(t *testing.T, url string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestAGRPCClientReadsAndReflects(t *testing.T) {
	fake := clienttest.New()
	want := fake.Add(holdfast.SandboxReady)
	conn := dialGRPC(t, fake.Serve(t))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+clienttest.APIKey)

	got := new(v1.Sandbox)
	if err := conn.Invoke(ctx, "/holdfast.v1.SandboxService/GetSandbox", &v1.GetSandboxRequest{Id: string(want.ID)}, got); err != nil {
		t.Fatal(err)
	}
	if got.GetId() != string(want.ID) || got.GetState() != v1.Sandbox_READY {
		t.Errorf("got %v", got)
	}
	err := conn.Invoke(t.Context(), "/holdfast.v1.SandboxService/GetSandbox", &v1.GetSandboxRequest{}, got)
	if s := status.Convert(err); s.Code() != codes.Unauthenticated || len(s.Details()) != 1 {
		t.Errorf("without a key: %v %v", err, status.Convert(err).Details())
	}

	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	list := &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{ListServices: "*"}}
	if err := stream.Send(list); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range answer.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	for _, name := range []string{"holdfast.v1.SandboxService", "holdfast.v1.OperationService", "holdfast.v1.ProcessService", "holdfast.v1.FileService", "holdfast.v1.AuditService", "holdfast.v1.FleetService", "holdfast.v1.ProjectService", "holdfast.v1.KeyService", "grpc.health.v1.Health"} {
		if !slices.Contains(names, name) {
			t.Errorf("reflection lists %v, without %s", names, name)
		}
	}
	old, err := reflectionv1alpha.NewServerReflectionClient(conn).ServerReflectionInfo(ctx) //nolint:staticcheck // what older tools speak
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Send(&reflectionv1alpha.ServerReflectionRequest{MessageRequest: &reflectionv1alpha.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "holdfast.v1.Sandbox"}}); err != nil { //nolint:staticcheck // as above
		t.Fatal(err)
	}
	if file, err := old.Recv(); err != nil || len(file.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("v1alpha: %v %v", file, err)
	}
}

// contract: A8
func TestA8_EachCodeIsItsStatus(t *testing.T) {
	fake := clienttest.New()
	conn := dialGRPC(t, fake.Serve(t))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+clienttest.APIKey)
	for _, code := range everyCode() {
		fake.Before = func(context.Context, clienttest.Call) error { return holdfast.E(code, holdfast.ReasonState, "x") }
		err := conn.Invoke(ctx, "/holdfast.v1.SandboxService/GetSandbox", &v1.GetSandboxRequest{}, new(v1.Sandbox))
		if got, want := int32(status.Code(err)), v1.Error_Code_value[string(code)]; got != want {
			t.Errorf("%s is status %d, not %d", code, got, want)
		}
	}
}

func TestHealthIsOpenAndTellsDraining(t *testing.T) {
	var draining error
	handler := rpc.NewHandler(clienttest.New().Services(), rpc.Options{Serving: func(context.Context) error { return draining }})
	server := httptest.NewUnstartedServer(handler)
	server.Config = rpc.NewServer(handler)
	server.Start()
	defer server.Close()
	client := healthpb.NewHealthClient(dialGRPC(t, server.URL))
	check := func(service string) string {
		answer, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			return status.Code(err).String()
		}
		return answer.GetStatus().String()
	}
	if got := check(""); got != "SERVING" {
		t.Errorf("the server is %s", got)
	}
	if got := check("holdfast.v1.SandboxService"); got != "SERVING" {
		t.Errorf("the service is %s", got)
	}
	if got := check("nope"); got != "NotFound" {
		t.Errorf("an unknown service is %s", got)
	}
	draining = errors.New("draining")
	if got := check(""); got != "NOT_SERVING" {
		t.Errorf("while draining the server is %s", got)
	}
}

func TestT7_ARefusedCallerReachesNoService(t *testing.T) {
	fake := clienttest.New()
	url := fake.Serve(t)
	for protocol, options := range protocols() {
		services := rpc.Dial(http.DefaultClient, url, "hf_wrong", options...)
		if protocol == "gRPC" {
			services = rpc.Dial(rpc.NewHTTPClient(), url, "hf_wrong", options...)
		}
		_, unary := services.Sandboxes.CreateSandbox(t.Context(), holdfast.Caller{}, holdfast.CreateSandbox{RequestID: "r", Environment: "base"})
		stream := services.Sandboxes.StreamSandboxLog(t.Context(), holdfast.Caller{}, holdfast.SandboxLog{}, nil)
		_, upload := services.Files.WriteFile(t.Context(), holdfast.Caller{}, "sb-1", holdfast.WriteFile{Path: "/a"}, strings.NewReader("x"))
		for _, err := range []error{unary, stream, upload} {
			if e := plain(t, err); e.Code != holdfast.Unauthenticated || !strings.Contains(e.Message, "admin.key") {
				t.Errorf("%s: got %+v", protocol, e)
			}
		}
	}
	if calls := fake.Calls(""); len(calls) != 0 {
		t.Errorf("calls arrived: %v", calls)
	}
}
