package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/holdfast-dev/holdfast"
)

// answer is what curl would show of a call.
type answer struct {
	Status int
	Body   string

	// Of an error in Connect's JSON.
	Code    string `json:"code"`
	Message string `json:"message"`
	Details []struct {
		Type  string `json:"type"`
		Debug struct {
			Reason   string            `json:"reason"`
			Domain   string            `json:"domain"`
			Metadata map[string]string `json:"metadata"`
		} `json:"debug"`
	} `json:"details"`
}

// reason is the ErrorInfo's, "" where the answer has none.
func (a answer) reason() holdfast.Reason {
	for _, d := range a.Details {
		if d.Type == "google.rpc.ErrorInfo" {
			return holdfast.Reason(d.Debug.Reason)
		}
	}
	return ""
}

// plain makes a call as curl does: HTTP/1.1, one body, one answer.
func (s *system) plain(method, procedure, key string, header http.Header, body io.Reader) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+procedure, body)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", key)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	// A connection of its own: a refusal in the middle of a body closes it.
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, procedure, err)
	}
	raw, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		s.t.Fatalf("%s %s: %v", method, procedure, err)
	}
	a := answer{Status: res.StatusCode, Body: string(raw)}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		if err := json.Unmarshal(raw, &a); err != nil {
			s.t.Fatalf("%s %s answered what is no JSON: %q", method, procedure, raw)
		}
	}
	return a
}

// post is a JSON call with the admin's key.
func (s *system) post(procedure, body string) answer {
	s.t.Helper()
	return s.plain(http.MethodPost, "/holdfast.v1."+procedure, "Bearer "+s.Key(), nil, strings.NewReader(body))
}

// contract: A3, A8: curl with JSON alone is a client: create, the same again,
// get, list, delete.
func TestA8_PlainJSONIsEnoughForTheLifecycle(t *testing.T) {
	s := serve(t)
	const create = `{"requestId":"curl-1","environment":"base","ttl":"600s","onExpiry":"SUSPEND","labels":{"made":"by curl"}}`
	first := s.post("SandboxService/CreateSandbox", create)
	id := wantSandbox(t, first, "READY")
	s.keep(holdfast.SandboxID(id))
	if again := wantSandbox(t, s.post("SandboxService/CreateSandbox", create), "READY"); again != id {
		t.Fatalf("the same create: %s, then %s", id, again)
	}
	if got := wantSandbox(t, s.post("SandboxService/GetSandbox", `{"id":"`+id+`"}`), "READY"); got != id {
		t.Fatalf("get: %s", got)
	}
	list := s.post("SandboxService/ListSandboxes", `{"labels":{"made":"by curl"}}`)
	if list.Status != http.StatusOK || strings.Count(list.Body, `"id":"sb-`)+strings.Count(list.Body, `"id": "sb-`) != 1 {
		t.Fatalf("list: %+v", list)
	}
	// A read has no side effects, so Connect lets it be a GET.
	get := s.plain(http.MethodGet, `/holdfast.v1.SandboxService/GetSandbox?connect=v1&encoding=json&message=%7B%22id%22%3A%22`+id+`%22%7D`, "Bearer "+s.Key(), nil, nil)
	if wantSandbox(t, get, "READY") != id {
		t.Fatalf("GET: %+v", get)
	}
	started := s.post("ProcessService/StartProcess", `{"sandboxId":"`+id+`","command":"echo","args":["hello"]}`)
	if started.Status != http.StatusOK || !strings.Contains(started.Body, `"pr-`) {
		t.Fatalf("start: %+v", started)
	}
	wantSandbox(t, s.post("SandboxService/DeleteSandbox", `{"id":"`+id+`"}`), "DELETED")
	wantSandbox(t, s.post("SandboxService/DeleteSandbox", `{"id":"`+id+`"}`), "DELETED")
}

func wantSandbox(t *testing.T, a answer, state string) (id string) {
	t.Helper()
	var sb struct{ ID, State, TTL, OnExpiry string }
	if err := json.Unmarshal([]byte(a.Body), &sb); err != nil || a.Status != http.StatusOK || sb.State != state || sb.ID == "" {
		t.Fatalf("want a %s sandbox, got %d %s", state, a.Status, a.Body)
	}
	if sb.TTL != "600s" || sb.OnExpiry != "SUSPEND" {
		t.Errorf("what was asked for is not kept: %s", a.Body)
	}
	return sb.ID
}

// reflected is a gRPC connection that knows the services by reflection alone.
type reflected struct {
	*grpc.ClientConn
	ctx   context.Context
	files *protoregistry.Files
}

// dialGRPC connects as grpcurl does.
func (s *system) dialGRPC() *reflected {
	s.t.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(s.URL, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return &reflected{ClientConn: conn, ctx: metadata.AppendToOutgoingContext(s.t.Context(), "authorization", "Bearer "+s.Key())}
}

// learn asks for the services and their descriptors.
func (r *reflected) learn(t *testing.T) []string {
	t.Helper()
	stream, err := reflectionpb.NewServerReflectionClient(r.ClientConn).ServerReflectionInfo(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		res, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	var names []string
	for _, service := range ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}).
		GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	set := &descriptorpb.FileDescriptorSet{}
	for _, name := range names {
		res := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name}})
		for _, raw := range res.GetFileDescriptorResponse().GetFileDescriptorProto() {
			file := &descriptorpb.FileDescriptorProto{}
			if err := proto.Unmarshal(raw, file); err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(set.File, func(f *descriptorpb.FileDescriptorProto) bool { return f.GetName() == file.GetName() }) {
				set.File = append(set.File, file)
			}
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if r.files, err = protodesc.NewFiles(set); err != nil {
		t.Fatalf("the descriptors that reflection gives do not fit together: %v", err)
	}
	return names
}

// call makes a unary call with a message given as its fields.
func (r *reflected) call(ctx context.Context, t *testing.T, service, method string, fields map[string]string) (protoreflect.Message, error) {
	t.Helper()
	found, err := r.files.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		t.Fatal(err)
	}
	m := found.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method))
	in, out := dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output())
	for name, value := range fields {
		in.Set(m.Input().Fields().ByName(protoreflect.Name(name)), protoreflect.ValueOfString(value))
	}
	return out, r.Invoke(ctx, "/"+service+"/"+method, in, out)
}

func fieldOf(m protoreflect.Message, name string) protoreflect.Value {
	return m.Get(m.Descriptor().Fields().ByName(protoreflect.Name(name)))
}

// contract: A8: a gRPC client that knows nothing but the address and a key lists,
// learns and calls, and gets errors with their ErrorInfo; health needs no key.
func TestA8_AGRPCClientLearnsByReflectionAndCalls(t *testing.T) {
	s := serve(t)
	r := s.dialGRPC()
	names := r.learn(t)
	for _, want := range []string{"SandboxService", "ProcessService", "FileService", "OperationService"} {
		if !slices.Contains(names, "holdfast.v1."+want) {
			t.Errorf("reflection does not list %s: %v", want, names)
		}
	}
	const sandboxes = "holdfast.v1.SandboxService"
	sb, err := r.call(r.ctx, t, sandboxes, "CreateSandbox", map[string]string{"request_id": "grpc-1", "environment": "base"})
	if err != nil {
		t.Fatalf("create: %v\n%s", err, s.Log())
	}
	id := fieldOf(sb, "id").String()
	s.keep(holdfast.SandboxID(id))
	if state := s.get(holdfast.SandboxID(id)).State; state != holdfast.SandboxReady {
		t.Errorf("created by gRPC: %s", state)
	}
	_, err = r.call(r.ctx, t, sandboxes, "CreateSandbox", map[string]string{"request_id": "grpc-1", "environment": "debian"})
	wantGRPC(t, "another create with the same id", err, codes.AlreadyExists, holdfast.ReasonRequestReused)
	_, err = r.call(r.ctx, t, sandboxes, "GetSandbox", map[string]string{"id": "sb-nonsense"})
	wantGRPC(t, "a malformed id", err, codes.InvalidArgument, holdfast.ReasonBadField)
	_, err = r.call(r.ctx, t, sandboxes, "GetSandbox", map[string]string{"id": unknownSandbox})
	wantGRPC(t, "an unknown id", err, codes.NotFound, holdfast.ReasonUnknown)
	_, err = r.call(t.Context(), t, sandboxes, "GetSandbox", map[string]string{"id": id})
	wantGRPC(t, "no key", err, codes.Unauthenticated, holdfast.ReasonCredentials)

	for _, service := range []string{"", sandboxes} {
		res, err := healthpb.NewHealthClient(r.ClientConn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q without a key: %v %v", service, res, err)
		}
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n"} {
		if code, body := s.Get(t.Context(), path); code != http.StatusOK || body != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
}

func wantGRPC(t *testing.T, what string, err error, code codes.Code, reason holdfast.Reason) {
	t.Helper()
	st := status.Convert(err)
	var got holdfast.Reason
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			got = holdfast.Reason(info.GetReason())
		}
	}
	if st.Code() != code || got != reason || st.Message() == "" {
		t.Errorf("%s: got %s %s %q, want %s %s", what, st.Code(), got, st.Message(), code, reason)
	}
}

// zeros is a body of n bytes: a JSON string that does not end before them.
func zeros(n int64) io.Reader {
	return io.MultiReader(strings.NewReader(`{"requestId":"`), io.LimitReader(endless{'0'}, n), bytes.NewReader([]byte(`"}`)))
}

type endless [1]byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e[0]
	}
	return len(p), nil
}
