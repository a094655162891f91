package rpc_test

import (
	"context"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client/clienttest"
	"github.com/holdfast-dev/holdfast/rpc"
)

func (e echo) CreateProject(_ context.Context, _ holdfast.Caller, in holdfast.CreateProject) (holdfast.Project, error) {
	e.asked <- in
	return filled[holdfast.Project](), nil
}

func (e echo) ListProjects(_ context.Context, _ holdfast.Caller, in holdfast.ListProjects) (holdfast.ProjectPage, error) {
	e.asked <- in
	return filled[holdfast.ProjectPage](), nil
}

func (e echo) SetQuotas(_ context.Context, _ holdfast.Caller, in holdfast.SetQuotas) (holdfast.Project, error) {
	e.asked <- in
	return filled[holdfast.Project](), nil
}

func (e echo) CreateKey(_ context.Context, _ holdfast.Caller, in holdfast.CreateKey) (holdfast.CreatedKey, error) {
	e.asked <- in
	return filled[holdfast.CreatedKey](), nil
}

func (e echo) ListKeys(_ context.Context, _ holdfast.Caller, in holdfast.ListKeys) (holdfast.KeyPage, error) {
	e.asked <- in
	return filled[holdfast.KeyPage](), nil
}

func (e echo) RevokeKey(_ context.Context, _ holdfast.Caller, id holdfast.KeyID) (holdfast.Key, error) {
	e.asked <- id
	return filled[holdfast.Key](), nil
}

func TestNoFieldOfProjectsAndKeysIsLostOnTheWayThereOrBack(t *testing.T) {
	e := echo{clienttest.New(), make(chan any, 1)}
	services := serve(t, rpc.Services{Projects: e, Keys: e})
	ctx, nobody := t.Context(), holdfast.Caller{}

	create := filled[holdfast.CreateProject]()
	p, err := services.Projects.CreateProject(ctx, nobody, create)
	same(t, "Project", p, err, filled[holdfast.Project]())
	same[any](t, "CreateProject", e.last(t), nil, create)

	zero := new(int64(0)) // "nothing" is told from "as it is"
	for _, set := range []holdfast.SetQuotas{filled[holdfast.SetQuotas](), {Project: "p"}, {Project: "p", Quotas: holdfast.QuotaChange{CPUMillis: zero}}} {
		p, err = services.Projects.SetQuotas(ctx, nobody, set)
		same(t, "Project", p, err, filled[holdfast.Project]())
		same[any](t, "SetQuotas", e.last(t), nil, set)
	}

	projects := filled[holdfast.ListProjects]()
	page, err := services.Projects.ListProjects(ctx, nobody, projects)
	same(t, "ProjectPage", page, err, filled[holdfast.ProjectPage]())
	same[any](t, "ListProjects", e.last(t), nil, projects)

	key := filled[holdfast.CreateKey]()
	made, err := services.Keys.CreateKey(ctx, nobody, key)
	same(t, "CreatedKey", made, err, filled[holdfast.CreatedKey]())
	same[any](t, "CreateKey", e.last(t), nil, key)

	list := filled[holdfast.ListKeys]()
	keys, err := services.Keys.ListKeys(ctx, nobody, list)
	same(t, "KeyPage", keys, err, filled[holdfast.KeyPage]())
	same[any](t, "ListKeys", e.last(t), nil, list)

	revoked, err := services.Keys.RevokeKey(ctx, nobody, "ky-1")
	same(t, "Key", revoked, err, filled[holdfast.Key]())
	same[any](t, "RevokeKey", e.last(t), nil, holdfast.KeyID("ky-1"))
}

func TestHostsAreAnAdminsAlone(t *testing.T) {
	fake := clienttest.New()
	handler := rpc.NewHandler(fake.Services(), rpc.Options{Anonymous: &holdfast.Caller{Role: holdfast.RoleMember, Name: "bot"}})
	server := httptest.NewUnstartedServer(handler)
	server.Config = rpc.NewServer(handler)
	server.Start()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	fleet, ctx := dial(t, server.URL).Fleet, t.Context()
	_, err := fleet.ListHosts(ctx)
	_, err2 := fleet.FindInstances(ctx, holdfast.FindInstances{})
	errs := []error{err, err2}
	for _, duty := range []holdfast.HostDuty{holdfast.HostActive, holdfast.HostCordoned, holdfast.HostDraining, holdfast.HostRetired} {
		_, err := fleet.SetHostDuty(ctx, holdfast.SetHostDuty{Host: "ho-1", Duty: duty})
		errs = append(errs, err)
	}
	for i, err := range errs {
		if holdfast.CodeOf(err) != holdfast.PermissionDenied || holdfast.ReasonOf(err) != holdfast.ReasonNotAdmin {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if calls := fake.Calls(""); len(calls) != 0 {
		t.Errorf("the service heard of %v", calls)
	}
}

// lasting is a call that lasts until its context ends.
type lasting struct {
	*clienttest.Fake
	begun chan struct{}
}

func (l lasting) StreamProcessOutput(ctx context.Context, _ holdfast.Caller, _ holdfast.SandboxID, _ holdfast.ReadOutput, _ func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	close(l.begun)
	<-ctx.Done()
	return holdfast.Process{}, ctx.Err()
}

// A revoked key ends the calls that it began, however long they would last; a
// database that does not answer ends none.
func TestARevokedKeyEndsACallThatLasts(t *testing.T) {
	service := lasting{clienttest.New(), make(chan struct{})}
	var revoked atomic.Bool
	asked := make(chan struct{}, 1)
	handler := rpc.NewHandler(rpc.Services{Processes: service}, rpc.Options{Recheck: time.Millisecond, Authenticate: func(context.Context, string) (holdfast.Caller, error) {
		select {
		case asked <- struct{}{}:
		default:
		}
		select {
		case <-service.begun:
		default:
			return holdfast.Caller{}, nil
		}
		if revoked.Load() {
			return holdfast.Caller{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no such key")
		}
		return holdfast.Caller{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage, "no answer")
	}})
	server := httptest.NewUnstartedServer(handler)
	server.Config = rpc.NewServer(handler)
	server.Start()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := dial(t, server.URL).Processes.StreamProcessOutput(ctx, holdfast.Caller{}, "sb-1", holdfast.ReadOutput{Process: "pr-1", Follow: true}, nil)
		ended <- err
	}()
	<-service.begun
	for range 3 { // asked again, and not answered
		select {
		case <-asked:
		case <-ctx.Done():
			t.Fatal("the call's key was not asked about again")
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("it ended while the key was not known to be revoked: %v", err)
	default:
	}
	revoked.Store(true)
	if err := <-ended; holdfast.CodeOf(err) != holdfast.Unauthenticated {
		t.Errorf("it ended by %v", err)
	}
}
