package rpc

import (
	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
)

func sessionToWire(s holdfast.Session) *v1.Session {
	out := &v1.Session{
		Id: string(s.ID), Name: text(s.Name), Project: string(s.Project), Creator: text(s.Creator), Environment: text(s.Environment),
		Build: string(s.Build), Source: sourceToWire(s.Source), State: enum[v1.Session_State](v1.Session_State_value, s.State),
		Failure: failureToWire(s.Failure), HookFailure: failureToWire(s.HookFailure), Generation: s.Generation, Incarnation: s.Incarnation,
		Sandbox: string(s.Sandbox), Restart: enum[v1.Restart_Policy](v1.Restart_Policy_value, s.Restart), Env: texts(s.Env), Labels: texts(s.Labels),
		Repository: sessionRepositoryToWire(s.Repository), Idle: span(s.Idle), ActiveAt: stamp(s.ActiveAt), SuspendedBy: text(string(s.SuspendedBy)),
		DoorClosed: s.DoorClosed, Queued: int32(s.Queued), Running: string(s.Running),
		CreatedAt: stamp(s.CreatedAt), UpdatedAt: stamp(s.UpdatedAt), DeletedAt: stamp(s.DeletedAt),
	}
	if s.Operation != nil {
		out.Operation = operationToWire(*s.Operation)
	}
	return out
}

func sessionFromWire(s *v1.Session) holdfast.Session {
	out := holdfast.Session{
		ID: holdfast.SessionID(s.GetId()), Name: s.GetName(), Project: holdfast.ProjectID(s.GetProject()), Creator: s.GetCreator(),
		Environment: s.GetEnvironment(), Build: holdfast.BuildID(s.GetBuild()), Source: holdfast.CheckpointID(s.GetSource().GetCheckpoint()),
		State:   word[holdfast.SessionState](v1.Session_State_name, s.GetState()),
		Failure: failureFromWire(s.GetFailure()), HookFailure: failureFromWire(s.GetHookFailure()), Generation: s.GetGeneration(),
		Incarnation: s.GetIncarnation(), Sandbox: holdfast.SandboxID(s.GetSandbox()),
		Restart: word[holdfast.Restart](v1.Restart_Policy_name, s.GetRestart()), Env: filled(s.GetEnv()), Labels: filled(s.GetLabels()),
		Repository: sessionRepositoryFromWire(s.GetRepository()), Idle: s.GetIdle().AsDuration(), ActiveAt: instant(s.GetActiveAt()),
		SuspendedBy: holdfast.Reason(s.GetSuspendedBy()), DoorClosed: s.GetDoorClosed(), Queued: int(s.GetQueued()),
		Running:   holdfast.TaskID(s.GetRunning()),
		CreatedAt: instant(s.GetCreatedAt()), UpdatedAt: instant(s.GetUpdatedAt()), DeletedAt: instant(s.GetDeletedAt()),
	}
	if op := s.GetOperation(); op != nil {
		o := operationFromWire(op)
		out.Operation = &o
	}
	return out
}

func sessionRepositoryToWire(r *holdfast.Repository) *v1.Session_Repository {
	if r == nil {
		return nil
	}
	return &v1.Session_Repository{Url: text(r.URL), Ref: text(r.Ref)}
}

func sessionRepositoryFromWire(r *v1.Session_Repository) *holdfast.Repository {
	if r == nil {
		return nil
	}
	return &holdfast.Repository{URL: r.GetUrl(), Ref: r.GetRef()}
}

func createSessionToWire(in holdfast.CreateSession) *v1.CreateSessionRequest {
	return &v1.CreateSessionRequest{
		RequestId: in.RequestID, Environment: in.Environment, Source: sourceToWire(in.Source), Name: in.Name, Idle: span(in.Idle),
		Restart: enum[v1.Restart_Policy](v1.Restart_Policy_value, in.Restart), Env: filled(in.Env), Labels: filled(in.Labels),
		Resources: resourcesToWire(in.Resources), Egress: enum[v1.Sandbox_Egress](v1.Sandbox_Egress_value, in.Egress),
		Repository: sessionRepositoryToWire(in.Repository),
	}
}

// createSessionFromWire tells an explicit idle time of zero, which is out of range,
// from none.
func createSessionFromWire(in *v1.CreateSessionRequest) (holdfast.CreateSession, error) {
	out := holdfast.CreateSession{
		RequestID: in.GetRequestId(), Environment: in.GetEnvironment(), Source: holdfast.CheckpointID(in.GetSource().GetCheckpoint()),
		Name: in.GetName(), Idle: in.GetIdle().AsDuration(), Restart: word[holdfast.Restart](v1.Restart_Policy_name, in.GetRestart()),
		Env: filled(in.GetEnv()), Labels: filled(in.GetLabels()), Resources: resourcesFromWire(in.GetResources()),
		Egress:     word[holdfast.Egress](v1.Sandbox_Egress_name, in.GetEgress()),
		Repository: sessionRepositoryFromWire(in.GetRepository()),
	}
	if in.GetIdle() != nil && (out.Idle == 0 || !in.GetIdle().IsValid()) {
		return out, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "idle is %s; leave it out for %s, or give one between %s and %s",
			out.Idle, holdfast.DefaultIdle, holdfast.MinIdle, holdfast.MaxIdle).With("field", "idle")
	}
	return out, nil
}

func sessionsToWire(page holdfast.SessionPage) *v1.ListSessionsResponse {
	return &v1.ListSessionsResponse{Sessions: each(page.Sessions, sessionToWire), NextPageToken: page.NextPageToken}
}

func sessionsFromWire(page *v1.ListSessionsResponse) holdfast.SessionPage {
	return holdfast.SessionPage{Sessions: each(page.GetSessions(), sessionFromWire), NextPageToken: page.GetNextPageToken()}
}
