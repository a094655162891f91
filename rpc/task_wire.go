package rpc

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
)

func taskToWire(t holdfast.Task) *v1.Task {
	out := &v1.Task{
		Id: string(t.ID), Session: string(t.Session), Project: string(t.Project), Creator: text(t.Creator), System: t.System,
		State: enum[v1.Task_State](v1.Task_State_value, t.State), Failure: failureToWire(t.Failure),
		Command: text(t.Command), Args: each(t.Args, text), Cwd: text(t.Cwd), Env: texts(t.Env), Limit: span(t.Limit),
		Incarnation: t.Incarnation, Process: string(t.Process), CancelAsked: t.CancelAsked,
		CreatedAt: stamp(t.CreatedAt), UpdatedAt: stamp(t.UpdatedAt), StartedAt: stamp(t.StartedAt), FinishedAt: stamp(t.FinishedAt),
	}
	if t.ProcessEnded {
		code := int32(t.ExitCode)
		out.ExitCode = &code
	}
	if c := t.Contrary; c != nil {
		out.Contrary = &v1.Task_Report{ExitCode: int32(c.ExitCode), FinishedAt: stamp(c.FinishedAt), HeardAt: stamp(c.HeardAt)}
	}
	return out
}

func taskFromWire(t *v1.Task) holdfast.Task {
	out := holdfast.Task{
		ID: holdfast.TaskID(t.GetId()), Session: holdfast.SessionID(t.GetSession()), Project: holdfast.ProjectID(t.GetProject()),
		Creator: t.GetCreator(), System: t.GetSystem(), State: word[holdfast.TaskState](v1.Task_State_name, t.GetState()),
		Failure: failureFromWire(t.GetFailure()), Command: t.GetCommand(), Args: t.GetArgs(), Cwd: t.GetCwd(), Env: filled(t.GetEnv()),
		Limit: t.GetLimit().AsDuration(), Incarnation: t.GetIncarnation(), Process: holdfast.ProcessID(t.GetProcess()), CancelAsked: t.GetCancelAsked(),
		ProcessEnded: t.ExitCode != nil, ExitCode: int(t.GetExitCode()),
		CreatedAt: instant(t.GetCreatedAt()), UpdatedAt: instant(t.GetUpdatedAt()), StartedAt: instant(t.GetStartedAt()), FinishedAt: instant(t.GetFinishedAt()),
	}
	if c := t.GetContrary(); c != nil {
		out.Contrary = &holdfast.TaskReport{ExitCode: int(c.GetExitCode()), FinishedAt: instant(c.GetFinishedAt()), HeardAt: instant(c.GetHeardAt())}
	}
	return out
}

func tasksToWire(page holdfast.TaskPage) *v1.ListTasksResponse {
	return &v1.ListTasksResponse{NextPageToken: page.NextPageToken, Tasks: each(page.Tasks, func(t holdfast.Task) *v1.Task {
		t.Env = nil
		return taskToWire(t)
	})}
}

func tasksFromWire(page *v1.ListTasksResponse) holdfast.TaskPage {
	return holdfast.TaskPage{Tasks: each(page.GetTasks(), taskFromWire), NextPageToken: page.GetNextPageToken()}
}

func submitFromWire(req *v1.SubmitTaskRequest) (holdfast.SubmitTask, error) {
	limit, err := limitFromWire(req.GetLimit())
	return holdfast.SubmitTask{
		RequestID: req.GetRequestId(), Session: holdfast.SessionID(req.GetSessionId()), Command: req.GetCommand(), Args: req.GetArgs(),
		Cwd: req.GetCwd(), Env: filled(req.GetEnv()), Limit: limit,
	}, err
}

// limitFromWire tells an explicit zero, which is out of range, from none.
func limitFromWire(limit *durationpb.Duration) (time.Duration, error) {
	if limit == nil {
		return 0, nil
	}
	d := limit.AsDuration()
	if d == 0 || !limit.IsValid() {
		return 0, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField,
			"limit is %s; leave it out for %s, or give one between %s and %s", d, holdfast.DefaultTaskLimit, holdfast.MinTaskLimit, holdfast.MaxTaskLimit).With("field", "limit")
	}
	return d, nil
}
