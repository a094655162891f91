package rpc_test

import (
	"context"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client/clienttest"
	"github.com/holdfast-dev/holdfast/rpc"
)

// fill sets every exported field reachable from v to something that is not zero.
func fill(v reflect.Value, word string) {
	switch v.Kind() { //nolint:exhaustive // the kinds that root types use
	case reflect.String:
		v.SetString(wordFor(v.Type(), word))
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint16, reflect.Uint32:
		v.SetUint(7)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), word)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), word)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"K": word}))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 6789, time.UTC)))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), v.Type().Field(i).Name)
			}
		}
	}
}

// wordFor picks a word of an enum, or any for a plain string.
func wordFor(t reflect.Type, other string) string {
	words := map[reflect.Type]string{
		reflect.TypeFor[holdfast.SandboxState]():   string(holdfast.SandboxSuspended),
		reflect.TypeFor[holdfast.Egress]():         string(holdfast.EgressNone),
		reflect.TypeFor[holdfast.Expiry]():         string(holdfast.ExpirySuspend),
		reflect.TypeFor[holdfast.Restart]():        string(holdfast.RestartFromCheckpoint),
		reflect.TypeFor[holdfast.OperationKind]():  string(holdfast.OperationResume),
		reflect.TypeFor[holdfast.OperationState](): string(holdfast.OperationSuperseded),
		reflect.TypeFor[holdfast.ProcessState]():   string(holdfast.ProcessExited),
		reflect.TypeFor[holdfast.TaskState]():      string(holdfast.TaskTimedOut),
		reflect.TypeFor[holdfast.FileKind]():       string(holdfast.FileSymlink),
		reflect.TypeFor[holdfast.Code]():           string(holdfast.Aborted),
		reflect.TypeFor[holdfast.HostHealth]():     string(holdfast.HostSuspect),
		reflect.TypeFor[holdfast.HostDuty]():       string(holdfast.HostDraining),
		reflect.TypeFor[holdfast.InstanceState]():  string(holdfast.InstanceUnknown),
		reflect.TypeFor[holdfast.BuildState]():     string(holdfast.BuildSuperseded),
		reflect.TypeFor[holdfast.Role]():           string(holdfast.RoleAdmin),

		reflect.TypeFor[holdfast.HookKind]():        string(holdfast.HookStandard),
		reflect.TypeFor[holdfast.HookActionState](): string(holdfast.HookActionFailed),
		reflect.TypeFor[holdfast.SessionState]():    string(holdfast.SessionWaiting),
		reflect.TypeFor[holdfast.CheckpointState](): string(holdfast.CheckpointDeleting),
	}
	if word, ok := words[t]; ok {
		return word
	}
	return other
}

func filled[T any]() T {
	var v T
	fill(reflect.ValueOf(&v).Elem(), "x")
	return v
}

// echo answers every call with a filled value and keeps what it was asked.
type echo struct {
	*clienttest.Fake
	asked chan any
}

func (e echo) CreateSandbox(_ context.Context, caller holdfast.Caller, in holdfast.CreateSandbox) (holdfast.Sandbox, error) {
	e.asked <- in
	return filled[holdfast.Sandbox](), nil
}

func (e echo) SuspendSandbox(_ context.Context, _ holdfast.Caller, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	e.asked <- in
	return filled[holdfast.Sandbox](), nil
}

func (e echo) ExtendSandbox(_ context.Context, _ holdfast.Caller, in holdfast.ExtendSandbox) (holdfast.Sandbox, error) {
	e.asked <- in
	return filled[holdfast.Sandbox](), nil
}

func (e echo) SetSandboxLifetime(_ context.Context, _ holdfast.Caller, in holdfast.SetSandboxLifetime) (holdfast.Sandbox, error) {
	e.asked <- in
	return filled[holdfast.Sandbox](), nil
}

func (e echo) WatchSandboxes(_ context.Context, _ holdfast.Caller, in holdfast.WatchSandboxes, yield func(holdfast.SandboxEvent) error) error {
	e.asked <- in
	return yield(filled[holdfast.SandboxEvent]())
}

func (e echo) ListSandboxes(_ context.Context, _ holdfast.Caller, in holdfast.ListSandboxes) (holdfast.SandboxPage, error) {
	e.asked <- in
	return filled[holdfast.SandboxPage](), nil
}

func (e echo) ListOperations(_ context.Context, _ holdfast.Caller, in holdfast.ListOperations) (holdfast.OperationPage, error) {
	e.asked <- in
	return filled[holdfast.OperationPage](), nil
}

func (e echo) StartProcess(_ context.Context, _ holdfast.Caller, _ holdfast.SandboxID, in holdfast.StartProcess) (holdfast.Process, error) {
	e.asked <- in
	p := filled[holdfast.Process]()
	p.Lost = false // an exit code is known of the others only
	return p, nil
}

func (e echo) StreamProcessOutput(_ context.Context, _ holdfast.Caller, _ holdfast.SandboxID, in holdfast.ReadOutput, _ func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	e.asked <- in
	p := filled[holdfast.Process]()
	p.ExitCode = 0 // lost
	return p, nil
}

func (e echo) WriteProcessInput(_ context.Context, _ holdfast.Caller, _ holdfast.SandboxID, in holdfast.ProcessInput) (int64, error) {
	e.asked <- in
	return 7, nil
}

func (e echo) WriteFile(_ context.Context, _ holdfast.Caller, _ holdfast.SandboxID, in holdfast.WriteFile, content io.Reader) (holdfast.FileWritten, error) {
	e.asked <- in
	_, err := io.Copy(io.Discard, content)
	return filled[holdfast.FileWritten](), err
}

func (e echo) ReadFile(_ context.Context, _ holdfast.Caller, _ holdfast.SandboxID, in holdfast.ReadFile) (holdfast.FileInfo, io.ReadCloser, error) {
	e.asked <- in
	return filled[holdfast.FileInfo](), io.NopCloser(strings.NewReader("")), nil
}

func (e echo) ListHosts(context.Context) ([]holdfast.Host, error) {
	return filled[[]holdfast.Host](), nil
}

func (e echo) SetHostDuty(_ context.Context, in holdfast.SetHostDuty) (holdfast.Host, error) {
	e.asked <- in
	return filled[holdfast.Host](), nil
}

func (e echo) FindInstances(_ context.Context, in holdfast.FindInstances) (holdfast.InstancePage, error) {
	e.asked <- in
	return filled[holdfast.InstancePage](), nil
}

// shownInstances is a page without what is for the parties alone.
func shownInstances() holdfast.InstancePage {
	page := filled[holdfast.InstancePage]()
	o := &page.Instances[0]
	o.Ports, o.Address, o.HostURL, o.HostHealth, o.HostDuty, o.BootID, o.Life = nil, "", "", "", "", "", ""
	return page
}

func (e echo) CreateEnvironment(_ context.Context, _ holdfast.Caller, in holdfast.CreateEnvironment) (holdfast.Environment, error) {
	e.asked <- in
	return filled[holdfast.Environment](), nil
}

func (e echo) ListEnvironments(_ context.Context, _ holdfast.Caller, in holdfast.ListEnvironments) (holdfast.EnvironmentPage, error) {
	e.asked <- in
	return filled[holdfast.EnvironmentPage](), nil
}

func (e echo) BuildEnvironment(_ context.Context, _ holdfast.Caller, in holdfast.BuildEnvironment) (holdfast.Build, error) {
	e.asked <- in
	return filled[holdfast.Build](), nil
}

func (e echo) ListBuilds(_ context.Context, _ holdfast.Caller, in holdfast.ListBuilds) (holdfast.BuildPage, error) {
	e.asked <- in
	return filled[holdfast.BuildPage](), nil
}

func (e echo) StreamBuildLog(_ context.Context, _ holdfast.Caller, in holdfast.BuildLog, yield func(holdfast.OutputChunk) error) error {
	e.asked <- in
	return yield(holdfast.OutputChunk{Stream: holdfast.Stdout, Offset: 7, Data: []byte("x")})
}

func (e echo) GetMatrix(context.Context, holdfast.Caller) (holdfast.AuditMatrix, error) {
	return filled[holdfast.AuditMatrix](), nil
}

func same[T any](t *testing.T, what string, got T, err error, want T) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	} else if !reflect.DeepEqual(got, want) {
		t.Errorf("%s lost something:\n got %+v\nwant %+v", what, got, want)
	}
}

func TestNoFieldIsLostOnTheWayThereOrBack(t *testing.T) {
	e := echo{clienttest.New(), make(chan any, 1)}
	services := serve(t, rpc.Services{Sandboxes: e, Operations: e, Processes: e, Files: e, Audit: e, Fleet: e})
	ctx, nobody := t.Context(), holdfast.Caller{}
	sandbox := filled[holdfast.Sandbox]()

	create := filled[holdfast.CreateSandbox]()
	got, err := services.Sandboxes.CreateSandbox(ctx, nobody, create)
	same(t, "Sandbox", got, err, sandbox)
	same[any](t, "CreateSandbox", e.last(t), nil, create)

	mutate := filled[holdfast.MutateSandbox]()
	got, err = services.Sandboxes.SuspendSandbox(ctx, nobody, mutate)
	same(t, "Sandbox", got, err, sandbox)
	same[any](t, "MutateSandbox", e.last(t), nil, mutate)

	extend := filled[holdfast.ExtendSandbox]()
	got, err = services.Sandboxes.ExtendSandbox(ctx, nobody, extend)
	same(t, "Sandbox", got, err, sandbox)
	same[any](t, "ExtendSandbox", e.last(t), nil, extend)

	lifetime := filled[holdfast.SetSandboxLifetime]()
	got, err = services.Sandboxes.SetSandboxLifetime(ctx, nobody, lifetime)
	same(t, "Sandbox", got, err, sandbox)
	same[any](t, "SetSandboxLifetime", e.last(t), nil, lifetime)

	watch, event := filled[holdfast.WatchSandboxes](), filled[holdfast.SandboxEvent]()
	event.Anew = false      // the client's own word: it never crosses the wire
	event.Sandbox.Env = nil // left out, as in lists
	err = services.Sandboxes.WatchSandboxes(ctx, nobody, watch, func(gotEvent holdfast.SandboxEvent) error {
		same(t, "SandboxEvent", gotEvent, nil, event)
		return nil
	})
	same[any](t, "WatchSandboxes", e.last(t), err, watch)

	page := filled[holdfast.SandboxPage]()
	page.Sandboxes[0].Env = nil // left out of lists
	list := filled[holdfast.ListSandboxes]()
	gotPage, err := services.Sandboxes.ListSandboxes(ctx, nobody, list)
	same(t, "SandboxPage", gotPage, err, page)
	same[any](t, "ListSandboxes", e.last(t), nil, list)

	journal := filled[holdfast.ListOperations]()
	gotJournal, err := services.Operations.ListOperations(ctx, nobody, journal)
	same(t, "OperationPage", gotJournal, err, filled[holdfast.OperationPage]())
	same[any](t, "ListOperations", e.last(t), nil, journal)

	matrix, err := services.Audit.GetMatrix(ctx, nobody)
	same(t, "AuditMatrix", matrix, err, filled[holdfast.AuditMatrix]())

	hosts, err := services.Fleet.ListHosts(ctx)
	same(t, "hosts", hosts, err, filled[[]holdfast.Host]())

	duty := filled[holdfast.SetHostDuty]()
	for _, duty.Duty = range []holdfast.HostDuty{holdfast.HostActive, holdfast.HostCordoned, holdfast.HostDraining, holdfast.HostRetired} {
		duty.Force = duty.Duty == holdfast.HostRetired // the only one that it is said of
		host, err := services.Fleet.SetHostDuty(ctx, duty)
		same(t, "Host", host, err, filled[holdfast.Host]())
		same[any](t, "SetHostDuty", e.last(t), nil, duty)
	}

	find := filled[holdfast.FindInstances]()
	instances, err := services.Fleet.FindInstances(ctx, find)
	same(t, "InstancePage", instances, err, shownInstances())
	same[any](t, "FindInstances", e.last(t), nil, find)

	start, exited := filled[holdfast.StartProcess](), filled[holdfast.Process]()
	start.Report = holdfast.ReportNone // callers cannot ask for it
	exited.Lost = false
	process, err := services.Processes.StartProcess(ctx, nobody, "sb-1", start)
	same(t, "Process", process, err, exited)
	same[any](t, "StartProcess", e.last(t), nil, start)

	output, lost := filled[holdfast.ReadOutput](), filled[holdfast.Process]()
	lost.ExitCode = 0
	process, err = services.Processes.StreamProcessOutput(ctx, nobody, "sb-1", output, nil)
	same(t, "lost Process", process, err, lost)
	same[any](t, "ReadOutput", e.last(t), nil, output)

	for _, offset := range []int64{-1, 0, 7} {
		input := filled[holdfast.ProcessInput]()
		input.Offset = offset
		taken, err := services.Processes.WriteProcessInput(ctx, nobody, "sb-1", input)
		same(t, "input offset", taken, err, 7)
		same[any](t, "ProcessInput", e.last(t), nil, input)
	}

	write := filled[holdfast.WriteFile]()
	written, err := services.Files.WriteFile(ctx, nobody, "sb-1", write, strings.NewReader("x"))
	same(t, "FileWritten", written, err, filled[holdfast.FileWritten]())
	same[any](t, "WriteFile", e.last(t), nil, write)

	read := filled[holdfast.ReadFile]()
	info, content, err := services.Files.ReadFile(ctx, nobody, "sb-1", read)
	same(t, "FileInfo", info, err, filled[holdfast.FileInfo]())
	same[any](t, "ReadFile", e.last(t), nil, read)
	if err == nil {
		same(t, "closing", struct{}{}, content.Close(), struct{}{})
	}
}

func TestNoFieldOfAnEnvironmentIsLostOnTheWayThereOrBack(t *testing.T) {
	e := echo{clienttest.New(), make(chan any, 1)}
	services := serve(t, rpc.Services{Environments: e})
	ctx, nobody := t.Context(), holdfast.Caller{}

	create := filled[holdfast.CreateEnvironment]()
	environment, err := services.Environments.CreateEnvironment(ctx, nobody, create)
	same(t, "Environment", environment, err, filled[holdfast.Environment]())
	same[any](t, "CreateEnvironment", e.last(t), nil, create)

	list, page := filled[holdfast.ListEnvironments](), filled[holdfast.EnvironmentPage]()
	page.Environments[0].Recipe = holdfast.Recipe{} // left out of lists
	gotPage, err := services.Environments.ListEnvironments(ctx, nobody, list)
	same(t, "EnvironmentPage", gotPage, err, page)
	same[any](t, "ListEnvironments", e.last(t), nil, list)

	begin := filled[holdfast.BuildEnvironment]()
	build, err := services.Environments.BuildEnvironment(ctx, nobody, begin)
	same(t, "Build", build, err, filled[holdfast.Build]())
	same[any](t, "BuildEnvironment", e.last(t), nil, begin)

	builds := filled[holdfast.ListBuilds]()
	gotBuilds, err := services.Environments.ListBuilds(ctx, nobody, builds)
	same(t, "BuildPage", gotBuilds, err, filled[holdfast.BuildPage]())
	same[any](t, "ListBuilds", e.last(t), nil, builds)

	log := filled[holdfast.BuildLog]()
	err = services.Environments.StreamBuildLog(ctx, nobody, log, func(c holdfast.OutputChunk) error {
		same(t, "OutputChunk", c, nil, holdfast.OutputChunk{Stream: holdfast.Stdout, Offset: 7, Data: []byte("x")})
		return nil
	})
	same[any](t, "BuildLog", e.last(t), err, log)
}

func TestTheZeroOfEverythingStaysZero(t *testing.T) {
	fake := clienttest.New()
	services := dial(t, fake.Serve(t))
	in := holdfast.CreateSandbox{RequestID: "r", Environment: "base"}
	if _, err := services.Sandboxes.CreateSandbox(t.Context(), holdfast.Caller{}, in); err != nil {
		t.Fatal(err)
	}
	same[any](t, "CreateSandbox", fake.Calls("CreateSandbox")[0].In, nil, in)
}

func TestUnknownWordsAreRefusedAndNeverTakenForTheDefault(t *testing.T) {
	services := dial(t, clienttest.New().Serve(t))
	for _, in := range []holdfast.CreateSandbox{
		{RequestID: "r", Environment: "base", OnExpiry: "KEEP"},
		{RequestID: "r", Environment: "base", Egress: "LAN"},
		{RequestID: "r", Environment: "base", Egress: "EGRESS_UNSPECIFIED"},
	} {
		if _, err := services.Sandboxes.CreateSandbox(t.Context(), holdfast.Caller{}, in); holdfast.CodeOf(err) != holdfast.InvalidArgument {
			t.Errorf("%+v: %v", in, err)
		}
	}
}

// last is what the last call was asked.
func (e echo) last(t *testing.T) any {
	t.Helper()
	select {
	case in := <-e.asked:
		return in
	default:
		t.Fatal("the call did not arrive")
		return nil
	}
}
