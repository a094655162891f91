package rpc_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client/clienttest"
	"github.com/holdfast-dev/holdfast/rpc"
)

func (e echo) session(in any) (holdfast.Session, error) {
	e.asked <- in
	return filled[holdfast.Session](), nil
}

func (e echo) CreateSession(_ context.Context, _ holdfast.Caller, in holdfast.CreateSession) (holdfast.Session, error) {
	return e.session(in)
}

func (e echo) GetSession(_ context.Context, _ holdfast.Caller, id holdfast.SessionID) (holdfast.Session, error) {
	return e.session(id)
}

func (e echo) ListSessions(_ context.Context, _ holdfast.Caller, in holdfast.ListSessions) (holdfast.SessionPage, error) {
	e.asked <- in
	return filled[holdfast.SessionPage](), nil
}

func (e echo) SuspendSession(_ context.Context, _ holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	return e.session(in)
}

func (e echo) ResumeSession(_ context.Context, _ holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	return e.session(in)
}

func (e echo) DeleteSession(_ context.Context, _ holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	return e.session(in)
}

func (e echo) RenameSession(_ context.Context, _ holdfast.Caller, in holdfast.RenameSession) (holdfast.Session, error) {
	return e.session(in)
}

func TestNoFieldOfASessionIsLostOnTheWayThereOrBack(t *testing.T) {
	e := echo{clienttest.New(), make(chan any, 8)}
	services, ctx, nobody := serve(t, rpc.Services{Sessions: e}).Sessions, t.Context(), holdfast.Caller{}
	session := filled[holdfast.Session]()

	create := filled[holdfast.CreateSession]()
	got, err := services.CreateSession(ctx, nobody, create)
	same(t, "Session", got, err, session)
	same[any](t, "CreateSession", e.last(t), nil, create)

	got, err = services.GetSession(ctx, nobody, "se-1")
	same(t, "Session", got, err, session)
	same[any](t, "id", e.last(t), nil, holdfast.SessionID("se-1"))

	list := filled[holdfast.ListSessions]()
	page, err := services.ListSessions(ctx, nobody, list)
	want := filled[holdfast.SessionPage]()
	for i := range want.Sessions {
		want.Sessions[i].Env = nil
	}
	same(t, "SessionPage", page, err, want)
	same[any](t, "ListSessions", e.last(t), nil, list)

	mutate := filled[holdfast.MutateSession]()
	for _, call := range []func(context.Context, holdfast.Caller, holdfast.MutateSession) (holdfast.Session, error){
		services.SuspendSession, services.DeleteSession, services.ResumeSession,
	} {
		got, err = call(ctx, nobody, mutate)
		same(t, "Session", got, err, session)
		asked := e.last(t).(holdfast.MutateSession)
		asked.Force = true // a resume has none
		same(t, "MutateSession", asked, nil, mutate)
	}

	rename := filled[holdfast.RenameSession]()
	got, err = services.RenameSession(ctx, nobody, rename)
	same(t, "Session", got, err, session)
	same[any](t, "RenameSession", e.last(t), nil, rename)
}

// An idle time of 0s, spelled out, is not the default.
func TestAnIdleTimeOfNothingIsRefused(t *testing.T) {
	fake := clienttest.New()
	url := fake.Serve(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/holdfast.v1.SessionService/CreateSession",
		strings.NewReader(`{"requestId":"r","environment":"base","idle":"0s"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+clienttest.APIKey)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusBadRequest || len(fake.Calls("CreateSession")) != 0 {
		t.Errorf("status %d, %v", res.StatusCode, err)
	}
}
